"""The figures of a profiler window as signals, with the names of the signals of the probe that profiles passes (`op_mix`)."""

from __future__ import annotations

from gpuconsole.model.finding import Signal
from gpuconsole.model.profile import BYTES_NOTE, OP_CLASSES, OpClassName, ProfileReport

WINDOW = "profile window"
"""The beginning of the source of these signals."""
NOT_PASSES: tuple[OpClassName, ...] = ("optimizer", "communication")
"""Classes that are no part of a forward or backward pass. The probe has none of them; a window over whole steps has."""
CONVERSIONS = ("nchwtonhwc", "nhwctonchw")
"""Parts of the names of cuDNN's kernels that convert a tensor between layouts."""


def profile_signals(report: ProfileReport) -> dict[str, Signal]:
    """`profile.*` of a window over whole steps. The share of a class of kernels is its share of the passes.

    Bytes are per step. `profile.layout_ratio`: the share of the passes in kernels that only convert between NCHW and NHWC. The report lists
    the longest kernels by name, so a conversion that is not listed takes less than the last of them.
    """
    source = f"{WINDOW}, {report.steps} steps: {report.clock}"
    classes = {op_class.name: op_class for op_class in report.classes}
    passes = 1 - sum(classes[name].share_ratio for name in NOT_PASSES if name in classes)
    if passes <= 0:
        return {}
    shares = {name: classes[name].share_ratio / passes if name in classes and name not in NOT_PASSES else 0.0 for name in OP_CLASSES}
    signals = {f"profile.{name}_ratio": Signal(share, "ratio", f"{source}; share of the passes") for name, share in shares.items()}
    converted = sum(op.share_ratio for op in report.top if any(part in op.name.lower() for part in CONVERSIONS))
    signals["profile.layout_ratio"] = Signal(converted / passes, "ratio", f"{source}; kernels that convert the layout, share of the passes")
    elementwise = classes.get("elementwise")
    if elementwise is not None and elementwise.bytes:
        signals["profile.elementwise_bytes"] = Signal(elementwise.bytes / report.steps, "B", f"{source}; per step, {BYTES_NOTE}")
    if elementwise is not None and elementwise.bytes_per_s:
        signals["profile.elementwise_bytes_per_s"] = Signal(elementwise.bytes_per_s, "B/s", f"{source}; {BYTES_NOTE}")
    signals["profile.busy_ratio"] = Signal(report.busy_ratio, "ratio", source)
    signals["profile.launches_per_s"] = Signal(report.kernels_per_s, "1/s", source)
    if report.mean_kernel_s is not None:
        signals["profile.mean_kernel_s"] = Signal(report.mean_kernel_s, "s", source)
    if report.tensor_core_ratio is not None:
        signals["profile.tensor_core_ratio"] = Signal(report.tensor_core_ratio, "ratio", f"{source}; {report.tensor_core_note}")
    return signals
