"""Bytes that must move between memory and the device, at least: each value read and written once by each that needs it.

What is needed over what the memory does (its datasheet, or a copy measured on this machine) is the least time; over the time
that was taken it is MBU. Bytes are read plus written, as a measured copy counts them too.
"""

from __future__ import annotations

from dataclasses import dataclass

FP32 = 4

UPDATE_BYTES: dict[str, float] = {
    "adamw": 28,  # reads weight, gradient and two moments, writes weight and moments: 7 values of 4 bytes
    "adamw_foreach": 28,
    "adamw_fused": 28,
    "sgd": 20,  # reads weight, gradient and momentum, writes weight and momentum
    "adamw_8bit": 16 + 4 * FP32 / 256,  # moments of 1 byte, and a scale for each 256 of them
}
"""Least bytes per parameter of one update. Unfused implementations move more: each operation reads and writes for itself."""


@dataclass(frozen=True)
class StepBytes:
    """Per optimizer step of one process. `weights`: read by forward and backward pass; `gradients`: written, and added up."""

    weights: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer


def step_bytes(
    parameters: float, trained: float, optim: str, passes: int = 1, precision: str = "fp32", updated: float | None = None
) -> StepBytes:
    """States only; activations come on top (`activation_bytes`). `updated`: parameters that this process updates, if not all trained.

    Weights are read once forward and once backward. In 16 bits autocast reads the fp32 weight, writes a copy, and both passes
    read that; with gradient accumulation, `passes` times. Gradients are written by the first pass, read and written by the others.
    """
    narrow = precision in ("bf16", "fp16")
    per_weight = FP32 + 2 + 2 + 2 if narrow else 2 * FP32
    return StepBytes(
        weights=per_weight * parameters * passes,
        gradients=FP32 * trained * (2 * passes - 1),
        optimizer=UPDATE_BYTES[optim] * (trained if updated is None else updated),
    )


def activation_bytes(saved: float, passes: int = 1) -> float:
    """What is kept for the backward pass is written once and read once."""
    return 2 * saved * passes


def least_time_s(needed_bytes: float, bytes_per_s: float) -> float:
    return needed_bytes / bytes_per_s
