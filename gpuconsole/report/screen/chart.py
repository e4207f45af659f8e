"""Throughput since the start of the present work, with a mark at each change.

The columns have equal time and are bound to the clock, so that a past column never moves or
changes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from gpuconsole.experiments.statistics import CHANGED
from gpuconsole.model import units
from gpuconsole.model.experiments import Trial
from gpuconsole.model.knobs.catalogue import describe_changes
from gpuconsole.model.metrics import series_key
from gpuconsole.model.text import cell_width, cut
from gpuconsole.report.cells import (
    LEVELS,
    Row,
    Segment,
    fill,
    inner_width,
    line,
    line_of,
    panel,
    shade,
)
from gpuconsole.report.run import serving
from gpuconsole.report.run.figures import in_row
from gpuconsole.report.run.serving import live_costs
from gpuconsole.session import facts
from gpuconsole.session.api import View

# --- throughput since the start of the present work, with a mark at each change -------------------

GUTTER = 9
"""Cells of the figures at the left edge."""
GRID = "─"
BOUNDS = {" ": "╎", GRID: "╎", "█": "▓"}
"""What stands above and below the curve where a trial begins and where it ended. Colours show this
too, but not every terminal has colours."""
MIN_TICK = 2
MAX_TICKS = 6
"""Rows between two figures at the left edge, and figures above 0."""
MIN_HEIGHT_FOR_LANE = 8
"""Rows from which on a line shows which blocks of a trial had the change."""
POINT_S = 1.0
"""Seconds of steps in a point of the throughput. The point stands at their end, and is held until
the next."""
MIN_LABEL = 10
"""A mark with less room has no words."""


class ChartMark(NamedTuple):
    """Something that was changed, from `begin_s` to `end_s` on the session's clock (equal: at that
    moment). `style` colours the label and the columns."""

    begin_s: float
    end_s: float
    label: str
    style: str


def paint_throughput(view: View, history: History, width: int, height: int) -> list[Row]:
    """The chart in a box of `width` x `height` cells."""
    if height <= 0:
        return []
    metric, unit = facts.throughput_metric(view)
    inner, room = inner_width(width, True), height - 2
    columns = max(1, inner - GUTTER)
    time = window(facts.begun_s(view), view.now, columns)
    values = time.values(series_key(metric, view.device), history, hold_s(view))
    title, figures = f"throughput, {unit}", _figures(view, width)
    if not any(value is not None for value in values):
        why = (
            "no steps yet"
            if view.run is not None and view.run.state == "starting"
            else facts.reason(view, metric)
        )
        return panel(
            title, figures, fill([line(inner, (why, "dim"))], inner, room), width, height, True
        )
    marked = marks(view)
    labels = [_labels(marked, time)] if room >= 5 and marked else []
    blocks = _blocks(view, time)
    lane = (
        [_lane(blocks)]
        if room >= MIN_HEIGHT_FOR_LANE and any(block.changed for block in blocks)
        else []
    )
    plot = max(1, room - len(labels) - len(lane) - (1 if room >= 4 else 0))
    scale = scale_for(max(value for value in values if value is not None), plot)
    rows = [line(inner, (" " * GUTTER, ""), *row) for row in labels]
    styles = _styles(marked, blocks, time)
    spans, bounds = _spans(styles), _bounds(marked, time)
    texts = [_ruled(text, bounds) for text in _curve(values, scale)]
    for n, text in enumerate(texts):
        above = plot - 1 - n
        lined = above % scale.every == 0
        figure = (
            units.axis(above // scale.every * scale.step, scale.step, scale.top) if lined else ""
        )
        usual = shade((above + 0.5) / plot)
        parts = _spans(_with_grid(text, styles)) if lined else spans
        row = [(text[start:end], style or usual) for start, end, style in parts]
        rows.append([(f"{figure:>{GUTTER - 2}} ", "dim"), ("┤" if lined else "│", "dim"), *row])
    rows += [line(inner, *row) for row in lane]
    if room >= 4:
        rows.append(line(inner, (" " * GUTTER, ""), (_axis(time), "dim")))
    return panel(title, figures, rows, width, height, True)


def marks(view: View) -> list[ChartMark]:
    """The trials and the kept changes of the present work, in order."""
    shown = []
    for trial in facts.current_trials(view):
        if trial.id not in view.trial_times:
            continue
        begin, last = view.trial_times[trial.id]
        change = describe_changes(trial.changes)
        if _goes_back(view, trial):
            gain = (
                f" {units.speedup(1 / trial.speedup.estimate).strip()}"
                if trial.speedup and trial.state == "done"
                else ""
            )
            shown.append(
                ChartMark(
                    begin,
                    last,
                    f"all kept changes against the start{gain}",
                    "accent" if trial.state == "running" else "dim",
                )
            )
        elif trial.state == "running":
            shown.append(ChartMark(begin, view.now, f"trial {change}", "accent"))
        elif trial.began_run:
            gain = f" {units.speedup(trial.speedup.estimate).strip()}" if trial.speedup else ""
            shown.append(
                ChartMark(
                    begin, last, f"{change} {trial.fate}{gain}", "good" if trial.holds else "dim"
                )
            )
        else:
            shown.append(ChartMark(begin, last, f"{change} {trial.fate}", "dim"))
    proven = {
        (trial.baseline_run, describe_changes(trial.changes))
        for trial in view.trials
        if trial.began_run
    }
    for before, run, opened_s in zip(view.runs, view.runs[1:], view.run_times[1:], strict=False):
        if (
            facts.continues(run, before)
            and (before.id, describe_changes(run.changes)) not in proven
            and opened_s >= facts.begun_s(view)
        ):
            shown.append(ChartMark(opened_s, opened_s, f"{describe_changes(run.changes)} set", ""))
    return sorted(shown)


def _goes_back(view: View, trial: Trial) -> bool:
    """Whether a trial compares all changes that a tuning session has kept with its start: see
    `Certificate.proof`. While the session is under way, that is a trial after the last one in which
    the session has kept a change: a trial from before the session may have the same changes."""
    if view.tuning is None:
        return False
    certificate = view.tuning.certificate
    if certificate.proof is not None:
        return trial.id == certificate.proof.id
    kept = {attempt.trial.id for attempt in certificate.attempts if attempt.trial.kept}
    later = (
        list(itertools.takewhile(lambda entry: entry.id not in kept, reversed(view.trials)))
        if kept
        else []
    )
    return (
        view.tuning.under_way
        and trial in later
        and trial.changes.items() <= certificate.start.items()
    )


def _figures(view: View, width: int) -> list[Segment]:
    """The present rate and what the device makes of it."""
    run = view.run
    if run is None:
        return []
    if run.serves:
        return serving.figures(view, run, width)
    texts = [mfu] if (mfu := in_row(run, "mfu_ratio", with_peak=width >= 110)) else []
    texts += live_costs(view, run) if width >= 100 else []
    return [("   ".join(texts), "")] if texts else []


class Scale(NamedTuple):
    """`step` units in `every` rows, from 0 in the middle of the last of `rows` rows: each figure is
    in the middle of its row, on its line."""

    step: float
    every: int
    rows: int

    @property
    def top(self) -> float:
        """The value at the upper edge of the first row."""
        return (self.rows - 0.5) * self.step / self.every


def scale_for(high: float, rows: int) -> Scale:
    """The scale with the least room above `high` whose steps are 1, 2 or 5 times a power of ten."""
    if high <= 0:
        return Scale(1.0, max(1, rows - 1), rows)
    power = 10.0 ** math.floor(math.log10(high))
    spaces = range(max(MIN_TICK, -(-(rows - 1) // MAX_TICKS)), max(MIN_TICK, (rows - 1) // 2) + 1)
    scales = [
        Scale(factor * power, every, rows)
        for factor in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20)
        for every in spaces
    ]
    return min(
        (scale for scale in scales if scale.top >= high),
        key=lambda scale: (scale.top, -scale.every),
    )


def _curve(values: Sequence[float | None], scale: Scale) -> list[str]:
    """The rows of the curve, top first. A blank cell on the line of a figure shows the line."""
    per_unit = 8 * scale.every / scale.step
    columns = [
        _column(0 if value is None else max(1, round(value * per_unit)), scale.rows, scale.every)
        for value in values
    ]
    return ["".join(cells) for cells in zip(*columns, strict=True)]


@lru_cache(4096)
def _column(eighths: int, rows: int, every: int) -> tuple[str, ...]:
    """A column, top first, so many eighths of a row high. It begins in the middle of the last row.
    0: there is no value."""
    cells = []
    for above in range(rows - 1, 0, -1):
        filled = LEVELS[max(0, min(8, eighths - 8 * above + 4))]
        cells.append(GRID if filled == " " and above % every == 0 else filled)
    return (*cells, "▀" if eighths else GRID)


class TrialBlock(NamedTuple):
    """Columns in which a trial ran one side. `changed`: with the change, or with all kept changes
    where the trial compares these with the start."""

    first: int
    end: int
    changed: bool
    back: bool


def _blocks(view: View, time: ChartWindow) -> list[TrialBlock]:
    """The blocks of the trials of the present work, as far as they are in sight."""
    trials = [
        (*view.trial_times[trial.id], _goes_back(view, trial))
        for trial in facts.current_trials(view)
        if trial.id in view.trial_times
    ]
    blocks = []
    for (begin_s, arm), (end_s, _) in itertools.pairwise([*view.sides, (view.now, 0)]):
        back = next((back for begun, last, back in trials if begun <= begin_s <= last), None)
        first, end = (max(0, min(time.filled, time.column(t + POINT_S))) for t in (begin_s, end_s))
        if arm and back is not None and first < end:
            blocks.append(TrialBlock(first, end, (arm == CHANGED) != back, back))
    return blocks


def _lane(blocks: list[TrialBlock]) -> Row:
    """A line below the columns that had the change."""
    cells: Row = [(f"{'changed':>{GUTTER - 2}}  ", "dim")]
    at = 0
    for block in blocks:
        if block.changed:
            cells += [(" " * (block.first - at), ""), ("━" * (block.end - block.first), "accent")]
            at = block.end
    return line_of(cells)


def _styles(marked: list[ChartMark], blocks: list[TrialBlock], time: ChartWindow) -> list[str]:
    """The colour of each column: the focus while a trial runs with its change, green after a kept
    change; empty: the shade of its row."""
    styles = [""] * time.columns
    for mark in marked:
        first, last = max(0, time.column(mark.begin_s)), max(0, time.column(mark.end_s))
        if mark.style == "good":
            styles[last:] = ["gained"] * (time.columns - last)
        elif mark.style == "accent" and not blocks:
            styles[first : last + 1] = ["trial"] * len(styles[first : last + 1])
    for block in blocks:
        # the columns that differ from the settings before the trial
        if block.changed != block.back:
            styles[block.first : block.end] = ["" if block.back else "trial"] * (
                block.end - block.first
            )
    return styles


def _bounds(marked: list[ChartMark], time: ChartWindow) -> set[int]:
    """The columns where a change begins, and where a trial ended."""
    ends = {time.column(mark.end_s) for mark in marked if mark.style != "accent"}
    return {
        column
        for column in ends | {time.column(mark.begin_s) for mark in marked}
        if 0 <= column < time.columns
    }


def _ruled(text: str, bounds: set[int]) -> str:
    """A row of the curve with lines at `bounds`."""
    if not bounds:
        return text
    return "".join(
        BOUNDS.get(char, char) if column in bounds else char for column, char in enumerate(text)
    )


def _spans(styles: list[str]) -> list[tuple[int, int, str]]:
    """The parts of one style: first column, end, style."""
    ends = [n for n in range(1, len(styles)) if styles[n] != styles[n - 1]]
    starts = [0, *ends]
    return [
        (start, end, styles[start]) for start, end in zip(starts, [*ends, len(styles)], strict=True)
    ]


def _with_grid(text: str, styles: list[str]) -> list[str]:
    """The style of each cell of a row with a line of the grid in its blank cells."""
    return ["grid" if char == GRID else style for char, style in zip(text, styles, strict=True)]


def _labels(marked: list[ChartMark], time: ChartWindow) -> Row:
    """A label at the begin of each change. The newest label keeps its room longest; a mark without
    room has no words."""
    cells: list[Segment] = []
    limit = time.columns
    for mark in reversed(marked):
        place = max(0, min(time.columns - 1, time.column(mark.begin_s)))
        label = f"▼ {mark.label}"
        if place >= limit:
            continue
        if (
            cell_width(label) > limit - place
            and limit == time.columns
            and cell_width(label) <= place + 1
        ):
            label = f"{mark.label} ▼"  # before its mark
            place -= cell_width(label) - 1
        label = cut(label, limit - place) if limit - place >= MIN_LABEL else "▼"
        cells = [(label, mark.style), (" " * (limit - place - cell_width(label)), ""), *cells]
        if place == 0:
            return line_of(cells)
        limit = place - 1
        cells = [(" ", ""), *cells]
    return line_of([(" " * limit, ""), *cells])


def _axis(time: ChartWindow) -> str:
    """Times since the begin of the window, at round distances."""
    span = time.columns * time.per_column_s
    step = next(
        (
            step
            for step in (10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400)
            if span / step <= max(2, time.columns / 16)
        ),
        28_800,
    )
    cells = [" "] * time.columns
    for n in range(int(span / step) + 1):
        label = units.clock(n * step)
        at = round(n * step / time.per_column_s)
        if at + len(label) <= time.columns:
            cells[at : at + len(label)] = label
    return "".join(cells)


# --- the time axis of a chart on the main screen --------------------------------------------------

History = Callable[[str, int, float], list[float | None]]
"""A function that returns the recent means of a series (key) in so many columns over so many
seconds; None: no sample in that time."""
SECONDS = (
    0.1,
    0.125,
    0.15,
    0.2,
    0.25,
    0.3,
    0.4,
    0.5,
    0.6,
    0.8,
    1.0,
    1.25,
    1.5,
    2.0,
    2.5,
    3.0,
    4.0,
    5.0,
    6.0,
    8.0,
    10.0,
    12.0,
    15.0,
    20.0,
    25.0,
    30.0,
    40.0,
    50.0,
    60.0,
)
"""Widths of a column. Neighbours differ by at most a third: at most a quarter of a chart is still
empty when its columns become wider."""
SPARK_COLUMN_S = 2.0
"""The widest column of a sparkline: it shows the present, the chart of the throughput shows the
whole run."""
HOLD_S = 1.5
"""The usual source reports once a second."""
HOLD_STEPS = 3.0
"""Throughput is known once a step."""


class ChartWindow(NamedTuple):
    """`filled` of `columns` columns have a time that is not in the future. `first` is the number of
    the first column on the clock."""

    per_column_s: float
    first: int
    filled: int
    columns: int

    @property
    def begin_s(self) -> float:
        return self.first * self.per_column_s

    def column(self, t: float) -> int:
        """The column of a time; it may be outside of the window."""
        return int(t / self.per_column_s) - self.first

    def values(self, key: str, history: History, hold_s: float) -> list[float | None]:
        """The series in all columns; None in columns of the future. A sample is shown for up to
        `hold_s` where no newer sample is known."""
        means = (
            history(key, self.filled, self.filled * self.per_column_s) if self.filled > 0 else []
        )
        held, age = None, 0
        for n, value in enumerate(means):
            held, age = (value, 0) if value is not None else (held, age + 1)
            if value is None and age * self.per_column_s <= hold_s:
                means[n] = held
        return means + [None] * (self.columns - self.filled)


def window(
    begin_s: float, now_s: float, columns: int, widest_s: float = float("inf")
) -> ChartWindow:
    """The time from `begin_s` to `now_s` in `columns` columns. Where these would be wider than
    `widest_s`: the newest part of that time."""
    columns = max(1, columns)
    per_column_s = _column_s(max(0.0, now_s - begin_s), columns, widest_s)
    last = int(now_s / per_column_s)
    first = max(int(begin_s / per_column_s), last - columns + 1)
    return ChartWindow(per_column_s, first, last - first + 1, columns)


def hold_s(view: View) -> float:
    """The time for which a throughput is shown: the next is known after some steps."""
    usual_s, _ = facts.percentiles(view)
    return (
        HOLD_S
        if usual_s is None or (view.run is not None and view.run.serves)
        else max(HOLD_S, HOLD_STEPS * usual_s)
    )


def _column_s(elapsed_s: float, columns: int, widest_s: float) -> float:
    need = elapsed_s / max(1, columns - 1)  # the first and the last column may be parts
    per_column = next((seconds for seconds in SECONDS if seconds >= need), SECONDS[-1])
    while per_column < need:
        per_column *= 1.25
    return min(per_column, widest_s)
