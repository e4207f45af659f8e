"""FLOPs by closed formulas, next to torch's count; model FLOPs utilisation (MFU) by three methods,
and comparison with published throughput.

A multiply-add counts as two. Each function states whether attention is causal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from gpuconsole.diagnosis.models.inputs import ModelInputs, lengths, transformer_linear, with_note
from gpuconsole.model.figures import Figure
from gpuconsole.model.machine import Published
from gpuconsole.model.text import percent
from gpuconsole.session.figures.flops import training_per_token, training_per_token_causal

# --- floating point operations by closed formulas -------------------------------------------------


def lora_per_token(d_model: int, n_layer: int, vocabulary: int, rank: int, tokens: float) -> float:
    """4 N_frozen + 6 N_adapters + 12 L d T, not causal, for our GPT with an adapter of r (in + out)
    for each matrix of a block.

    Frozen matrices need no weight gradient. Nothing before the first block is trained, so its qkv
    and the first half of its adapter need no input gradient.
    """
    frozen = transformer_linear(d_model, n_layer, vocabulary)
    adapters = 16 * rank * d_model * n_layer
    without_input_gradient = 2 * (3 * d_model**2 + rank * d_model)
    return 4 * frozen + 6 * adapters - without_input_gradient + 12 * n_layer * d_model * tokens


def recomputed_per_token(d_model: int, n_layer: int, tokens: float, lora_rank: int = 0) -> float:
    """FLOPs that checkpointing of every block adds for our GPT, not causal: most of a second
    forward pass.

    torch stops the recomputation at the last tensor that the backward pass needs: the input of the
    MLP's second matrix. This saves a third of the textbook's 2 * 12 d^2 per block. With LoRA it
    saves only the last half of an adapter.
    """
    matrices = 12 * d_model**2 + 15 * lora_rank * d_model if lora_rank else 8 * d_model**2
    return n_layer * (2 * matrices + 4 * d_model * tokens)


# --- model FLOPs utilisation (MFU) ----------------------------------------------------------------


def mfu(flops_per_s: float, peak_flops_per_s: float) -> float:
    """Useful FLOP/s over the dense peak of the precision in use. 100 of an A100's 312 TFLOP/s are
    32 %."""
    return flops_per_s / peak_flops_per_s


def published_flops_per_s(anchor: Published, peak_flops_per_s: float | None) -> float | None:
    """Model FLOP/s per device of a published run: MFU times peak, otherwise tokens/s times (6 N +
    12 L d T). None: not known.

    The publisher's MFU has priority, because the publisher counts the FLOPs of the trained model.
    """
    if anchor.mfu_ratio is not None and peak_flops_per_s:
        return anchor.mfu_ratio * peak_flops_per_s
    if not (anchor.n_layer and anchor.d_model):
        return None
    return anchor.tokens_per_s * training_per_token(
        anchor.parameters, anchor.n_layer, anchor.d_model, anchor.seq_len
    )


def published_tokens_per_s(
    anchor: Published, flops_per_token: float, peak_flops_per_s: float | None
) -> float | None:
    """Tokens/s of a device with a model of `flops_per_token` (not causal) at the FLOP/s of the
    published run."""
    reached = published_flops_per_s(anchor, peak_flops_per_s)
    return reached / flops_per_token if reached else None


def nearest_anchor(
    anchors: Iterable[Published], precision: str, flops_per_token: float
) -> Published | None:
    """The published run at this precision whose model is nearest in FLOPs per token; None where
    there is none."""
    same = [
        anchor
        for anchor in anchors
        if anchor.precision == precision and anchor.n_layer and anchor.d_model
    ]
    return min(
        same, key=lambda anchor: abs(math.log(flops_of(anchor) / flops_per_token)), default=None
    )


def flops_of(anchor: Published) -> float:
    """FLOPs per token of a published model, by 6 N + 12 L d T."""
    return training_per_token(anchor.parameters, anchor.n_layer, anchor.d_model, anchor.seq_len)


# --- the figures of a run -------------------------------------------------------------------------

NO_FORMULA = "not predicted: only transformers and matrix products have a closed formula"
NOT_COUNTED = "not measured: the run has counted no FLOPs"
NO_PEAK = (
    "no dense peak of this device and precision is known or measured (run gpuconsole calibrate)"
)
NO_RATE = "no throughput yet"
NO_WORK = "FLOPs or samples of a step are not known"
NO_COUNTER = (
    "tensor core activity is not reported (needs GPM, from Hopper on, or a dcgm-exporter: --dcgm)"
)


def flops_figures(inputs: ModelInputs) -> list[Figure]:
    """All FLOPs figures. Empty for a workload without matrix products, which has no FLOPs peak."""
    if inputs.facts.get("flops_per_sample") == 0:
        return []
    return [_count(inputs), *_other_counts(inputs), _step(inputs), *_mfu(inputs)]


def flops_per_sample(inputs: ModelInputs) -> float | None:
    """FLOPs of a sample by the closed formula, not causal; None for a workload that is neither our
    GPT nor a matrix product."""
    if inputs.matrix_size:
        return 2.0 * inputs.matrix_size**3
    shape, linear = inputs.shape, inputs.linear
    if shape is None or linear is None:
        return None
    if shape.lora_rank:
        return _over_lengths(
            inputs,
            lambda tokens: lora_per_token(
                shape.d_model, shape.n_layer, shape.vocabulary, shape.lora_rank, tokens
            ),
        )
    return _over_lengths(
        inputs, lambda tokens: training_per_token(linear, shape.n_layer, shape.d_model, tokens)
    )


def recomputed_per_sample(inputs: ModelInputs) -> float:
    """FLOPs of a sample that gradient checkpointing adds to those of `flops_per_sample`; 0 without
    checkpointing, and where no model is known."""
    shape = inputs.shape
    if shape is None or not inputs.knobs.get("gradient_checkpointing"):
        return 0.0
    return _over_lengths(
        inputs,
        lambda tokens: recomputed_per_token(shape.d_model, shape.n_layer, tokens, shape.lora_rank),
    )


def _over_lengths(inputs: ModelInputs, per_token: Callable[[float], float]) -> float:
    """Mean FLOPs of a sequence over its lengths. The FLOPs are quadratic in the length, so
    Simpson's rule is exact."""
    shortest, longest = lengths(inputs.knobs)
    middle = (shortest + longest) / 2
    return (
        shortest * per_token(shortest)
        + 4 * middle * per_token(middle)
        + longest * per_token(longest)
    ) / 6


