"""The predictions of the analytical models next to the measurements, and the processes of a run with several processes."""

from __future__ import annotations

from collections.abc import Sequence

from gpuconsole.diagnosis.models.figures.run import MISSING
from gpuconsole.model.figure import Figure
from gpuconsole.model.run import PHASES, Rank, Run
from gpuconsole.model.text import visible
from gpuconsole.report import units
from gpuconsole.report.cells import Row, Segment, blank, fill
from gpuconsole.report.page import Lines, paragraph, text_lines
from gpuconsole.report.parts import BLANK, Column, Line, Report, Table, heading, labelled, lay_out, text
from gpuconsole.session.api import View

MARK = "> "
LEAST_HEIGHT = 10
"""Minimum height in rows for the explanation of the selected row."""
Entry = Figure | Rank


# --- all figures --------------------------------------------------------------------------------------------


def models_report(run: Run) -> Report:
    """Both tables, or the reason why there are no figures. Of a user's own job many models do not apply: one line counts them."""
    known = [one for one in run.figures if not run.is_job or one.predicted is not None or one.measured is not None]
    found: Report = [figure_table(known)] if known else []
    if left_out := len(run.figures) - len(known):
        counted = "1 further model is" if left_out == 1 else f"{left_out} further models are"
        words = f"{counted} n/a for this job: neither the prediction nor the measurement is known"
        found.append(text(f"{words} (the snapshot has the reasons)", "dim"))
    if len(run.ranks) > 1:
        found += [*([BLANK] if found else []), text(f"{len(run.ranks)} processes", "title"), rank_table(run)]
    if MISSING in run.unavailable:
        found.append(labelled("models", visible(run.unavailable[MISSING])))
    return found


def figure_table(figures: Sequence[Figure], cursor: int | None = None) -> Table:
    """The prediction of each model, the measurement and the error. A missing value is shown with its reason."""
    columns = (
        Column("  model", least=22), Column("predicted", ">"), Column("measured", ">"), Column("error", ">"), Column("", least=20, drop=1),
    )  # fmt: skip
    rows = []
    width = max((len(_split(value, one.unit)[1]) for one in figures for value in (one.predicted, one.measured)), default=0)
    for index, figure in enumerate(figures):
        predicted, measured = (_value(value, figure.unit, width) for value in (figure.predicted, figure.measured))
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
    columns = (Column("model", least=22), Column("predicted", ">"), Column("formula", least=20, drop=1))
    width = max((len(_split(one.predicted, one.unit)[1]) for one in figures), default=0)
    return Table(columns, [[(one.title, ""), (_value(one.predicted, one.unit, width), ""), (one.formula, "dim")] for one in figures])


def error(figure: Figure) -> str:
    """`+0.4 %`: the relative difference of the prediction from the measurement; above a factor of ten, `120x`."""
    return "" if figure.error_ratio is None else units.change(figure.error_ratio)


def _value(value: float | None, unit: str, width: int) -> str:
    """Number and unit; the unit is padded to `width` cells, so that the numbers of a column end in the same place."""
    number, rest = _split(value, unit)
    return f"{number} {rest:<{width}}"


def _split(value: float | None, unit: str) -> tuple[str, str]:
    """Number and unit as separate texts."""
    if value is None:
        return units.NA, ""
    number, _, rest = units.quantity(value, unit).rpartition(" ")
    return (number, rest) if number else (rest, "")


def _title(words: str, chosen: bool) -> Segment:
    return f"{MARK if chosen else '  '}{words}", "title" if chosen else ""


