"""A profiler window: device time by kernel class, the longest kernels, copies, gaps and the
trace."""

from __future__ import annotations

from gpuconsole.model import units
from gpuconsole.model.profile import (
    BYTES_NOTE,
    FLOPS_NOTE,
    CopyKind,
    OpClass,
    ProfileReport,
    Stalls,
    TopOp,
)
from gpuconsole.model.run import Run
from gpuconsole.model.snapshot import Environment
from gpuconsole.report.cells import Row, beside, blank, fill, line
from gpuconsole.report.page import paragraph
from gpuconsole.report.parts import (
    BLANK,
    Column,
    Part,
    Report,
    Table,
    heading,
    labelled,
    lay_out,
    text,
)
from gpuconsole.report.run.models import Roof, paint_roofline, roof_of
from gpuconsole.session.api import View
from gpuconsole.session.facts import processes

WIDE = 110
CHART_ROWS = 18
WIDE_CHART_ROWS = 22
BAR = 24
TOP = 10
OTHERS_WAIT = "The other processes wait for it once, while the profiler starts: 1 to 3 s on a GPU."
OPEN_AT = "open the file at https://ui.perfetto.dev (Open trace file)"


def profile_report(run: Run, environment: Environment | None = None) -> Report:
    """The whole report for the terminal. Empty if the run has no profile. `environment`: the
    machine of the run, whose peaks kernels are compared with."""
    report = run.profile
    if report is None:
        return []
    roof = roof_of(run, environment.devices, environment) if environment is not None else None
    return [
        *_window(report, run),
        _classes(report),
        BLANK,
        *_longest(report, roof),
        BLANK,
        *_rest(report),
    ]


def paint_profile(view: View, width: int) -> list[Row]:
    """All rows of the profile screen, with a roofline chart."""
    run = view.run
    report = run.profile if run else None
    if run is None or report is None:
        return _nothing(view, run, width)
    rows = [*lay_out(_window(report, run), width), blank(width)]
    roof = roof_of(run, view.devices, view.environment)
    classes: Report = [_classes(report)]
    if width >= WIDE:
        left, right = width // 2 - 2, width - width // 2
        table, chart = (
            lay_out(classes, left),
            paint_roofline(report.classes, roof, right, WIDE_CHART_ROWS),
        )
        height = max(len(table), len(chart))
        rows += beside(
            fill(table, left, height), [line(2) for _ in range(height)], fill(chart, right, height)
        )
    else:
        rows += [
            *lay_out(classes, width),
            blank(width),
            *paint_roofline(report.classes, roof, width, CHART_ROWS),
        ]
    return [*rows, blank(width), *lay_out([*_longest(report, roof), BLANK, *_rest(report)], width)]


def _nothing(view: View, run: Run | None, width: int) -> list[Row]:
    if view.probing == "profiler":
        return paragraph(
            (
                "Profiling: the profiler records a few ordinary steps. Then its trace is analysed"
                " while the training continues."
            ),
            width,
        )
    if run is None:
        return paragraph(
            "Nothing is running: press escape, then s. With a run, f records a profiler window.",
            width,
        )
    if "profile" in run.unavailable:
        return paragraph(f"No profile: {run.unavailable['profile']}", width, "alert")
    hint = "press f to profile a few steps" if run.state == "running" else "this run has no profile"
    return paragraph(f"No profile yet: {hint}.", width)


def paint_choice(rank: int, count: int, width: int) -> list[Row]:
    """Which process of several the next window is of, and what it costs the others."""
    which = (
        f"Process {rank} of {count} is selected. The left and right keys select another process. f"
        " profiles a few steps of the selected process."
    )
    return paragraph(f"{which} {OTHERS_WAIT}", width, "dim")


def _window(report: ProfileReport, run: Run) -> Report:
    usual = run.summary.step_time_s
    without = f" ({units.duration(usual.p50).strip()} without)" if usual else ""
    each = units.duration(report.wall_s / report.steps).strip()
    busy = units.percent(report.busy_ratio).strip()
    process = "" if report.rank is None else f", process {report.rank} of {processes(run)}"
    return [
        text(
            (
                f"profile of run {run.id}{process}: {report.steps} steps of {each} under the"
                f" profiler{without}, device busy {busy}"
            ),
            "title",
        ),
        text(report.clock, "dim"),
    ]


def _classes(report: ProfileReport) -> Table:
    """A row for each class of kernels, with a bar."""
    largest = max(kernels.share_ratio for kernels in report.classes) or 1.0
    columns = (
        Column("class"), Column("", least=4, drop=9), Column("share", ">"), Column("a step", ">"),
        Column("calls", ">", drop=3), Column("FLOP/s", ">", drop=1),
        Column("bytes/s", ">", drop=2), Column("FLOP/byte", ">", drop=4),
    )  # fmt: skip
    return Table(
        columns,
        [
            _class_cells(kernels, kernels.share_ratio / largest, report.steps)
            for kernels in report.classes
        ],
    )


def _class_cells(kernels: OpClass, part: float, steps: int) -> list[tuple[str, str]]:
    bar = "█" * max(1, round(part * BAR)) if kernels.share_ratio >= 0.005 else ""
    intensity = f"{units.plain(kernels.intensity)}" if kernels.intensity else units.NA
    return [
        (kernels.name, ""),
        (bar, "accent"),
        (units.quantity(kernels.share_ratio, "ratio"), "title"),
        (units.duration(kernels.time_s / steps), ""),
        (f"{kernels.calls / steps:.0f}", "dim"),
        (units.quantity(kernels.flops_per_s, "FLOP/s") if kernels.flops_per_s else units.NA, "dim"),
        (
            units.quantity(kernels.bytes_per_s, "bytes/s") if kernels.bytes_per_s else units.NA,
            "dim",
        ),
        (intensity, "dim"),
    ]


