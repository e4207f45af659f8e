"""The places of the program that take the time of a step: functions and lines, from samples of the stack."""

from __future__ import annotations

from gpuconsole.model import units
from gpuconsole.model.run import Run
from gpuconsole.model.stacks import PARTS, Place
from gpuconsole.model.text import visible
from gpuconsole.report.cells import Segment
from gpuconsole.report.parts import Column, Report, Table, heading

SMALLEST = 0.01
LARGE = 0.5
"""From this share of its samples on, a place is said to wait."""


def places_report(run: Run) -> Report:
    """The functions of the program with the largest shares of a step, the largest first; empty where no stack was sampled."""
    places = [place for place in run.places if place.share_ratio >= SMALLEST]
    if not places:
        return []
    columns = (
        Column("share", ">"),
        Column("line"),
        Column("function", least=8),
        Column("part of the step", drop=1),
        Column("", drop=2, least=8),
    )
    rows: list[list[Segment]] = [
        [
            (units.percent(place.share_ratio).strip(), ""),
            (visible(place.line), ""),
            (visible(place.function), ""),
            (PARTS.get(place.part, place.part), "dim"),
            (visible(activity(place)), "dim"),
        ]
        for place in places
    ]
    return [heading("Time of a step by function of the program"), Table(columns, rows)]


def activity(place: Place) -> str:
    """`waits in queue.Queue.get, called by train.py:31 main`: what the thread does in a place."""
    what = "waits" if place.waits_ratio >= LARGE else ""
    inner = f"{what} in {place.callee}".strip() if place.callee else what
    return ", ".join(part for part in (inner, f"called by {place.caller}" if place.caller else "") if part)
