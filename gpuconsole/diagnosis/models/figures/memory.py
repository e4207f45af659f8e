"""Memory by part: predictions next to the figures of the allocator and of autograd."""

from __future__ import annotations

from msgspec.structs import replace

from gpuconsole.diagnosis.models.bandwidth import UPDATE_BYTES
from gpuconsole.diagnosis.models.figures.inputs import ModelInputs, with_note
from gpuconsole.diagnosis.models.memory import FP32, States, activations, fragmentation_bytes, gathered_bytes, states, states_by_count
from gpuconsole.diagnosis.models.peak import Pass, peak_bytes
from gpuconsole.diagnosis.models.shape import GptShape, Tensor
from gpuconsole.model.figure import Figure

NOT_YET = "the probe measures memory by part after the run is steady"
NO_ALLOCATOR = "a CPU has no allocator statistics"
NO_COUNT = "not predicted: the number of parameters is not known"
NO_SHAPE = "not predicted: the models cover the activations of our GPT only"
COMPILED = "not predicted: torch.compile chooses what to keep and what to recompute"
IN_FP8 = "not predicted: matrix products in fp8 keep other tensors"
SHARDED = {
    "none": "",
    "ddp": "",
    "zero1": "; states by whole parameters, assigned greedily (ZeroRedundancyOptimizer)",
    "zero2": "; shards of rows (FSDP2 also shards parameters between steps under zero2)",
    "zero3": "; shards of rows (FSDP2)",
}
OPTIMIZER = {"sgd_plain": "no state", "sgd": "4 B x trained (momentum)", "adamw_8bit": "2 B x trained, and a scale for each 256"}


def memory_figures(inputs: ModelInputs) -> list[Figure]:
    """Memory of the first process: parameters, gradients, optimizer states, activations, the peak, and unused reserved memory."""
    if not inputs.trains:
        return []
    kept = states_of(inputs)
    return [*_state_figures(inputs, kept), _activations(inputs), _peak(inputs, kept), _fragmentation(inputs)]


def states_of(inputs: ModelInputs) -> States | None:
    """Predicted states of the first process; None where the number of parameters is not known."""
    optim, sharding = inputs.text("optim", "adamw_fused"), inputs.text("sharding", "none")
    if inputs.tensors is not None:
        return states(inputs.tensors, optim, sharding, inputs.replicas, 0, inputs.tensor_parallel)
    if inputs.parameters is None or inputs.trained is None or inputs.tensor_parallel > 1:
        return None
    return states_by_count(inputs.parameters, inputs.trained, optim, sharding, inputs.replicas)


def _state_figures(inputs: ModelInputs, kept: States | None) -> list[Figure]:
    where = SHARDED[inputs.text("sharding", "none")] + ("; matrices split (tensor parallel)" if inputs.tensor_parallel > 1 else "")
    formulas = {
        "parameters": f"4 B x parameters{where}",
        "gradients": f"4 B x trained parameters{where}",
        "optimizer": f"{OPTIMIZER.get(inputs.text('optim', ''), '8 B x trained (two moments)')}{where}",
    }
    titles = {"parameters": "Parameters", "gradients": "Gradients", "optimizer": "Optimizer states"}
    figures = []
    for part, formula in formulas.items():
        predicted = getattr(kept, part) if kept else None
        note = "" if kept else NO_COUNT
        if part == "optimizer" and (optim := inputs.text("optim", "adamw_fused")) not in UPDATE_BYTES:
            predicted, note = None, f"not predicted: no model for the optimizer {optim}"
        if part == "gradients" and inputs.knobs.get("sparse"):
            predicted, note = None, "not predicted: the size of sparse gradients depends on the rows in the batch"
        figure = Figure(f"memory.{part}_bytes", titles[part], "bytes", predicted=predicted, formula=formula, note=note)
        figures.append(inputs.with_measurement(figure, figure.name, NOT_YET))
    return figures


