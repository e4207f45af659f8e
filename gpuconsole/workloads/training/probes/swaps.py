"""Probes that run a pass in another way (P5)."""

from __future__ import annotations

import statistics
from contextlib import nullcontext

import torch

from gpuconsole.agent.loop import Signals
from gpuconsole.agent.probes import (
    ProbeError,
    half_width,
    refuse_compiled,
    rounds,
    timed_pass,
    untouched,
)
from gpuconsole.agent.protocol import Knobs, Signal
from gpuconsole.workloads.training.loop import TrainingLoop

# --- a pass in another way (P5) -------------------------------------------------------------------
# Both sides run in turn, so that other load on the machine affects both. Nothing of the job
# changes.

SWAP_BUDGET_S = 1.0
MIN_SWAPS = 2
MAX_SWAPS = 30


def swap_precision(subject: TrainingLoop) -> Signals:
    """P5: a pass at the present precision compared with a pass in bf16 and, on a GPU, in TF32.

    `bf16_native` 0: the device has no bf16 instructions.
    """
    precision = subject.knobs.get("precision")
    if precision not in ("fp32", "tf32"):
        raise ProbeError(
            f"precision is {precision} already"
            if precision
            else "the precision of the model is not known"
        )
    native, how = native_bf16(subject.device)
    signals = {"probe.precision_bf16_native": Signal(float(native), "", how)}
    if native:
        signals |= speedup(subject, {"precision": "bf16"}, "precision_bf16")
    if precision == "fp32" and has_tf32(subject.device):
        signals |= speedup(subject, {"precision": "tf32"}, "precision_tf32")
    return signals


def swap_layout(subject: TrainingLoop) -> Signals:
    """P5: a pass in NCHW compared with a pass in NHWC. The weights are converted each time, outside
    of the timed part."""
    if subject.knobs.get("channels_last", True):
        raise ProbeError("the layout is NHWC already, or there are no convolutions")
    if subject.world.size > 1:
        raise ProbeError("several processes share the weights")
    return speedup(subject, {"channels_last": True}, "channels_last")


def speedup(
    subject: TrainingLoop, changes: Knobs, label: str, contention_free: bool = True
) -> Signals:
    """Time of forward and backward under the present knobs over their time with `changes`."""
    refuse_compiled(subject.knobs, "another value")
    batch = subject.batch
    ratios: list[float] = []
    with untouched(subject):
        for side in (nullcontext(), subject.under(changes)):
            with side:
                timed_pass(subject, batch)
        for _ in rounds(subject, SWAP_BUDGET_S, MIN_SWAPS, MAX_SWAPS):
            present = timed_pass(subject, batch, contention_free)
            with subject.under(changes):
                ratios.append(present / timed_pass(subject, batch, contention_free))
    source = (
        "probe P5: passes in turn, "
        f"{', '.join(f'{name}={value}' for name, value in changes.items())},"
        f" n={len(ratios)}{subject.pass_note}"
    )
    return {
        f"probe.{label}_speedup": Signal(statistics.median(ratios), "x", source),
        f"probe.{label}_spread": Signal(
            half_width(ratios), "x", "probe P5: 2 standard errors of that median"
        ),
    }


def native_bf16(device: torch.device) -> tuple[bool, str]:
    """Whether the device has bf16 instructions, and the source of that. oneDNN also accepts bf16
    where it emulates it, at a quarter of the speed."""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return major >= 8, f"compute capability {major}.{minor}"
    native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return (
        native,
        f"this CPU has {'' if native else 'no '}bf16 instructions (CPUID: AVX512-BF16, AMX)",
    )


def has_tf32(device: torch.device) -> bool:
    """Whether the device is a GPU with TF32: Ampere and newer."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
