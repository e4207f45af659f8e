"""Minimum bytes between memory and the device, if each operation reads and writes each value once.

The minimum time is these bytes over the memory bandwidth (datasheet, or a copy measured on this machine). MBU is the minimum time over
the measured time. Bytes count reads plus writes, as the measured copy does.
"""

from __future__ import annotations

from dataclasses import dataclass

FP32 = 4

UPDATE_BYTES: dict[str, float] = {
    "adamw": 28,  # reads weight, gradient and two moments, writes weight and moments: 7 values of 4 bytes
    "adamw_foreach": 28,
    "adamw_fused": 28,
    "sgd_plain": 12,  # reads weight and gradient, writes weight
    "sgd": 20,  # reads weight, gradient and momentum, writes weight and momentum
    "adamw_8bit": 16 + 4 * FP32 / 256,  # moments of 1 byte, and one scale for 256 moments
}
"""Minimum bytes per parameter of one update. Unfused implementations move more bytes, because each operation reads and writes separately."""


@dataclass(frozen=True)
class StepBytes:
    """Bytes per optimizer step of one process. `weights`: read by forward and backward pass. `gradients`: written and accumulated."""

    weights: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer


def step_bytes(
    parameters: float, trained: float, optim: str, passes: int = 1, precision: str = "fp32", updated: float | None = None
) -> StepBytes:
    """Bytes of the states, without activations (`activation_bytes`). `updated`: number of parameters that this process updates; None: all trained.

    Forward and backward pass each read the weights once. In 16 bits autocast reads the fp32 weight and writes a copy that both passes
    read. Gradient accumulation repeats these reads `passes` times. The first pass writes gradients; further passes read and write them.
    """
    narrow = precision in ("bf16", "fp16")
    per_weight = FP32 + 2 + 2 + 2 if narrow else 2 * FP32
    return StepBytes(
        weights=per_weight * parameters * passes,
        gradients=FP32 * trained * (2 * passes - 1),
        optimizer=UPDATE_BYTES[optim] * (trained if updated is None else updated),
    )


def activation_bytes(saved: float, passes: int = 1) -> float:
    """Activations for the backward pass are written once and read once."""
    return 2 * saved * passes


def least_time_s(needed_bytes: float, bytes_per_s: float) -> float:
    return needed_bytes / bytes_per_s