def _activations(inputs: ModelInputs) -> Figure:
    figure = Figure("memory.activations_bytes", "Activations kept for the backward pass", "bytes")
    kept = None
    if inputs.shape is None or not inputs.keeps_as_autograd:
        figure = with_note(figure, _why_unknown(inputs))
    else:
        kept = activations(*_activation_arguments(inputs, inputs.shape))
        formula = "saved tensors of our GPT, term by term; each block keeps " + (
            "its input" if kept.recomputed else "16 d values per token, and more"
        )
        figure = replace(figure, predicted=kept.saved, formula=formula)
        if inputs.knobs.get("varied_lengths"):
            figure = with_note(figure, "the prediction is for the longest sequence, the measurement for one batch")
        if kept.recomputed:
            figure = with_note(figure, f"the recomputed block adds {kept.recomputed:.4g} B in the backward pass")
    return inputs.with_measurement(figure, figure.name, NOT_YET)


def _why_unknown(inputs: ModelInputs) -> str:
    return COMPILED if inputs.is_compiled else NO_SHAPE if inputs.keeps_as_autograd else IN_FP8


def _activation_arguments(inputs: ModelInputs, shape: GptShape) -> tuple[GptShape, str, str, bool, bool, int]:
    checkpointing = bool(inputs.knobs.get("gradient_checkpointing", False))
    return shape, inputs.precision, inputs.text("attention", "sdpa"), checkpointing, inputs.is_gpu, inputs.tensor_parallel


def predicted_peak(inputs: ModelInputs, kept: States | None) -> float | None:
    """Peak bytes of a step; None where the model is not valid."""
    if inputs.shape is None or inputs.tensors is None or kept is None or not inputs.keeps_as_autograd:
        return None
    sharding = inputs.text("sharding", "none")
    run = Pass(
        precision=inputs.precision,
        attention=inputs.text("attention", "sdpa"),
        optim=inputs.text("optim", "adamw_fused"),
        gradients_stay=inputs.passes > 1 or sharding in ("ddp", "zero1"),
        is_gpu=inputs.is_gpu,
        tensor_parallel=inputs.tensor_parallel,
    )
    gathered = gathered_bytes(_units(inputs.tensors, inputs.shape.n_layer), sharding)
    return peak_bytes(inputs.shape, kept, activations(*_activation_arguments(inputs, inputs.shape)), run, gathered)


def _units(tensors: list[Tensor], n_layer: int) -> list[float]:
    """Bytes of each unit that FSDP2 gathers: each block, and the rest. The two embeddings are first, norm and head are last."""
    each = (len(tensors) - 5) // n_layer
    blocks = [tensors[2 + index * each : 2 + (index + 1) * each] for index in range(n_layer)]
    rest = [*tensors[:2], *tensors[-3:]]
    return [FP32 * float(sum(tensor.elements for tensor in unit)) for unit in (*blocks, rest)]


def _peak(inputs: ModelInputs, kept: States | None) -> Figure:
    predicted = predicted_peak(inputs, kept)
    figure = Figure(
        "memory.allocated_peak_bytes",
        "Peak memory",
        "bytes",
        predicted=predicted,
        formula="the largest sum of states, activations and temporary tensors",
        note="without workspaces of libraries (cuBLAS: tens of MiB)" if predicted is not None and inputs.is_gpu else "",
    )
    if predicted is None:
        figure = with_note(figure, NO_COUNT if kept is None and inputs.keeps_as_autograd else _why_unknown(inputs))
    return inputs.with_measurement(figure, figure.name, NOT_YET if inputs.is_gpu else NO_ALLOCATOR)


def _fragmentation(inputs: ModelInputs) -> Figure:
    reserved, allocated = inputs.value("memory.reserved_bytes"), inputs.value("memory.allocated_peak_bytes")
    figure = Figure(
        "memory.fragmentation_bytes",
        "Reserved beyond the peak",
        "bytes",
        formula="reserved - allocated at the peak",
        note="not predicted: fragmentation depends on the order of allocations",
    )
    if reserved is None or allocated is None:
        return with_note(figure, f"not measured: {NOT_YET if inputs.is_gpu else NO_ALLOCATOR}")
    measured = fragmentation_bytes(reserved, allocated)
    return Figure(
        figure.name, figure.title, "bytes", measured=measured, formula=figure.formula, source="torch.cuda.memory_stats", note=figure.note
    )