def rank_table(run: Run, cursor: int | None = None) -> Table:
    """Step time, communication and memory of each process. The slowest process is marked."""
    columns = (
        Column("  rank"), Column("host", least=4), Column("steps", ">", drop=1), Column("step p50", ">"), Column("w/o comm", ">"),
        Column("own pass", ">"), Column("comm", ">"), Column("memory", ">"), Column("", least=13),
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


# --- the screen ---------------------------------------------------------------------------------------------


def entries(run: Run | None) -> list[Entry]:
    """The rows that can be chosen: every figure, then every process where there are several."""
    if run is None:
        return []
    return [*run.figures, *(run.ranks if len(run.ranks) > 1 else ())]


def model_lines(view: View, width: int, height: int) -> Lines:
    """The tables, and below them the formula and the source of the selected row."""
    run, known = view.run, entries(view.run)
    if run is None or not known:
        return text_lines(paragraph(_nothing(view), width))
    by_key = {_key(entry): entry for entry in known}
    rows = _tables(run, -1, width)
    entry_at = {_place(run, number): number for number in range(len(known))}

    def row(n: int, selected: bool) -> Row:
        return _tables(run, entry_at[n], width)[n] if selected else rows[n]

    def behind(key: str) -> list[Row]:
        tallest = max(len(lay_out(_behind(entry, run), width)) for entry in _like(by_key[key], run))  # the same height for every selection
        return fill([blank(width), *lay_out(_behind(by_key[key], run), width)], width, min(tallest + 1, height - height // 2))

    keys = [_key(known[entry_at[n]]) if n in entry_at else None for n in range(len(rows))]
    return Lines(keys, row, (), behind if height >= LEAST_HEIGHT else None)


def _key(entry: Entry) -> str:
    """The identity of an entry, for a selection."""
    return entry.name if isinstance(entry, Figure) else f"rank {entry.rank}"


def _place(run: Run, number: int) -> int:
    """The row of an entry: below its table's head, and for a process below the table of figures and a blank."""
    return number + 1 + (2 if run.figures and number >= len(run.figures) else 0)


def summary(run: Run | None) -> str:
    """The number of figures and processes, and the slowest process."""
    if run is None or not entries(run):
        return ""
    figures = f"run {run.id}: {len(run.figures)} figures"
    if len(run.ranks) < 2:
        return figures
    slowest = f"; rank {run.slowest[0]} is the slowest, {run.slowest[1]:.2f}x the others" if run.slowest else ""
    return f"{figures}, {len(run.ranks)} processes{slowest}"


def _tables(run: Run, cursor: int, width: int) -> list[Row]:
    """All rows of both tables. The entry `cursor` is marked."""
    rows = lay_out([figure_table(run.figures, cursor)], width) if run.figures else []
    if len(run.ranks) > 1:
        rows += [blank(width)] if rows else []
        rows += lay_out([rank_table(run, cursor - len(run.figures))], width)
    return rows


def _like(entry: Entry, run: Run) -> list[Entry]:
    """The rows of the same table that may have the longest explanation: all figures, or the slowest process."""
    if isinstance(entry, Figure):
        return [*run.figures]
    return [entry, *(rank for rank in run.ranks if run.slowest and rank.rank == run.slowest[0])]


def _nothing(view: View) -> str:
    run = view.run
    if run is None:
        return "Nothing is running: press escape, then s. The models predict figures of a run; each prediction is shown next to the measurement."
    if MISSING in run.unavailable:
        return run.unavailable[MISSING]
    if run.state in ("starting", "running"):
        return "No figures yet: they appear after the first evaluation of the running workload."
    return "This run has no figures: it ended before the workload reported its facts, or an earlier version recorded it."


def _behind(entry: Entry, run: Run) -> Report:
    return _behind_figure(entry) if isinstance(entry, Figure) else _behind_rank(entry, run)


def _behind_figure(figure: Figure) -> Report:
    lines = (("model", figure.formula), ("measured", figure.source), ("note", figure.note))
    return [heading(figure.title), *(labelled(label, words, column=10) for label, words in lines if words)]


def _behind_rank(rank: Rank, run: Run) -> Report:
    """The time account of a process, and the meaning of the columns."""
    step = rank.step_time_s
    leads = "; the main screen shows this process" if rank.leads else ""
    found: Report = [heading(f"rank {rank.rank} on {rank.host}, process {rank.pid}")]
    if step is not None:
        parts = sorted(((share, name) for name in PHASES if (share := rank.phases_ratio.get(name, 0.0)) >= 0.005), reverse=True)
        shares = ", ".join(f"{name} {units.percent(share).strip()} {units.duration(share * step.mean).strip()}" for share, name in parts)
        found.append(labelled("its step", f"{shares}; {rank.steps} steps{leads}", column=10))
    if run.slowest and run.slowest[0] == rank.rank:
        words = f"{run.slowest[1]:.2f}x the median of the others; the rule comm.straggler decides whether this matters"
        found.append(labelled("slowest", words, column=10))
    meaning = "forward and backward without communication, measured by probe P8"
    return [*found, Line([(meaning, "dim")], "own pass", 10)]
