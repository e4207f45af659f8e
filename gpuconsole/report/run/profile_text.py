"""A profiler window as plain text."""

from __future__ import annotations

from gpuconsole.model.profile import BYTES_NOTE, FLOPS_NOTE, CopyKind, OpClass, ProfileReport
from gpuconsole.model.text import visible
from gpuconsole.report.quantities import seconds, si

TOP = 8
NA = "n/a"
HOW_TO_OPEN = "open it at https://ui.perfetto.dev (Open trace file)"


def profile_lines(report: ProfileReport, usual_step_s: float | None) -> list[str]:
    """The window, a table of its kernel classes, and what ran longest. `usual_step_s`: a step without the profiler."""
    step_s = report.wall_s / report.steps
    usual = f" ({seconds(usual_step_s)} without)" if usual_step_s else ""
    lines = [
        f"profile: {report.steps} steps, {seconds(step_s)} each under the profiler{usual}, device busy {report.busy_ratio:.1%}",
        f"  {report.clock}",
        f"  {'class':<14}{'share':>7}{'a step':>10}{'calls':>8}{'FLOP/s':>14}{'bytes/s':>12}{'FLOP/byte':>11}",
        *(f"  {_class_line(one, report.steps)}" for one in report.classes),
        f"  {FLOPS_NOTE}",
        f"  {BYTES_NOTE}",
        "  longest:",
    ]
    lines += [f"    {op.share_ratio:>6.1%}  {op.calls:>5}x  {op.op_class:<13}  {visible(op.name)}" for op in report.top[:TOP]]
    mean = seconds(report.mean_kernel_s) if report.mean_kernel_s is not None else NA
    tensor = f"{report.tensor_core_ratio:.1%}, {report.tensor_core_note}" if report.tensor_core_ratio is not None else None
    lines += [
        f"  launches      {si(report.kernels_per_s, 'kernels/s')}, {mean} each on average",
        f"  tensor cores  {tensor or f'{NA}: {report.tensor_core_note}'}",
        f"  copies        {'; '.join(map(_copy_text, report.copies)) or 'none between host and device'}",
    ]
    if report.gaps:
        gap = report.gaps[0]
        lines.append(f"  longest gap   {seconds(gap.duration_s)}, between {visible(gap.after)} and {visible(gap.before)}")
    lines += [f"  {visible(note)}" for note in report.notes]
    if report.trace:
        lines.append(f"  trace         {visible(report.trace)}: {HOW_TO_OPEN}")
    return lines


def _class_line(one: OpClass, steps: int) -> str:
    flops = si(one.flops_per_s, "FLOP/s") if one.flops_per_s else NA
    moved = si(one.bytes_per_s, "B/s") if one.bytes_per_s else NA
    intensity = f"{one.intensity:.3g}" if one.intensity else NA
    each = seconds(one.time_s / steps)
    return f"{one.name:<14}{one.share_ratio:>7.1%}{each:>10}{one.calls / steps:>8.0f}{flops:>14}{moved:>12}{intensity:>11}"


def _copy_text(copy: CopyKind) -> str:
    rate = f", {si(copy.bytes / copy.time_s, 'B/s')}" if copy.time_s else ""
    return " ".join(filter(None, (copy.kind, copy.memory))) + f" {copy.calls}x {si(copy.bytes, 'B')} in {seconds(copy.time_s)}{rate}"
