"""The report of a profiler window: device time of a few steps, by class of kernel."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from gpuconsole.model.finding import Signal

OpClassName = Literal[
    "gemm",
    "attention",
    "convolution",
    "elementwise",
    "normalization",
    "reduction",
    "embedding",
    "optimizer",
    "copy",
    "communication",
    "fused",
    "other",
]
OP_CLASSES: tuple[OpClassName, ...] = get_args(OpClassName)
"""`fused`: code that torch.compile generated for a CPU; the profiler reports it as one operator.
`other`: dispatch, views, allocation and unknown kernels."""

STEPS = 3
"""Enough steps to record every kernel several times. A trace of ten times as many steps opens
slowly in a browser."""
MAX_STEPS = 50

FLOPS_NOTE = (
    "FLOPs from shapes: 2mnk for matrix products, the same way for convolutions and attention (a"
    " causal mask counts half), one per element otherwise"
)
BYTES_NOTE = "bytes from shapes: each input is read once and each output is written once"


def _rate(amount: float | None, seconds: float) -> float | None:
    """Return an amount per second; None where either is 0 or not known."""
    return amount / seconds if amount and seconds else None


class OpClass(msgspec.Struct, frozen=True, omit_defaults=True):
    """One class of kernels over the window.

    `share_ratio` is the share of the time of all kernels; the shares of all classes sum to 1.
    `flops` and `bytes` (see FLOPS_NOTE and BYTES_NOTE) count only calls with known shapes, which
    took `counted_s` seconds; None where no call has known shapes.
    """

    name: OpClassName
    share_ratio: float
    time_s: float
    calls: int
    flops: float | None = None
    bytes: float | None = None
    counted_s: float = 0.0

    @property
    def flops_per_s(self) -> float | None:
        return _rate(self.flops, self.counted_s)

    @property
    def bytes_per_s(self) -> float | None:
        return _rate(self.bytes, self.counted_s)

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte moved: the horizontal axis of a roofline."""
        return self.flops / self.bytes if self.flops and self.bytes else None


class TopOp(msgspec.Struct, frozen=True, omit_defaults=True):
    """One kernel (on a CPU: one operator) with its own time in the window.

    `flops`, `bytes` and `counted_s`: as in OpClass. `launched_by`: the operator that launches it
    most often. `blocks_per_sm`: blocks of its grid over the multiprocessors of the GPU, and
    `occupancy_ratio`: warps that can be resident over those that a multiprocessor holds, both means
    over its calls as CUPTI reports them; None on a CPU.
    """

    name: str
    op_class: OpClassName
    time_s: float
    share_ratio: float
    calls: int
    flops: float | None = None
    bytes: float | None = None
    counted_s: float = 0.0
    launched_by: str = ""
    blocks_per_sm: float | None = None
    occupancy_ratio: float | None = None

    @property
    def flops_per_s(self) -> float | None:
        return _rate(self.flops, self.counted_s)

    @property
    def bytes_per_s(self) -> float | None:
        return _rate(self.bytes, self.counted_s)


class CopyKind(msgspec.Struct, frozen=True, omit_defaults=True):
    """Memory copies of one kind: H2D, D2H or D2D. `memory` is pinned or pageable for copies from or
    to the host."""

    kind: str
    memory: str = ""
    calls: int = 0
    bytes: float = 0.0
    time_s: float = 0.0


class Gap(msgspec.Struct, frozen=True):
    """The device was idle for `duration_s` seconds between two kernels, starting `at_s` seconds
    after the start of the window."""

    at_s: float
    duration_s: float
    after: str
    before: str


class Stalls(msgspec.Struct, frozen=True):
    """The work of a GPU from its first kernel or copy in the window to its last. `gaps_s`: neither
    runs. `after_sync_s`: the part of the gaps that begins when a synchronisation returns. `syncs`
    is a count. `where`: the operator with most of that time, and the line of the program where it
    is known; empty where both are unknown.
    """

    busy_s: float
    gaps_s: float
    after_sync_s: float
    syncs: int
    where: str


class ProfileReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """A profiler window over `steps` ordinary steps, which took `wall_s` under the profiler.

    `kernels` counts kernels and copies on a GPU, and operators that compute or copy on a CPU. Each
    missing figure has its reason in the note field. `pass_classes`: the classes of forward and
    backward passes, with shares of their time: without the optimizer, without copies between host
    and device, and without what a DataLoader computes in the training thread. `stalls`: on a GPU
    only. `attention`: the implementations of torch's scaled_dot_product_attention that ran, the
    most frequent first. `rank`: the process that was profiled, of a job of several.
    """

    steps: int
    wall_s: float
    clock: str
    busy_s: float
    busy_ratio: float
    kernels: int
    kernels_per_s: float
    mean_kernel_s: float | None
    classes: list[OpClass]
    top: list[TopOp]
    tensor_core_ratio: float | None = None
    tensor_core_note: str = ""
    copies: list[CopyKind] = []
    gaps: list[Gap] = []
    trace: str = ""
    notes: list[str] = []
    pass_classes: list[OpClass] = []
    stalls: Stalls | None = None
    attention: list[str] = []
    rank: int | None = None


