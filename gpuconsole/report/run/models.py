"""The models screen: what each analytical model says beside what was measured, and the processes of a run that has several."""

from __future__ import annotations

from collections.abc import Sequence

from gpuconsole.diagnosis.modelling import MISSING
from gpuconsole.model.figure import Figure
from gpuconsole.model.run import PHASES, Rank, Run
from gpuconsole.report import units as format
from gpuconsole.report.cells import Row, Segment, blank, cell_width, clean, fill, fit, line
from gpuconsole.report.page import follow, heading, labelled, paragraph
from gpuconsole.session.api import View

RATIO_FROM = 10.0
"""An error of so many times the measurement is told as a ratio."""
ERROR = 8
LEAST_NOTE = 20
"""Columns that a note needs beside its figure to be worth the room; it stands under the table in any case."""
LEAST_TITLE = 20
MOST_HOST = 16

Entry = Figure | Rank


def entries(run: Run | None) -> list[Entry]:
    """What can be chosen: every figure, then every process where there are several."""
    if run is None:
        return []
    return [*run.figures, *(run.ranks if len(run.ranks) > 1 else ())]


def paint_models(view: View, cursor: int, width: int, height: int) -> list[Row]:
    """The tables with the chosen row in sight, then what is behind that row."""
    run, known = view.run, entries(view.run)
    if run is None or not known:
        return fill(paragraph(_nothing(view), width), width, height)
    rows, at = _tables(run, cursor, width)
    foot = _behind(known[cursor], run, width)
    tallest = max(len(_behind(one, run, width)) for one in _like(known[cursor], run))  # so that the table stands still
    room = max(height // 2, height - tallest - 1) if height >= 10 else height
    start = follow(max(0, at - room // 2), at, room, len(rows))
    return fill([*fill(rows[start : start + room], width, room), blank(width), *foot], width, height)


def _like(entry: Entry, run: Run) -> list[Entry]:
    """Rows of the same table, of which one has most behind it: of many processes the slowest."""
    if isinstance(entry, Figure):
        return [*run.figures]
    return [entry, *(rank for rank in run.ranks if run.slowest and rank.rank == run.slowest[0])]


def summary(run: Run | None) -> str:
    """How much there is, and how far the processes lie apart where there are several."""
    if run is None or not entries(run):
        return ""
    figures = f"run {run.id}: {len(run.figures)} figures"
    if len(run.ranks) < 2:
        return figures
    slowest = f"; rank {run.slowest[0]} is the slowest, {run.slowest[1]:.2f}x the others" if run.slowest else ""
    return f"{figures}, {len(run.ranks)} processes{slowest}"


def _nothing(view: View) -> str:
    run = view.run
    if run is None:
        return "Nothing is running: press escape and s. The models compare what a run should take by arithmetic with what it takes."
    if MISSING in run.unavailable:
        return run.unavailable[MISSING]
    if run.state in ("starting", "running"):
        return "No figures yet: they come with the first look at the running workload."
    return "This run has no figures: it ended before the workload told of itself, or an earlier version recorded it."


def _tables(run: Run, cursor: int, width: int) -> tuple[list[Row], int]:
    """All rows, and which of them is the chosen one's."""
    rows = _figure_rows(run.figures, cursor, width) if run.figures else []
    at = cursor + 1
    if len(run.ranks) > 1:
        at += 2 if cursor >= len(run.figures) and run.figures else 0
        rows += [blank(width)] if rows else []
        rows += _rank_rows(run, cursor - len(run.figures), width)
    return rows, at


# --- figures ------------------------------------------------------------------------------------------------


def _figure_rows(figures: Sequence[Figure], cursor: int, width: int) -> list[Row]:
    numbers = [(_split(one.predicted, one.unit), _split(one.measured, one.unit)) for one in figures]
    number = max(len("predicted") - 4, *(cell_width(value[0]) for pair in numbers for value in pair))
    unit = max(4, *(cell_width(value[1]) for pair in numbers for value in pair))
    value = number + 1 + unit
    titles = max(cell_width(clean(one.title)) for one in figures)
    titles = max(min(titles, LEAST_TITLE), min(titles, width - 2 - 2 * (value + 1) - ERROR))
    note = width - 2 - titles - 2 * (value + 1) - ERROR - 2
    head = f"  {fit('model', titles)} {fit('predicted', value)} {fit('measured', value)}{'error':>{ERROR}}"
    rows = [line(width, (head, "dim"))]
    for index, (one, (predicted, measured)) in enumerate(zip(figures, numbers, strict=True)):
        why: list[Segment] = [(f"  {fit(one.note, note)}", "dim")] if note >= LEAST_NOTE and _is_missing(one) else []
        rows.append(
            line(
                width,
                ("> " if index == cursor else "  ", "key"),
                (f"{fit(one.title, titles)} ", "title" if index == cursor else ""),
                (f"{fit(predicted[0], number, '>')} {fit(predicted[1], unit)} ", "" if one.predicted is not None else "dim"),
                (f"{fit(measured[0], number, '>')} {fit(measured[1], unit)}", "accent" if one.measured is not None else "dim"),
                (f"{error(one):>{ERROR}}", ""),
                *why,
            )
        )
    return rows


def _is_missing(figure: Figure) -> bool:
    return figure.predicted is None or figure.measured is None


def _split(value: float | None, unit: str) -> tuple[str, str]:
    """Number and unit, so that each can have a column."""
    if value is None:
        return format.NA, ""
    number, _, rest = format.quantity(value, unit).rpartition(" ")
    return (number, rest) if number else (rest, "")


def error(figure: Figure) -> str:
    """`+0.4 %`: how far the prediction lies from the measurement; `120x` where it is many times as much."""
    ratio = figure.error_ratio
    if ratio is None:
        return ""
    return f"{ratio * 100:+.1f} %" if abs(ratio) < RATIO_FROM else f"{ratio + 1:.3g}x" if ratio < 999 else ">999x"


# --- processes ----------------------------------------------------------------------------------------------


def _rank_rows(run: Run, cursor: int, width: int) -> list[Row]:
    host = min(MOST_HOST, max(4, *(cell_width(clean(one.host)) for one in run.ranks)))
    head = f"  {'rank':>4} {fit('host', host)}  step p50  w/o comm  own pass   comm   memory"
    rows = [line(width, (head, "dim"))]
    for index, rank in enumerate(run.ranks):
        slowest = run.slowest if run.slowest and run.slowest[0] == rank.rank else None
        step = rank.step_time_s
        alone = run.signals.get(f"comm.pass_alone_s.rank{rank.rank}")
        rows.append(
            line(
                width,
                ("> " if index == cursor else "  ", "key"),
                (f"{rank.rank:>4} {fit(rank.host, host)}", "title" if index == cursor else ""),
                (f"  {_time(step.p50 if step else None)}", ""),
                (f"  {_time(rank.busy_s)}  {_time(alone.value if alone else None)}", "accent"),
                (f"  {format.percent(rank.phases_ratio.get('comm', 0.0) if step else None)}", ""),
                (f"  {format.size_bytes(rank.memory_peak_bytes)}", ""),
                (f" slowest {slowest[1]:.2f}x" if slowest else "", "accent"),
            )
        )
    return rows


def _time(seconds: float | None) -> str:
    """As wide as its column's title."""
    return fit(format.duration(seconds).strip(), 8, ">")


# --- what is behind a row -----------------------------------------------------------------------------------


def _behind(entry: Entry, run: Run, width: int) -> list[Row]:
    return _behind_figure(entry, width) if isinstance(entry, Figure) else _behind_rank(entry, run, width)


def _behind_figure(figure: Figure, width: int) -> list[Row]:
    rows = [heading(figure.title, width)]
    for label, text in (("model", figure.formula), ("measured", figure.source), ("note", figure.note)):
        rows += labelled(label, text, width, 10) if text else []
    return rows


def _behind_rank(rank: Rank, run: Run, width: int) -> list[Row]:
    """Its own time account, part by part; and how the columns are meant."""
    step = rank.step_time_s
    leads = "; the main screen shows this one's" if rank.leads else ""
    rows = [heading(f"rank {rank.rank} on {rank.host}, process {rank.pid}", width)]
    if step is not None:
        parts = sorted(((share, name) for name in PHASES if (share := rank.phases_ratio.get(name, 0.0)) >= 0.005), reverse=True)
        told = ", ".join(f"{name} {format.percent(share).strip()} {format.duration(share * step.mean).strip()}" for share, name in parts)
        rows += labelled("its step", f"{told}; {rank.steps} steps{leads}", width, 10)
    if run.slowest and run.slowest[0] == rank.rank:
        rows += labelled("slowest", f"{run.slowest[1]:.2f}x the others' median; comm.straggler says whether it matters", width, 10)
    rows += labelled("own pass", "forward and backward without communication, by probe P8", width, 10, "dim")
    return rows
