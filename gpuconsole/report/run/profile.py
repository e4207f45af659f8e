"""The profile screen: where device time goes by kernel class, a roofline, what ran longest, copies, gaps, the trace."""

from __future__ import annotations

from gpuconsole.model.profile import BYTES_NOTE, FLOPS_NOTE, OP_CLASSES, CopyKind, OpClass, ProfileReport
from gpuconsole.model.run import Run
from gpuconsole.report import units as format
from gpuconsole.report.cells import Row, beside, blank, fill, fit, line
from gpuconsole.report.page import heading, labelled, paragraph
from gpuconsole.report.run.roofline import paint_roofline, roof_of
from gpuconsole.session.api import View

WIDE = 110
CHART_ROWS = 18
WIDE_CHART_ROWS = 22
NAME = max(len(name) for name in OP_CLASSES)
FIGURES = 7 + 8 + 8
"""Columns for the share, the time and the FLOP/s of a class."""
OPEN_AT = "to be opened at https://ui.perfetto.dev"


def paint_profile(view: View, width: int) -> list[Row]:
    """All rows, for a page that scrolls."""
    run = view.run
    report = run.profile if run else None
    if run is None or report is None:
        return _nothing(view, run, width)
    rows = [*_window(report, run, width), blank(width)]
    roof = roof_of(run, view.devices, view.environment)
    if width >= WIDE:
        left, right = width // 2 - 2, width - width // 2
        classes = [*_classes(report, left), blank(left), *_longest(report, left)]
        chart = paint_roofline(report.classes, roof, right, WIDE_CHART_ROWS)
        height = max(len(classes), len(chart))
        rows += beside(fill(classes, left, height), [line(2) for _ in range(height)], fill(chart, right, height))
    else:
        chart = paint_roofline(report.classes, roof, width, CHART_ROWS)
        rows += [*_classes(report, width), blank(width), *chart, blank(width), *_longest(report, width)]
    return [*rows, blank(width), *_rest(report, width)]


def _nothing(view: View, run: Run | None, width: int) -> list[Row]:
    if view.probing == "profiler":
        return paragraph("Profiling: a few ordinary steps under the profiler, then its trace is read beside the training.", width)
    if run is None:
        return paragraph("Nothing is running: press escape and s, then f here takes a profiler window.", width)
    if "profile" in run.unavailable:
        return paragraph(f"No profile: {run.unavailable['profile']}", width, "alert")
    what = "press f to profile a few steps" if run.state == "running" else "this run has none"
    return paragraph(f"No profile yet: {what}.", width)


def _window(report: ProfileReport, run: Run, width: int) -> list[Row]:
    usual = run.summary.step_time_s
    without = f" ({format.duration(usual.p50).strip()} without)" if usual else ""
    each = format.duration(report.wall_s / report.steps).strip()
    text = (
        f"run {run.id}: {report.steps} steps of {each} under the profiler{without}, device busy {format.percent(report.busy_ratio).strip()}"
    )
    return [*paragraph(text, width, "title"), line(width, (report.clock, "dim"))]


def _classes(report: ProfileReport, width: int) -> list[Row]:
    """A bar for each class; the longest as wide as there is room."""
    room = max(4, width - NAME - FIGURES - 1)
    rows = [line(width, (f"{'class':<{NAME}} {'':<{room}} {'share':>6} {'a step':>7} {'FLOP/s':>7}", "dim"))]
    largest = max(one.share_ratio for one in report.classes) or 1.0
    return rows + [_class(one, one.share_ratio / largest, room, report.steps, width) for one in report.classes]


def _class(one: OpClass, part: float, room: int, steps: int, width: int) -> Row:
    bar = "█" * max(1, round(part * room)) if one.share_ratio >= 0.005 else ""
    flops = format.si(one.flops_per_s, "").strip() if one.flops_per_s else format.NA
    return line(
        width,
        (f"{one.name:<{NAME}} ", ""),
        (f"{bar:<{room}}", "accent"),
        (f" {one.share_ratio:>6.1%}", "title"),
        (f" {format.duration(one.time_s / steps):>7}", ""),
        (f" {flops:>7}", "dim"),
    )


def _longest(report: ProfileReport, width: int, most: int = 10) -> list[Row]:
    rows = [heading("Longest, with calls a step", width)]
    for op in report.top[:most]:
        figures = f"{op.share_ratio:>6.1%} {op.calls / report.steps:>6.0f}x "
        rows.append(
            line(width, (figures, "accent"), (fit(op.name, max(8, width - len(figures) - NAME - 1)), ""), (f" {op.op_class}", "dim"))
        )
    return rows


def _rest(report: ProfileReport, width: int) -> list[Row]:
    ratio, mean = report.tensor_core_ratio, report.mean_kernel_s
    each = f", {format.duration(mean).strip()} each on average" if mean is not None else ""
    rows = labelled("launches", f"{format.rate(report.kernels_per_s, 0)} a second{each}", width, 14)
    rows += labelled(
        "tensor cores", f"{format.percent(ratio).strip() if ratio is not None else format.NA}: {report.tensor_core_note}", width, 14
    )
    rows += labelled("copies", "; ".join(map(_copy, report.copies)) or "none between host and device", width, 14)
    if report.gaps:
        gaps = [f"{format.duration(gap.duration_s).strip()} between {gap.after} and {gap.before}" for gap in report.gaps[:3]]
        rows += labelled("longest gaps", "; ".join(gaps), width, 14)
    if report.trace:
        rows += labelled("trace", report.trace, width, 14) + labelled("", OPEN_AT, width, 14)
    for note in report.notes:
        rows += labelled("note", note, width, 14)
    rows += labelled("counted", f"{FLOPS_NOTE}; {BYTES_NOTE}", width, 14, "dim")
    return rows


def _copy(copy: CopyKind) -> str:
    rate = f", {format.si(copy.bytes / copy.time_s, 'B/s').strip()}" if copy.time_s else ""
    kind = " ".join(filter(None, (copy.kind, copy.memory)))
    return f"{kind} {copy.calls}x {format.size_bytes(copy.bytes).strip()} in {format.duration(copy.time_s).strip()}{rate}"
