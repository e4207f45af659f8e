"""The attainable rate of a run: the share in a few words, the rates as a table, and the waterfall down to the reached rate."""

from __future__ import annotations

from collections.abc import Sequence

from gpuconsole.model.figure import Attainable, TimePart
from gpuconsole.model.run import Run
from gpuconsole.report import units
from gpuconsole.report.cells import Segment
from gpuconsole.report.parts import Column, Report, Table, labelled, text

SMALLEST = 0.005
"""Smaller parts of the time are added up in one row."""
BAR = 16
WORK, WAIT = "█", "▒"
NO_FACTS = "the workload has not reported its facts yet"


def share_text(run: Run) -> str:
    """`41 % of attainable`, for a place next to the throughput; empty where the share is not known (see `why_no_share`).

    More than 100 % is shown as it is: the peaks in use are then too low, and the notes of the full report say so.
    """
    share = run.attainable.share_ratio if run.attainable is not None else None
    return f"{units.precise_percent(share)} of attainable" if share is not None else ""


def why_no_share(run: Run) -> str:
    """The reason why `share_text` is empty; empty where the share is known."""
    if share_text(run):
        return ""
    return run.attainable.reason if run.attainable is not None and run.attainable.reason else NO_FACTS


def attainable_report(run: Run) -> Report:
    """The attainable rate with its limit and its sources, the rates as a table, and the waterfall. Fits 80 columns. Empty for a run without facts."""
    found = run.attainable
    if found is None:
        return []
    if found.main is None:
        return [labelled("attainable", f"{units.NA}: {found.reason or NO_FACTS}")]
    summary = f"{_rate(found.main.attainable_per_s, found.main.unit)}, limit: {found.bound}"
    report: Report = [
        labelled("attainable", [(share_text(run), "title"), (f" ({summary})", "")]),
        labelled("peaks", found.source, "dim"),
        _rates(found),
        text(f"from the attainable rate to the reached rate, per {found.per}:", "dim"),
        _waterfall(found),
    ]
    return [*report, *(text(words, "dim") for words in dict.fromkeys((*found.notes, *_notes(found.parts))))]


def _notes(parts: Sequence[TimePart]) -> list[str]:
    return [f"{part.title}: {part.note}" for part in parts if part.note]


def _rate(value: float | None, unit: str) -> str:
    return units.quantity(value, unit)


def _rates(found: Attainable) -> Table:
    columns = (Column("rate"), Column("reached", ">"), Column("attainable", ">"), Column("share", ">"))
    rows = [
        [
            (one.title, ""),
            (_rate(one.reached_per_s, one.unit), ""),
            (_rate(one.attainable_per_s, one.unit), ""),
            (units.precise_percent(one.share_ratio), "title"),
        ]
        for one in found.rates
    ]
    return Table(columns, rows, indent=2)


def _waterfall(found: Attainable) -> Table:
    """A row for each part: its time, its share of the whole time, the rate that it costs, and a bar at its place in the step."""
    main = found.main
    assert main is not None
    total = sum(part.time_s for part in found.parts)
    columns = (Column("part", least=24), Column("time", ">"), Column("share", ">"), Column(main.unit, ">"), Column("", least=8, drop=1))
    rows: list[list[Segment]] = []
    begun, largest = 0.0, max((part.time_s for part in found.parts[1:]), default=0.0)
    for part in _shown(found.parts, total):
        first = part is found.parts[0]
        rate = units.rate(main.attainable_per_s, 0) if first else _lost(part.lost_per_s)
        style = "title" if first or part.time_s == largest else ""
        bar = _bar(begun / total, (begun + part.time_s) / total, WORK if first else WAIT), "work" if first else "wait"
        rows.append([(part.title, style), (_duration(part.time_s), style), (units.percent(part.time_s / total), ""), (rate, style), bar])
        begun += part.time_s
    end = (units.duration(total), "title"), (units.percent(1.0), ""), (units.rate(main.reached_per_s, 0), "title"), (WORK * BAR, "work")
    return Table(columns, [*rows, [("reached", "title"), *end]], indent=2)


def _shown(parts: Sequence[TimePart], total: float) -> list[TimePart]:
    """The parts with the small ones in one row, so that the rows still add up."""
    large = [part for n, part in enumerate(parts) if n == 0 or abs(part.time_s) >= SMALLEST * total]
    small = [part for part in parts if part not in large]
    if not small:
        return large
    words = small[0].title if len(small) == 1 else f"{len(small)} smaller parts"
    return [*large, TimePart("smaller", words, sum(part.time_s for part in small), sum(part.lost_per_s for part in small))]


def _duration(seconds: float) -> str:
    return units.duration(seconds) if seconds >= 0 else f"-{units.duration(-seconds).strip()}"


def _lost(per_s: float) -> str:
    return f"{'-' if per_s >= 0 else '+'}{units.rate(abs(per_s), 0)}"


def _bar(start: float, end: float, glyph: str) -> str:
    """A bar of BAR cells from `start` to `end`, as shares of the whole. A part has at least one cell."""
    left, right = sorted((round(max(0.0, min(1.0, start)) * BAR), round(max(0.0, min(1.0, end)) * BAR)))
    left = min(left, BAR - 1)
    return (" " * left + glyph * max(1, right - left)).ljust(BAR)
