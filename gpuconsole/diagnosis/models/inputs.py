"""The inputs of the models: knobs, facts and signals of a run, the peaks of its device, and the calibration of this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from msgspec.structs import replace

from gpuconsole.diagnosis.models.gpt import GptShape, Tensor, first_positions, gpt_shape, gpt_tensors, transformer_linear
from gpuconsole.model.figures import Figure
from gpuconsole.model.finding import Signal
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.machine import Peaks, Published
from gpuconsole.model.run import Summary
from gpuconsole.session.figures.flops import flops_of_sample
from gpuconsole.session.figures.peak import Peak, bandwidth_peak, calibrated_product, flops_peak, world_size

NOT_STEADY = "the run is not steady yet"
GPT_KNOBS = ("batch_size", "seq_len", "d_model", "n_layer", "attention")
"""Only our GPT has all of these knobs."""


@dataclass(frozen=True)
class ModelInputs:
    """Only `knobs` must be set. A value that cannot be computed from the inputs is missing, with the reason."""

    knobs: Knobs
    facts: Mapping[str, float]
    signals: Mapping[str, Signal]
    summary: Summary
    peaks: Peaks
    calibration: Mapping[str, float]
    is_gpu: bool
    published: Sequence[Published] = ()

    def value(self, signal: str) -> float | None:
        measured = self.signals.get(signal)
        return None if measured is None else measured.value

    def with_measurement(self, figure: Figure, signal: str, missing: str) -> Figure:
        """`figure` with the measurement in `signal`, or with the reason `missing`."""
        measured = self.signals.get(signal)
        if measured is None:
            return with_note(figure, f"not measured: {missing}")
        return replace(figure, measured=measured.value, source=measured.source)

    def text(self, knob: str, default: str) -> str:
        return str(self.knobs.get(knob, default))

    @property
    def precision(self) -> str:
        return self.text("precision", "fp32")

    @property
    def trains(self) -> bool:
        """Whether the workload has an optimizer. Calibration workloads have none."""
        return "optim" in self.knobs

    @property
    def matrix_size(self) -> int:
        """Side of the square matrices of a matrix product workload; 0 for other workloads."""
        return int(self.knobs.get("matrix_size", 0))

    @property
    def passes(self) -> int:
        return int(self.knobs.get("gradient_accumulation_steps", 1))

    @property
    def is_compiled(self) -> bool:
        return self.text("torch_compile", "off") != "off"

    @property
    def keeps_as_autograd(self) -> bool:
        """Whether the forward pass keeps what autograd saves for our model as it is written."""
        return not self.is_compiled and not self.knobs.get("float8_linear")

    @property
    def tensor_parallel(self) -> int:
        return int(self.knobs.get("tensor_parallel", 1))

    @property
    def world(self) -> int:
        """Number of processes of the run."""
        return world_size(self.knobs, self.facts)

    @property
    def replicas(self) -> int:
        """Number of data-parallel replicas. The processes of a tensor parallel group form one replica."""
        return max(1, self.world // self.tensor_parallel)

    @cached_property
    def shape(self) -> GptShape | None:
        """The shape of our GPT; None for other workloads, for which only parameter counts are known."""
        return None if self._gpt is None else self._gpt[0]

    @cached_property
    def tensors(self) -> list[Tensor] | None:
        """Every parameter tensor of our GPT; None for other workloads."""
        return None if self._gpt is None else gpt_tensors(*self._gpt)

    @cached_property
    def _gpt(self) -> tuple[GptShape, int] | None:
        """The shape of our GPT and its number of positions. None where the number of parameters does not match our GPT."""
        if "vocabulary" not in self.facts or not all(knob in self.knobs for knob in GPT_KNOBS):
            return None
        shape, positions = gpt_shape(self.knobs, int(self.facts["vocabulary"])), first_positions(int(self.knobs["seq_len"]))
        if "parameters" not in self.facts:
            return shape, positions
        expected = sum(tensor.elements for tensor in gpt_tensors(shape, positions))
        rows, rest = divmod(int(self.facts["parameters"]) - expected, shape.d_model)  # seq_len may have changed since the start
        return None if rest or positions + rows < shape.tokens else (shape, positions + rows)

    @property
    def parameters(self) -> float | None:
        """Parameters of the whole model: the workload's count, otherwise from the shape."""
        by_shape = None if self.tensors is None else float(sum(tensor.elements for tensor in self.tensors))
        return self.facts.get("parameters", by_shape)

    @property
    def trained(self) -> float | None:
        """Trained parameters: the workload's count, otherwise from the shape."""
        by_shape = self.parameters if self.tensors is None else float(sum(tensor.elements for tensor in self.tensors if tensor.trained))
        return self.facts.get("trainable_parameters", by_shape)

    @property
    def linear(self) -> float | None:
        """N of the FLOPs formulas; all parameters where the workload has not reported N."""
        by_shape = self.parameters
        if self.shape is not None and not self.shape.lora_rank:
            by_shape = float(transformer_linear(self.shape.d_model, self.shape.n_layer, self.shape.vocabulary))
        return self.facts.get("linear_parameters", by_shape)

    @property
    def estimated_flops(self) -> float | None:
        """FLOPs of a sample of a transformer that has counted none, from its parameters; None where they cannot be estimated."""
        tokens, samples = self.summary.tokens_per_s, self.summary.samples_per_s
        work = flops_of_sample(self.facts, self.knobs, tokens.mean / samples.mean if tokens and samples and samples.mean else 0.0)
        return work.full if work is not None else None

    @property
    def samples_per_step(self) -> float | None:
        """Samples per step of all processes: from the step breakdown, otherwise from the knobs."""
        batch = int(self.knobs.get("batch_size", 0)) * self.passes * self.replicas
        return self.value("samples_per_step") or float(batch) or None

    @property
    def peak_flops_per_s(self) -> Peak | None:
        """FLOP/s of all devices of the run."""
        return flops_peak(self.knobs, self.facts, self.peaks, self.is_gpu, calibration=self.calibration)

    @property
    def reached_flops_per_s(self) -> Peak | None:
        """FLOP/s that all devices of the run reached in a calibrated matrix product."""
        return calibrated_product(self.knobs, self.facts, self.is_gpu, self.calibration)

    @property
    def bytes_per_s(self) -> Peak | None:
        """Memory bandwidth per process: the bandwidth of its GPU, or its share of the CPU's bandwidth."""
        peak = bandwidth_peak(self.knobs, self.facts, self.peaks, self.is_gpu, calibration=self.calibration)
        return (peak[0] / self.world, peak[1]) if peak else None


def with_note(figure: Figure, note: str) -> Figure:
    """`figure` with one more note."""
    return replace(figure, note="; ".join(filter(None, (figure.note, note))))
