"""What a profiler window showed: where a few steps' device time went, kernel class by kernel class."""

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
"""`fused`: code that torch.compile generated for a CPU, which the profiler sees as one piece. `other`: dispatch, views, allocation, and what no class knows."""

STEPS = 3
"""Enough to see every kernel several times; ten times as many make a trace that a browser is slow to open."""
MOST_STEPS = 50

FLOPS_NOTE = "FLOPs from shapes: matrix products 2mnk, convolutions and attention likewise (a causal mask counted as half), everything else one per element"
BYTES_NOTE = "bytes estimated from shapes: every input read once and every output written once"


class OpClass(msgspec.Struct, frozen=True, omit_defaults=True):
    """One class of kernels over the window.

    `share_ratio` is of all kernels' time; the classes' shares sum to 1. `flops` and `bytes` (see FLOPS_NOTE, BYTES_NOTE) are of the calls whose
    shapes are known, which took `counted_s`; None where they are of none.
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
    """One kernel (on a CPU: one operator), by its own time over the window."""

    name: str
    op_class: OpClassName
    time_s: float
    share_ratio: float
    calls: int


class CopyKind(msgspec.Struct, frozen=True, omit_defaults=True):
    """Memory copies of one kind: H2D, D2H or D2D; `memory` is pinned or pageable where the host is a side."""

    kind: str
    memory: str = ""
    calls: int = 0
    bytes: float = 0.0
    time_s: float = 0.0


class Gap(msgspec.Struct, frozen=True):
    """The device did nothing for `duration_s`, from `at_s` after the window's begin, between these two kernels."""

    at_s: float
    duration_s: float
    after: str
    before: str


class ProfileReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """A profiler window over `steps` ordinary steps, which took `wall_s` under the profiler.

    `kernels` counts kernels and copies on a GPU, and on a CPU the operators that compute or copy. What is n/a has its reason in the note beside it.
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