def _count(inputs: ModelInputs) -> Figure:
    predicted, measured = flops_per_sample(inputs), inputs.facts.get("flops_per_sample")
    source = "FlopCounterMode on the meta device" if measured else ""
    note = "; ".join(
        filter(None, (NO_FORMULA if predicted is None else "", "" if measured else NOT_COUNTED))
    )
    return Figure(
        "flops.per_sample",
        "Model FLOPs of a sample",
        "FLOP",
        predicted,
        measured,
        _formula(inputs),
        source,
        note,
    )


def _formula(inputs: ModelInputs) -> str:
    if inputs.matrix_size:
        return "2 n^3 per product"
    if inputs.shape is not None and inputs.shape.lora_rank:
        return "4 N frozen + 6 N adapters + 12 L d T per token, not causal"
    return "6 N + 12 L d T per token, not causal (PaLM, appendix B)"


def _other_counts(inputs: ModelInputs) -> list[Figure]:
    """The same work by other counting rules, for comparison with figures from other sources."""
    shape, linear = inputs.shape, inputs.linear
    if shape is None or linear is None or shape.lora_rank:
        return []
    causal = _over_lengths(
        inputs,
        lambda tokens: training_per_token_causal(linear, shape.n_layer, shape.d_model, tokens),
    )
    formula = (
        "6 N + 6 L d T per token, causal: only the lower triangle of attention (ml-engineering)"
    )
    note = "not measured: torch's counter counts the full square"
    figures = [
        Figure(
            "flops.causal_per_sample",
            "Model FLOPs of a sample, causal",
            "FLOP",
            causal,
            formula=formula,
            note=note,
        )
    ]
    if inputs.knobs.get("gradient_checkpointing"):
        again = recomputed_per_sample(inputs)
        whole = (flops_per_sample(inputs) or 0.0) + again
        formula = (
            "model FLOPs + 16 L d^2 + 4 L d T per token: each block again without its last matrix,"
            " not causal"
        )
        note = (
            f"{percent(again / (flops_per_sample(inputs) or 1.0))} more work; not measured: MFU"
            " counts no recomputation"
        )
        figures += [
            Figure(
                "flops.hardware_per_sample",
                "FLOPs of a sample with recomputation",
                "FLOP",
                whole,
                formula=formula,
                note=note,
            )
        ]
    return figures


def _step(inputs: ModelInputs) -> Figure:
    """Time of a step if arithmetic were the only limit."""
    sample, samples, peak = (
        inputs.facts.get("flops_per_sample") or flops_per_sample(inputs),
        inputs.samples_per_step,
        inputs.peak_flops_per_s,
    )
    figure = Figure(
        "flops.step_s",
        "Time of a step if arithmetic were the limit",
        "s",
        formula="model FLOPs of a step / peak",
    )
    if sample and samples and peak:
        figure = replace(figure, predicted=sample * samples / peak[0], note=f"peak: {peak[1]}")
    else:
        figure = with_note(figure, f"not predicted: {NO_PEAK if sample and samples else NO_WORK}")
    return inputs.with_measurement(figure, "step_s", "the run is not steady yet")


