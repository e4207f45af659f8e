"""The attainable rate of a run, and the losses between that rate and the reached rate."""

from __future__ import annotations

from gpuconsole.model.figure import Attainable, RatePair, TimePart
from gpuconsole.model.run import Run
from gpuconsole.model.text import visible
from gpuconsole.report import units
from gpuconsole.report.parts import Column, Report, Table, labelled, text
from gpuconsole.report.run.attainable import share_text, why_no_share
from gpuconsole.report.share.document import Block, Folded, Loss, Waterfall, Words


def attainable_blocks(label: str, run: Run) -> list[Block | Folded]:
    """The waterfall of a run, its rates, and the limits of the calculation; or the reason why there is none. `label`: which run, or empty."""
    found = run.attainable
    if found is None or not share_text(run):
        return [Words([labelled(label or f"run {run.id}", f"{units.NA}: {visible(why_no_share(run))}", "dim")])]
    title = ": ".join(filter(None, (label, share_text(run))))
    return [
        waterfall(title, found),
        Folded("Reached and attainable rates, and how they are calculated", [Words([_rates(found), *_limits(found)])]),
    ]


def waterfall(title: str, found: Attainable) -> Waterfall:
    """Each part begins where the part before it ends; the last row is the whole time at the reached rate."""
    rows: list[Loss] = []
    start = 0.0
    unit = found.main.unit if found.main is not None else ""
    for part in found.parts:
        rows.append(Loss(part.title, start, part.time_s, units.duration(part.time_s).strip(), _cost(part, unit), "" if rows else "work"))
        start += part.time_s
    rows.append(Loss("at the reached rate", 0.0, start, units.duration(start).strip(), "", "total"))
    return Waterfall(rows, title, f"time of each {found.per}; amber: lost")


def _cost(part: TimePart, unit: str) -> str:
    """`-15.4 samples/s`: what the part costs of the rate."""
    return f"-{units.quantity(part.lost_per_s, unit)}" if part.lost_per_s > 0 else ""


def _rates(found: Attainable) -> Table:
    columns = (Column("rate"), Column("reached", ">"), Column("attainable", ">"), Column("share", ">"))
    return Table(columns, [[(words, "") for words in _rate(one)] for one in found.rates])


def _rate(one: RatePair) -> list[str]:
    values = [units.quantity(value, one.unit) for value in (one.reached_per_s, one.attainable_per_s)]
    return [one.title, *values, units.precise_percent(one.share_ratio)]


def _limits(found: Attainable) -> Report:
    """What limits the attainable rate, with the peaks and the formula, and what the calculation leaves out."""
    rows: Report = [labelled("limited by", found.bound)] if found.bound is not None else []
    rows += [labelled(label, visible(words)) for label, words in (("peaks", found.source), ("formula", found.formula)) if words]
    notes = [*found.notes, *(f"{part.title}: {part.note}" for part in found.parts if part.note)]
    return [*rows, *(text(visible(note), "dim") for note in notes)]
