"""The inputs of the models: knobs, facts and signals of a run, the peaks of its device, and the
calibration of this machine.

And our GPT from its knobs: dimensions of a forward pass, every parameter tensor, and the parameters
in matrix products.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from msgspec.structs import replace

from gpuconsole.model.figures import Figure
from gpuconsole.model.finding import Signal
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.machine import Peaks, Published
from gpuconsole.model.run import Summary
from gpuconsole.session.figures.flops import flops_of_sample
from gpuconsole.session.figures.peak import (
    Peak,
    bandwidth_peak,
    calibrated_product,
    flops_peak,
    world_size,
)

# --- our GPT from its knobs -----------------------------------------------------------------------

FP32 = 4
HEAD_SIZE = 64
VOCABULARY = 256
"""The workload's tokens are bytes."""
MIN_POSITIONS = 1024
MAX_LENGTH_RATIO = 4
"""With `varied_lengths` a sequence has at least seq_len / MAX_LENGTH_RATIO tokens."""


@dataclass(frozen=True)
class ParameterTensor:
    """One parameter tensor. `split` is the dimension that tensor parallelism splits; None: each
    process has the whole tensor."""

    shape: tuple[int, ...]
    trained: bool = True
    split: int | None = None

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class GptShape:
    """One process's forward pass: `batch` sequences of `tokens` (padding included) of which
    `targets` count."""

    batch: int
    tokens: int
    targets: int
    d_model: int
    n_layer: int
    vocabulary: int
    lora_rank: int = 0

    @property
    def heads(self) -> int:
        return max(1, self.d_model // HEAD_SIZE)

    @property
    def rows(self) -> int:
        """Tokens in one forward pass through a block."""
        return self.batch * self.tokens


def gpt_shape(knobs: Knobs, vocabulary: int) -> GptShape:
    """The shape at these knobs. With `varied_lengths` the shape of the longest sequence, which
    decides about memory."""
    tokens, multiple = int(knobs["seq_len"]), int(knobs.get("pad_to_multiple_of", 0))
    return GptShape(
        batch=int(knobs["batch_size"]),
        tokens=math.ceil(tokens / multiple) * multiple if multiple else tokens,
        targets=tokens,
        d_model=int(knobs["d_model"]),
        n_layer=int(knobs["n_layer"]),
        vocabulary=vocabulary,
        lora_rank=int(knobs.get("lora_rank", 0)) if knobs.get("peft", "none") == "lora" else 0,
    )


def lengths(knobs: Knobs) -> tuple[int, int]:
    """The shortest and the longest sequence in tokens; all between are equally likely."""
    longest = int(knobs["seq_len"])
    return max(1, longest // MAX_LENGTH_RATIO) if knobs.get("varied_lengths") else longest, longest


def first_positions(seq_len: int) -> int:
    """Rows of the position embedding of a workload that starts with this seq_len."""
    return max(MIN_POSITIONS, 4 * seq_len)


def gpt_tensors(shape: GptShape, positions: int) -> list[ParameterTensor]:
    """Every parameter in the model's own order."""
    d, full = shape.d_model, shape.lora_rank == 0
    # qkv, proj, up, down; split by rows or by columns
    matrices = ((3 * d, d, 0), (d, d, 1), (4 * d, d, 0), (d, 4 * d, 1))
    block: list[ParameterTensor] = []
    for index, (rows, columns, split) in enumerate(matrices):
        if index in (0, 2):
            block += [ParameterTensor((d,), full)] * 2  # the LayerNorm before it
        block += [
            ParameterTensor((rows, columns), full, split),
            ParameterTensor((rows,), full, 0 if split == 0 else None),
        ]
        if not full:
            block += [
                ParameterTensor((shape.lora_rank, columns)),
                ParameterTensor((rows, shape.lora_rank)),
            ]
    ends = [ParameterTensor((shape.vocabulary, d), full), ParameterTensor((positions, d), full)]
    return [
        *ends,
        *block * shape.n_layer,
        ParameterTensor((d,), full),
        ParameterTensor((d,), full),
        ParameterTensor((shape.vocabulary, d), full),
    ]


def transformer_linear(d_model: int, n_layer: int, vocabulary: int) -> int:
    """N of a GPT: per block 3 d^2 (qkv) + d^2 (output) + 8 d^2 (MLP of 4 d), and the head."""
    return 12 * n_layer * d_model**2 + vocabulary * d_model


# --- the inputs -----------------------------------------------------------------------------------

NOT_STEADY = "the run is not steady yet"
GPT_KNOBS = ("batch_size", "seq_len", "d_model", "n_layer", "attention")
"""Only our GPT has all of these knobs."""


@dataclass(frozen=True)
class ModelInputs:
    """Only `knobs` must be set. A value that cannot be computed from the inputs is missing, with
    the reason."""

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
        """Number of data-parallel replicas. The processes of a tensor parallel group form one
        replica."""
        return max(1, self.world // self.tensor_parallel)

    @cached_property
    def shape(self) -> GptShape | None:
        """The shape of our GPT; None for other workloads, for which only parameter counts are
        known."""
        return None if self._gpt is None else self._gpt[0]

    @cached_property
    def tensors(self) -> list[ParameterTensor] | None:
        """Every parameter tensor of our GPT; None for other workloads."""
        return None if self._gpt is None else gpt_tensors(*self._gpt)

    @cached_property
    def _gpt(self) -> tuple[GptShape, int] | None:
        """The shape of our GPT and its number of positions. None where the number of parameters
        does not match our GPT."""
        if "vocabulary" not in self.facts or not all(knob in self.knobs for knob in GPT_KNOBS):
            return None
        shape, positions = (
            gpt_shape(self.knobs, int(self.facts["vocabulary"])),
            first_positions(int(self.knobs["seq_len"])),
        )
        if "parameters" not in self.facts:
            return shape, positions
        expected = sum(tensor.elements for tensor in gpt_tensors(shape, positions))
        # seq_len may have changed since the start
        rows, rest = divmod(int(self.facts["parameters"]) - expected, shape.d_model)
        return None if rest or positions + rows < shape.tokens else (shape, positions + rows)

    @property
    def parameters(self) -> float | None:
        """Parameters of the whole model: the workload's count, otherwise from the shape."""
        by_shape = (
            None if self.tensors is None else float(sum(tensor.elements for tensor in self.tensors))
        )
        return self.facts.get("parameters", by_shape)

    @property
    def trained(self) -> float | None:
        """Trained parameters: the workload's count, otherwise from the shape."""
        by_shape = (
            self.parameters
            if self.tensors is None
            else float(sum(tensor.elements for tensor in self.tensors if tensor.trained))
        )
        return self.facts.get("trainable_parameters", by_shape)

    @property
    def linear(self) -> float | None:
        """N of the FLOPs formulas; all parameters where the workload has not reported N."""
        by_shape = self.parameters
        if self.shape is not None and not self.shape.lora_rank:
            by_shape = float(
                transformer_linear(self.shape.d_model, self.shape.n_layer, self.shape.vocabulary)
            )
        return self.facts.get("linear_parameters", by_shape)

    @property
    def element_bytes(self) -> float:
        """Bytes of a parameter as it is stored."""
        return self.facts.get("parameter_element_bytes", 8.0 if self.precision == "fp64" else FP32)

    @property
    def trained_bytes(self) -> float:
        """Bytes of a trained parameter as it is stored. Its gradient, and each state that torch's
        optimizers keep for it, have the same size."""
        return self.facts.get("trained_element_bytes", self.element_bytes)

    @property
    def local_ratio(self) -> float:
        """The share of the parameters that a process of a user's job stores."""
        return self.facts.get("local_parameters_ratio", 1.0)

    @property
    def estimated_flops(self) -> float | None:
        """FLOPs of a sample of a transformer that has counted none, from its parameters; None where
        they cannot be estimated."""
        tokens, samples = self.summary.tokens_per_s, self.summary.samples_per_s
        work = flops_of_sample(
            self.facts,
            self.knobs,
            tokens.mean / samples.mean if tokens and samples and samples.mean else 0.0,
        )
        return work.full if work is not None else None

    @property
    def samples_per_step(self) -> float | None:
        """Samples per step of all processes: from the step breakdown, otherwise from the knobs."""
        batch = int(self.knobs.get("batch_size", 0)) * self.passes * self.replicas
        return self.value("samples_per_step") or float(batch) or None

    @property
    def peak_flops_per_s(self) -> Peak | None:
        """FLOP/s of all devices of the run."""
        return flops_peak(
            self.knobs, self.facts, self.peaks, self.is_gpu, calibration=self.calibration
        )

    @property
    def reached_flops_per_s(self) -> Peak | None:
        """FLOP/s that all devices of the run reached in a calibrated matrix product."""
        return calibrated_product(self.knobs, self.facts, self.is_gpu, self.calibration)

    @property
    def bytes_per_s(self) -> Peak | None:
        """Memory bandwidth per process: the bandwidth of its GPU, or its share of the CPU's
        bandwidth."""
        peak = bandwidth_peak(
            self.knobs, self.facts, self.peaks, self.is_gpu, calibration=self.calibration
        )
        return (peak[0] / self.world, peak[1]) if peak else None


def with_note(figure: Figure, note: str) -> Figure:
    """`figure` with one more note."""
    return replace(figure, note="; ".join(filter(None, (figure.note, note))))
