"""The report of a profiler window: device time of a few steps, by class of kernel."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

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
"""`fused`: code that torch.compile generated for a CPU; the profiler reports it as one operator. `other`: dispatch, views, allocation and
unknown kernels."""

STEPS = 3
"""Enough steps to record every kernel several times. A trace of ten times as many steps opens slowly in a browser."""
MOST_STEPS = 50

FLOPS_NOTE = "FLOPs from shapes: 2mnk for matrix products, the same way for convolutions and attention (a causal mask counts half), one per element otherwise"
BYTES_NOTE = "bytes from shapes: each input is read once and each output is written once"


class OpClass(msgspec.Struct, frozen=True, omit_defaults=True):
    """One class of kernels over the window.

    `share_ratio` is the share of the time of all kernels; the shares of all classes sum to 1. `flops` and `bytes` (see FLOPS_NOTE and
    BYTES_NOTE) count only calls with known shapes, which took `counted_s` seconds; None where no call has known shapes.
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
        return self.flops / self.counted_s if self.flops and self.counted_s else None

    @property
    def bytes_per_s(self) -> float | None:
        return self.bytes / self.counted_s if self.bytes and self.counted_s else None

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte moved: the horizontal axis of a roofline."""
        return self.flops / self.bytes if self.flops and self.bytes else None


class TopOp(msgspec.Struct, frozen=True):
    """One kernel (on a CPU: one operator) with its own time in the window."""

    name: str
    op_class: OpClassName
    time_s: float
    share_ratio: float
    calls: int


class CopyKind(msgspec.Struct, frozen=True, omit_defaults=True):
    """Memory copies of one kind: H2D, D2H or D2D. `memory` is pinned or pageable for copies from or to the host."""

    kind: str
    memory: str = ""
    calls: int = 0
    bytes: float = 0.0
    time_s: float = 0.0


class Gap(msgspec.Struct, frozen=True):
    """The device was idle for `duration_s` seconds between two kernels, starting `at_s` seconds after the start of the window."""

    at_s: float
    duration_s: float
    after: str
    before: str


class ProfileReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """A profiler window over `steps` ordinary steps, which took `wall_s` under the profiler.

    `kernels` counts kernels and copies on a GPU, and operators that compute or copy on a CPU. Each missing figure has its reason in the note field.
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
