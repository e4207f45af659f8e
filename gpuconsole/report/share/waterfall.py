"""The attainable rate of a run, and the losses between that rate and the reached rate."""

from __future__ import annotations

from gpuconsole.model import units
from gpuconsole.model.figure import Attainable, TimePart
from gpuconsole.model.run import Run
from gpuconsole.model.text import visible
from gpuconsole.report.parts import labelled
from gpuconsole.report.run.account import attainable_report, share_text, why_no_share
from gpuconsole.report.share.document import Block, Folded, Loss, Waterfall, Words


def attainable_blocks(label: str, run: Run) -> list[Block | Folded]:
    """The waterfall of a run, its rates, and the limits of the calculation; or the reason why there is none. `label`: which run, or empty."""
    found = run.attainable
    if found is None or not share_text(run):
        return [Words([labelled(label or f"run {run.id}", f"{units.NA}: {visible(why_no_share(run))}", "dim")])]
    title = ": ".join(filter(None, (label, share_text(run))))
    return [
        waterfall(title, found),
        Folded(
            "Reached and attainable rates, and how they are calculated",
            [Words([*attainable_report(run), labelled("formula", visible(found.formula))])],
        ),
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
    return Waterfall(rows, title, f"time of each {found.per}")


def _cost(part: TimePart, unit: str) -> str:
    """`-15.4 samples/s`: what the part costs of the rate."""
    return f"-{units.quantity(part.lost_per_s, unit)}" if part.lost_per_s > 0 else ""