def _mfu(inputs: ModelInputs) -> list[Figure]:
    return [
        _over_peak(inputs),
        _over_reached(inputs),
        _over_published(inputs),
        _tensor_active(inputs),
    ]


def _over_peak(inputs: ModelInputs) -> Figure:
    """MFU from FLOPs by formula and by count, over time and peak."""
    peak, rate, closed = (
        inputs.peak_flops_per_s,
        inputs.summary.samples_per_s,
        flops_per_sample(inputs),
    )
    figure = Figure(
        "mfu.flops",
        "MFU: FLOPs over the peak",
        "ratio",
        formula="FLOPs of a sample x samples/s / dense peak",
    )
    if peak is None or rate is None:
        return with_note(figure, NO_PEAK if peak is None else NO_RATE)
    counted = inputs.summary.flops_per_s
    return replace(
        figure,
        predicted=mfu(closed * rate.mean, peak[0]) if closed else None,
        measured=mfu(counted, peak[0]) if counted else None,
        source=peak[1] if counted else "",
        note="; ".join(
            filter(None, ("" if closed else NO_FORMULA, "" if counted else NOT_COUNTED))
        ),
    )


def _over_reached(inputs: ModelInputs) -> Figure:
    """The run's FLOP/s as a share of the calibrated matrix product of this machine."""
    reached, counted = inputs.reached_flops_per_s, inputs.summary.flops_per_s
    figure = Figure(
        "mfu.reached",
        "Share of this machine's matrix product",
        "ratio",
        formula="model FLOP/s / calibrated matrix product",
    )
    if reached is None or not counted:
        return with_note(
            figure,
            "not calibrated at this precision (run gpuconsole calibrate)"
            if reached is None
            else NOT_COUNTED,
        )
    return replace(figure, measured=mfu(counted, reached[0]), source=reached[1])


def _over_published(inputs: ModelInputs) -> Figure:
    """Tokens/s of a device next to the tokens/s at published FLOP/s of this device."""
    formula = "published FLOP/s / our FLOPs per token"
    figure = Figure(
        "mfu.published",
        "Tokens/s of a device against published tokens/s",
        "tokens/s",
        formula=formula,
    )
    rate, each = inputs.summary.tokens_per_s, _flops_per_token(inputs)
    if rate is None:
        figure = with_note(figure, f"not measured: {NO_RATE}")
    else:
        figure = replace(figure, measured=rate.mean / inputs.world, source="step breakdown")
    if each is None:
        return with_note(figure, NO_FORMULA)
    anchor = nearest_anchor(inputs.published, inputs.precision, each)
    if anchor is None:
        return with_note(
            figure, f"not predicted: no published throughput for this device at {inputs.precision}"
        )
    peak: float | None = getattr(inputs.peaks, f"{inputs.precision}_flops_per_s", None)
    published = f"{anchor.tokens_per_s:,.0f} tokens/s" + (
        f", MFU {percent(anchor.mfu_ratio, 1)}" if anchor.mfu_ratio else ""
    )
    formula = (
        f"FLOP/s of {anchor.model} on {anchor.device} ({anchor.source}: {published}) / our FLOPs"
        " per token"
    )
    return with_note(
        replace(figure, predicted=published_tokens_per_s(anchor, each, peak), formula=formula),
        anchor.note,
    )


def _flops_per_token(inputs: ModelInputs) -> float | None:
    """FLOPs per token, not causal: the count where there is one, otherwise the formula."""
    tokens, sample = (
        inputs.facts.get("tokens_per_sample"),
        inputs.facts.get("flops_per_sample") or flops_per_sample(inputs),
    )
    return sample / tokens if tokens and sample else None


def _tensor_active(inputs: ModelInputs) -> Figure:
    """The tensor core counter next to MFU by FLOPs. The counter is higher: it includes work that is
    no model FLOP and clocks below the datasheet."""
    peak, counted = inputs.peak_flops_per_s, inputs.summary.flops_per_s
    predicted = mfu(counted, peak[0]) if peak and counted and inputs.is_gpu else None
    formula = "MFU by FLOPs: the tensor cores are active for at least this share"
    figure = Figure(
        "mfu.tensor_active",
        "MFU: share of time that tensor cores were active",
        "ratio",
        predicted,
        formula=formula,
    )
    return inputs.with_measurement(
        figure,
        "gpu.tensor_active_ratio",
        NO_COUNTER if inputs.is_gpu else "a CPU has no tensor cores",
    )
