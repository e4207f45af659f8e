"""The predictions of the analytical models next to the measurements, the processes of a run, and
the roofline of its kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from gpuconsole.diagnosis.models import roofline
from gpuconsole.diagnosis.models.run import MISSING
from gpuconsole.model import units
from gpuconsole.model.figures import Figure
from gpuconsole.model.machine import Device
from gpuconsole.model.profile import OpClass, OpClassName
from gpuconsole.model.run import PHASES, Rank, Run
from gpuconsole.model.snapshot import Environment
from gpuconsole.model.text import visible
from gpuconsole.report.cells import Row, Segment, blank, fill, line, row_width
from gpuconsole.report.charts import chart_rows, empty_figure
from gpuconsole.report.page import Lines, paragraph, text_lines
from gpuconsole.report.parts import (
    BLANK,
    Column,
    Line,
    Report,
    Table,
    heading,
    labelled,
    lay_out,
    text,
)
from gpuconsole.session.api import View
from gpuconsole.session.figures.peak import flops_peak

# --- the predictions of the analytical models next to the measurements, and the processes of a run
# with several processes ---

MARK = "> "
MIN_HEIGHT = 10
"""Minimum height in rows for the explanation of the selected row."""
Entry = Figure | Rank


# --- all figures ----------------------------------------------------------------------------------


def models_report(run: Run, whole: bool = True) -> Report:
    """Both tables, or the reason why there are no figures. Of a user's own job many models do not
    apply: one line counts them. Not `whole`: only the models with a prediction and a
    measurement."""
    shown = [figure for figure in run.figures if _is_shown(figure, run, whole)]
    report: Report = [figure_table(shown)] if shown else []
    if shown and (words := _without_core_wait(run)):
        report.append(text(words, "dim"))
    if left_out := len(run.figures) - len(shown):
        counted = "1 further model" if left_out == 1 else f"{left_out} further models"
        lacks = (
            "neither a prediction nor a measurement" if whole else "no prediction or no measurement"
        )
        report.append(
            text(
                (
                    f"{counted} {'has' if left_out == 1 else 'have'} {lacks} (the snapshot has the"
                    " reasons)"
                ),
                "dim",
            )
        )
    if len(run.ranks) > 1:
        report += [
            *([BLANK] if report else []),
            text(f"{len(run.ranks)} processes", "title"),
            rank_table(run),
        ]
    if MISSING in run.unavailable:
        report.append(labelled("models", visible(run.unavailable[MISSING])))
    return report


def _is_shown(figure: Figure, run: Run, whole: bool) -> bool:
    known = [figure.predicted is not None, figure.measured is not None]
    return all(known) if not whole else not run.is_job or any(known)


def _without_core_wait(run: Run) -> str:
    """Why step times in the table are shorter than the mean step time of the run; empty where both
    read the same."""
    times, signals = run.summary.step_time_s, run.signals
    if (
        run.device != "cpu"
        or times is None
        or not signals.keys() >= {"step_s", "runq_ratio"}
        or signals["runq_ratio"].value <= 0
    ):
        return ""
    # the diagnosis judges the last steps, and the mean is that of the whole run
    if signals["step_s"].value > times.mean:
        return (
            "measured step times leave out the wait for a CPU core:"
            f" {units.percent(signals['runq_ratio'].value).strip()} of a step"
        )
    measured, mean, unit = units.durations(signals["step_s"].value, times.mean)
    return (
        (
            f"measured step times leave out the wait for a CPU core: {measured.strip()} of"
            f" {mean.strip()} {unit}"
        )
        if measured != mean
        else ""
    )


def figure_table(figures: Sequence[Figure], cursor: int | None = None) -> Table:
    """The prediction of each model, the measurement and the error. A missing value is shown with
    its reason."""
    columns = (
        Column("  model", least=22), Column("predicted", ">"), Column("measured", ">"),
        Column("error", ">"), Column("", least=20, drop=1),
    )  # fmt: skip
    rows = []
    width = max(
        (
            len(_split(value, figure.unit)[1])
            for figure in figures
            for value in (figure.predicted, figure.measured)
        ),
        default=0,
    )
    for index, figure in enumerate(figures):
        predicted, measured = (
            _value(value, figure.unit, width) for value in (figure.predicted, figure.measured)
        )
        style = "" if figure.predicted is not None else "dim"
        measured_style = "accent" if figure.measured is not None else "dim"
        why = figure.note if figure.predicted is None or figure.measured is None else ""
        rows.append(
            [
                _title(figure.title, index == cursor),
                (predicted, style),
                (measured, measured_style),
                (error(figure), ""),
                (why, "dim"),
            ]
        )
    return Table(columns, rows)


def prediction_table(figures: Sequence[Figure]) -> Table:
    """Predictions without a measurement, each with its formula."""
    columns = (
        Column("model", least=22),
        Column("predicted", ">"),
        Column("formula", least=20, drop=1),
    )
    width = max((len(_split(figure.predicted, figure.unit)[1]) for figure in figures), default=0)
    return Table(
        columns,
        [
            [
                (figure.title, ""),
                (_value(figure.predicted, figure.unit, width), ""),
                (figure.formula, "dim"),
            ]
            for figure in figures
        ],
    )


def error(figure: Figure) -> str:
    """`+0.4 %`: the relative difference of the prediction from the measurement; above a factor of
    ten, `120x`."""
    return "" if figure.error_ratio is None else units.change(figure.error_ratio)


def _value(value: float | None, unit: str, width: int) -> str:
    """Number and unit; the unit is padded to `width` cells, so that the numbers of a column end in
    the same place."""
    number, rest = _split(value, unit)
    return f"{number} {rest:<{width}}"


def _split(value: float | None, unit: str) -> tuple[str, str]:
    """Number and unit as separate texts."""
    if value is None:
        return units.NA, ""
    number, _, rest = units.quantity(value, unit).rpartition(" ")
    return (number, rest) if number else (rest, "")


def _title(title: str, chosen: bool) -> Segment:
    return f"{MARK if chosen else '  '}{title}", "title" if chosen else ""


def rank_table(run: Run, cursor: int | None = None) -> Table:
    """Step time, communication and memory of each process. The slowest process is marked."""
    columns = (
        Column("  rank"), Column("host", least=4), Column("steps", ">", drop=1),
        Column("step p50", ">"), Column("w/o comm", ">"), Column("own pass", ">"),
        Column("comm", ">"), Column("memory", ">"), Column("", least=13),
    )  # fmt: skip
    rows = []
    for index, rank in enumerate(run.ranks):
        slowest = run.slowest if run.slowest and run.slowest[0] == rank.rank else None
        step = rank.step_time_s
        alone = run.signals.get(f"comm.pass_alone_s.rank{rank.rank}")
        rows.append(
            [
                _title(f"{rank.rank:>4}", index == cursor),
                (rank.host, ""),
                (str(rank.steps), ""),
                (units.duration(step.p50 if step else None).strip(), ""),
                (units.duration(rank.busy_s).strip(), "accent"),
                (units.duration(alone.value if alone else None).strip(), "accent"),
                (units.percent(rank.phases_ratio.get("comm", 0.0) if step else None).strip(), ""),
                (units.size_bytes(rank.memory_peak_bytes).strip(), ""),
                (f"slowest {slowest[1]:.2f}x" if slowest else "", "accent"),
            ]
        )
    return Table(columns, rows)


# --- the screen -----------------------------------------------------------------------------------


def entries(run: Run | None) -> list[Entry]:
    """The rows that can be chosen: every figure, then every process where there are several."""
    if run is None:
        return []
    return [*run.figures, *(run.ranks if len(run.ranks) > 1 else ())]


def model_lines(view: View, width: int, height: int) -> Lines:
    """The tables, and below them the formula and the source of the selected row."""
    run, shown = view.run, entries(view.run)
    if run is None or not shown:
        return text_lines(paragraph(_nothing(view), width))
    by_key = {_key(entry): entry for entry in shown}
    rows = _tables(run, -1, width)
    entry_at = {_place(run, number): number for number in range(len(shown))}

    def row(n: int, selected: bool) -> Row:
        return _tables(run, entry_at[n], width)[n] if selected else rows[n]

    def behind(key: str) -> list[Row]:
        # the same height for every selection
        tallest = max(len(lay_out(_behind(entry, run), width)) for entry in _like(by_key[key], run))
        return fill(
            [blank(width), *lay_out(_behind(by_key[key], run), width)],
            width,
            min(tallest + 1, height - height // 2),
        )

    keys = [_key(shown[entry_at[n]]) if n in entry_at else None for n in range(len(rows))]
    return Lines(keys, row, (), behind if height >= MIN_HEIGHT else None)


def _key(entry: Entry) -> str:
    """The identity of an entry, for a selection."""
    return entry.name if isinstance(entry, Figure) else f"rank {entry.rank}"


def _place(run: Run, number: int) -> int:
    """The row of an entry: below its table's head, and for a process below the table of figures and
    a blank."""
    return number + 1 + (2 if run.figures and number >= len(run.figures) else 0)


def summary(run: Run | None) -> str:
    """The number of figures and processes, and the slowest process."""
    if run is None or not entries(run):
        return ""
    figures = f"run {run.id}: {len(run.figures)} numbers"
    if len(run.ranks) < 2:
        return figures
    slowest = (
        f"; rank {run.slowest[0]} is the slowest, {run.slowest[1]:.2f}x the others"
        if run.slowest
        else ""
    )
    return f"{figures}, {len(run.ranks)} processes{slowest}"


def _tables(run: Run, cursor: int, width: int) -> list[Row]:
    """All rows of both tables. The entry `cursor` is marked."""
    rows = lay_out([figure_table(run.figures, cursor)], width) if run.figures else []
    if len(run.ranks) > 1:
        rows += [blank(width)] if rows else []
        rows += lay_out([rank_table(run, cursor - len(run.figures))], width)
    return rows


def _like(entry: Entry, run: Run) -> list[Entry]:
    """The rows of the same table that may have the longest explanation: all figures, or the slowest
    process."""
    if isinstance(entry, Figure):
        return [*run.figures]
    return [entry, *(rank for rank in run.ranks if run.slowest and rank.rank == run.slowest[0])]


def _nothing(view: View) -> str:
    run = view.run
    if run is None:
        return (
            "Nothing is running: press escape, then s. The models predict numbers of a run; each"
            " prediction is shown next to the measurement."
        )
    if MISSING in run.unavailable:
        return run.unavailable[MISSING]
    if run.state in ("starting", "running"):
        return "No numbers yet: they appear after the first evaluation of the run."
    return (
        "This run has no numbers: it ended before it reported its facts, or an earlier version"
        " recorded it."
    )


def _behind(entry: Entry, run: Run) -> Report:
    return _behind_figure(entry) if isinstance(entry, Figure) else _behind_rank(entry, run)


def _behind_figure(figure: Figure) -> Report:
    lines = (("model", figure.formula), ("measured", figure.source), ("note", figure.note))
    return [
        heading(figure.title),
        *(labelled(label, fact, column=10) for label, fact in lines if fact),
    ]


def _behind_rank(rank: Rank, run: Run) -> Report:
    """The step breakdown of a process, and the meaning of the columns."""
    step = rank.step_time_s
    leads = "; the main screen shows this process" if rank.leads else ""
    report: Report = [heading(f"rank {rank.rank} on {rank.host}, process {rank.pid}")]
    if step is not None:
        parts = sorted(
            (
                (share, name)
                for name in PHASES
                if (share := rank.phases_ratio.get(name, 0.0)) >= 0.005
            ),
            reverse=True,
        )
        shares = ", ".join(
            f"{name} {units.percent(share).strip()} {units.duration(share * step.mean).strip()}"
            for share, name in parts
        )
        report.append(labelled("its step", f"{shares}; {rank.steps} steps{leads}", column=10))
    if run.slowest and run.slowest[0] == rank.rank:
        ratio = (
            f"{run.slowest[1]:.2f}x the median of the others; the rule comm.straggler decides"
            " whether this matters"
        )
        report.append(labelled("slowest", ratio, column=10))
    meaning = "forward and backward without communication, measured by probe P8"
    return [*report, Line([(meaning, "dim")], "own pass", 10)]


# --- a roofline -----------------------------------------------------------------------------------

LETTERS: dict[OpClassName, str] = {
    "gemm": "G",
    "attention": "A",
    "convolution": "C",
    "elementwise": "E",
    "normalization": "N",
    "reduction": "R",
    "embedding": "M",
    "optimizer": "O",
    "communication": "X",
    "fused": "F",
}
SMALLEST = 0.005
NO_PEAK = "no roofline: the peak of the device is not known; gpuconsole calibrate measures it"
NO_POINTS = "no roofline: no kernel class with known shapes took 0.5 % of the time"
AXES = (
    "horizontal FLOP/byte, vertical FLOP/s; share of time · share of the roof at that intensity"
    " (above 100 %: the data came from a cache)"
)
NO_BANDWIDTH = "no memory roof: bandwidth not known (gpuconsole calibrate)"


class Roof(msgspec.Struct, frozen=True):
    """The peak rates of the device. Without `bytes_per_s` the roof has only its flat part."""

    flops_per_s: float
    flops_source: str
    bytes_per_s: float | None
    bytes_source: str

    @property
    def ridge(self) -> float | None:
        """The ridge intensity in FLOP/byte. Below, memory is the limit; above, arithmetic is the
        limit."""
        return roofline.ridge(self.flops_per_s, self.bytes_per_s) if self.bytes_per_s else None

    def at(self, intensity: float) -> float:
        """The attainable FLOP/s of a kernel with this intensity (FLOP/byte)."""
        return (
            roofline.attainable(intensity, self.flops_per_s, self.bytes_per_s)
            if self.bytes_per_s
            else self.flops_per_s
        )


def roof_of(run: Run, devices: Sequence[Device], environment: Environment) -> Roof | None:
    """The datasheet peaks of a GPU; without them, the peaks that the run or a calibration
    measured."""
    precision = str(run.knobs.get("precision", "fp32"))
    device = next((device for device in devices if device.id == run.device), None)
    summary, calibration = run.summary, environment.calibration
    peak: float | None = None
    bandwidth: float | None = None
    source = memory_source = ""
    if device is not None and device.is_gpu:
        peak, source = flops_peak(
            run.knobs, {**run.facts, "world_size": 1.0}, device.peaks, True
        ) or (None, "")
        bandwidth, memory_source = device.peaks.memory_bytes_per_s, device.peaks.source
    if peak is None and summary.flops_per_s and summary.mfu_ratio:
        alone = summary.flops_per_s / summary.whole_ratio
        peak, source = alone / summary.mfu_ratio, summary.mfu_peak_source
    if peak is None:
        peak, source = (
            calibration.get(f"gemm_{precision}_flops_per_s"),
            f"{precision} matrix product, calibrated",
        )
    if bandwidth is None:
        bandwidth, memory_source = calibration.get("copy_bytes_per_s"), "copy, calibrated"
    return Roof(peak, source, bandwidth, memory_source) if peak else None


def paint_roofline(
    classes: Sequence[OpClass], roof: Roof | None, width: int, height: int
) -> list[Row]:
    """The chart with its legend in at most `height` rows, or the reason why there is no chart."""
    points = [
        kernels
        for kernels in classes
        if kernels.name in LETTERS
        and kernels.share_ratio >= SMALLEST
        and kernels.intensity
        and kernels.flops_per_s
    ]
    if roof is None or not points:
        return paragraph(NO_PEAK if roof is None else NO_POINTS, width, "dim")
    head = paragraph(_chart_title(roof), width, "title") + paragraph(_sources(roof), width, "dim")
    legend = _legend(points, roof, width)
    return [*head, *_chart(points, roof, width, max(8, height - len(head) - len(legend))), *legend]


def _chart_title(roof: Roof) -> str:
    memory = f", {units.si(roof.bytes_per_s, 'B/s').strip()}" if roof.bytes_per_s else ""
    ridge = f", ridge at {units.plain(roof.ridge)} FLOP/byte" if roof.ridge else ""
    return f"roofline: {units.si(roof.flops_per_s, 'FLOP/s').strip()}{memory}{ridge}"


def _sources(roof: Roof) -> str:
    return f"{roof.flops_source}; " + (
        f"memory: {roof.bytes_source}" if roof.bytes_per_s else NO_BANDWIDTH
    )


def _chart(points: Sequence[OpClass], roof: Roof, width: int, height: int) -> list[Row]:
    """Both axes are logarithmic: plotext gets the logarithms, and ticks at the powers of ten."""
    places = [
        (
            math.log10(kernels.intensity or 1.0),
            math.log10(kernels.flops_per_s or 1.0),
            LETTERS[kernels.name],
        )
        for kernels in points
    ]
    top = math.log10(roof.flops_per_s)
    ridge = math.log10(roof.ridge) if roof.ridge else None
    left = math.floor(min([x for x, _, _ in places] + ([ridge - 1] if ridge is not None else [])))
    right = max([x for x, _, _ in places] + ([ridge + 0.5] if ridge is not None else [])) + 0.3
    low, high = math.floor(min(y for _, y, _ in places)), max(top, *(y for _, y, _ in places)) + 0.3
    figure = empty_figure(width, height)
    if ridge is not None:
        start = max(left, ridge - (top - low))  # the slope enters the chart here
        figure.draw(figure.signal([start, ridge], [top - (ridge - start), top]).lines())
    figure.draw(figure.signal([ridge if ridge is not None else left, right], [top, top]).lines())
    for x, y, letter in places:
        figure.draw(figure.text(x, y, letter, alignment="center"))
    figure.ruler("x").lim(left, right)
    figure.ruler("y").lim(low, high)
    _decades(figure, "x", left, right, max(3, width // 12), lambda value: f"{value:g}")
    _decades(figure, "y", low, high, max(2, height // 2), lambda value: units.si(value, "").strip())
    return chart_rows(figure, width, "".join(LETTERS.values()))


def _decades(
    figure: Any, axis: str, low: int, high: float, most: int, text: Callable[[float], str]
) -> None:
    """At most `most` ticks, at powers of ten."""
    last = math.floor(high)
    powers = range(low, last + 1, -(-(last - low + 1) // most))
    figure.ruler(axis).ticks(list(powers), [text(10.0**power) for power in powers])


def _legend(points: Sequence[OpClass], roof: Roof, width: int) -> list[Row]:
    """Each letter with its class, its share of device time, and its share of the roof."""
    rows: list[list[Segment]] = [[]]
    for kernels in points:
        reached = (kernels.flops_per_s or 0.0) / roof.at(kernels.intensity or 0.0)
        entry: list[Segment] = [
            (LETTERS[kernels.name], "accent"),
            (f" {kernels.name}", ""),
            (f" {units.percent(kernels.share_ratio).strip()}", "title"),
            (f" · {units.percent(reached).strip()}", ""),
        ]
        gap: list[Segment] = [("   ", "")] if rows[-1] else []
        if rows[-1] and row_width(rows[-1] + gap + entry) > width:
            rows.append(entry)
        else:
            rows[-1] += gap + entry
    return [line(width, *row) for row in rows] + paragraph(AXES, width, "dim")