def _longest(report: ProfileReport, roof: Roof | None = None) -> list[Part]:
    """A row for each of the longest kernels. `roof`: the peaks of the device, by which the reached
    share is known."""
    has_blocks, what = (
        any(op.blocks_per_sm is not None for op in report.top),
        "operator" if report.stalls is None else "kernel",
    )
    columns = [
        Column("share", ">"), Column("a step", ">"), Column(what, least=28),
        Column("class", drop=2), Column("FLOP/s", ">", drop=4), Column("bytes/s", ">", drop=5),
    ]  # fmt: skip
    columns += [Column("of peak", ">", drop=1)] if roof is not None else []
    columns += (
        [Column("blocks/SM", ">", drop=3), Column("launched by", drop=6)] if has_blocks else []
    )
    rows = [_kernel_cells(op, report.steps, roof, has_blocks) for op in report.top[:TOP]]
    return [heading(f"Longest {what}s"), Table(columns, rows)]


def _kernel_cells(
    op: TopOp, steps: int, roof: Roof | None, has_blocks: bool
) -> list[tuple[str, str]]:
    cells = [
        (units.quantity(op.share_ratio, "ratio"), "accent"),
        (f"{op.calls / steps:.0f}x", "accent"),
        (op.name, ""),
        (op.op_class, "dim"),
        (units.quantity(op.flops_per_s, "FLOP/s") if op.flops_per_s else units.NA, "dim"),
        (units.quantity(op.bytes_per_s, "bytes/s") if op.bytes_per_s else units.NA, "dim"),
    ]
    if roof is not None:
        reached = of_peak(op, roof)
        cells.append((units.NA if reached is None else units.percent(reached).strip(), ""))
    if has_blocks:
        cells += [
            (units.NA if op.blocks_per_sm is None else f"{op.blocks_per_sm:.1f}", "dim"),
            (op.launched_by or units.NA, "dim"),
        ]
    return cells


LIMITED_BY_ARITHMETIC = ("gemm", "convolution", "attention")
"""Classes of kernels for which the peak of arithmetic is a limit, also where the bandwidth of the
memory is not known."""


def of_peak(op: TopOp, roof: Roof) -> float | None:
    """Return the rate of a kernel over the highest rate that the device can reach at the kernel's
    FLOPs per byte (the roofline). None where the FLOPs and bytes of the kernel, or the peak, are
    not known."""
    if not op.bytes_per_s or (
        roof.bytes_per_s is None and op.op_class not in LIMITED_BY_ARITHMETIC
    ):
        return None
    if op.flops_per_s and op.flops and op.bytes:
        return op.flops_per_s / roof.at(op.flops / op.bytes)
    return op.bytes_per_s / roof.bytes_per_s if roof.bytes_per_s else None


def _rest(report: ProfileReport) -> Report:
    ratio, mean = report.tensor_core_ratio, report.mean_kernel_s
    each = f", {units.duration(mean).strip()} each on average" if mean is not None else ""
    rows: Report = [
        labelled("launches", f"{units.quantity(report.kernels_per_s, 'kernels/s')}{each}")
    ]
    rows.append(
        labelled("tensor cores", f"{units.percent(ratio).strip()}: {report.tensor_core_note}")
    )
    if report.attention:
        rows.append(
            labelled("attention", f"torch's implementation: {', then '.join(report.attention)}")
        )
    rows.append(
        labelled("copies", "; ".join(map(_copy, report.copies)) or "none between host and device")
    )
    if report.gaps:
        gaps = [
            f"{units.duration(gap.duration_s).strip()} between {gap.after} and {gap.before}"
            for gap in report.gaps[:3]
        ]
        rows.append(labelled("longest gaps", "; ".join(gaps)))
    if report.stalls is not None:
        rows.append(labelled("waits", _waits(report.stalls, max(1, report.steps))))
    if report.trace:
        rows += [labelled("trace", report.trace), labelled("", OPEN_AT, indent=14)]
    rows += [labelled("note", note) for note in report.notes]
    return [*rows, labelled("counted", f"{FLOPS_NOTE}; {BYTES_NOTE}", "dim")]


def _waits(stalls: Stalls, steps: int) -> str:
    """How long the GPU is idle after the host has waited for it, and where the host waits."""
    if not stalls.syncs:
        return "the host does not wait for the GPU"
    idle = units.duration(stalls.after_sync_s / steps).strip()
    where = f", mostly in {stalls.where}" if stalls.where else ""
    return (
        f"the host waits for the GPU {stalls.syncs / steps:.0f}x a step; the GPU is then idle for"
        f" {idle} a step{where}"
    )


def _copy(copy: CopyKind) -> str:
    rate = f", {units.quantity(copy.bytes / copy.time_s, 'bytes/s')}" if copy.time_s else ""
    kind = " ".join(filter(None, (copy.kind, copy.memory)))
    return (
        f"{kind} {copy.calls}x {units.size_bytes(copy.bytes).strip()} in"
        f" {units.duration(copy.time_s).strip()}{rate}"
    )