# --- the signals that rules read ------------------------------------------------------------------

OP_MIX, SYNC_GAPS = "op_mix", "sync_gaps"
"""The probes that a window on ordinary steps answers; the second one on a GPU."""
CONVERSIONS = ("nchwtonhwc", "nhwctonchw")
"""Parts of the names of cuDNN's kernels that convert a tensor between layouts."""


def window_signals(report: ProfileReport) -> dict[str, Signal]:
    """The signals of a profiler window on ordinary steps: those of the probes op_mix and, on a GPU,
    sync_gaps."""
    source = f"profile window of {report.steps} step{'' if report.steps == 1 else 's'}"
    signals = pass_signals(report, source, "step")
    return (
        signals
        if report.stalls is None
        else signals
        | layout_signals(report, source)
        | stall_signals(report.stalls, report.steps, source)
    )


def layout_signals(report: ProfileReport, source: str) -> dict[str, Signal]:
    """`profile.layout_ratio`: the share of the passes in kernels of cuDNN that only convert a
    tensor between NCHW and NHWC. The report names the longest kernels, so a conversion that it does
    not name takes less than the last of them."""
    passes_s = sum(op_class.time_s for op_class in report.pass_classes)
    if not passes_s:
        return {}
    converting_s = sum(
        op.time_s for op in report.top if any(part in op.name.lower() for part in CONVERSIONS)
    )
    return {
        "profile.layout_ratio": Signal(
            converting_s / passes_s,
            "ratio",
            f"{source}: kernels that convert the layout, share of the passes",
        )
    }


def pass_signals(report: ProfileReport, source: str, each: str) -> dict[str, Signal]:
    """`profile.*`: the shares of the classes in forward and backward passes, and figures of the
    whole window. `source`: what was profiled. `each`: what `report.steps` counts, a step or a pass.
    Empty where the report has no classes of the passes, as in older recordings."""
    if not report.pass_classes:
        return {}
    source = f"{source}: {report.clock}"
    classes = {op_class.name: op_class for op_class in report.pass_classes}
    signals = {
        f"profile.{name}_ratio": Signal(
            classes[name].share_ratio if name in classes else 0.0, "ratio", source
        )
        for name in OP_CLASSES
    }
    elementwise = classes.get("elementwise")
    moved = (elementwise.bytes or 0.0) if elementwise else 0.0
    signals["profile.elementwise_bytes"] = Signal(
        moved / max(1, report.steps), "B", f"{source}; per {each}, {BYTES_NOTE}"
    )
    if elementwise is not None and elementwise.bytes_per_s:
        signals["profile.elementwise_bytes_per_s"] = Signal(
            elementwise.bytes_per_s, "B/s", f"{source}; {BYTES_NOTE}"
        )
    signals["profile.busy_ratio"] = Signal(report.busy_ratio, "ratio", source)
    signals["profile.launches_per_s"] = Signal(report.kernels_per_s, "1/s", source)
    if report.mean_kernel_s is not None:
        signals["profile.mean_kernel_s"] = Signal(report.mean_kernel_s, "s", source)
    if report.tensor_core_ratio is not None:
        signals["profile.tensor_core_ratio"] = Signal(
            report.tensor_core_ratio, "ratio", f"{source}; {report.tensor_core_note}"
        )
    return signals


def stall_signals(stalls: Stalls, steps: int, source: str) -> dict[str, Signal]:
    """The signals of probe P4, for each of `steps` steps. `source`: what was profiled."""
    source, steps = f"{source}, per step", max(1, steps)
    where = f", mostly in {stalls.where}" if stalls.where else ""
    return {
        "probe.sync_gaps_s": Signal(
            stalls.after_sync_s / steps,
            "s",
            f"{source}: gaps that begin with a synchronisation's return{where}",
        ),
        "probe.gaps_s": Signal(stalls.gaps_s / steps, "s", f"{source}: no kernel and no copy runs"),
        "probe.busy_s": Signal(stalls.busy_s / steps, "s", f"{source}: a kernel or a copy runs"),
        "probe.syncs_per_step": Signal(stalls.syncs / steps, "", source),
    }
