"""Whether the figures of a serving run can be trusted, in words."""

from __future__ import annotations

from gpuconsole.model.run import Run
from gpuconsole.model.text import visible
from gpuconsole.report import units
from gpuconsole.report.cells import Segment
from gpuconsole.report.parts import Report, labelled
from gpuconsole.session.api import View
from gpuconsole.session.figures.validity import STARVED


def doubtful(run: Run) -> bool:
    """Whether the figures of the run are degraded or invalid."""
    return run.validity is not None and run.validity.verdict != "valid"


def verdict(run: Run) -> str:
    """The verdict with all reasons in one line: `degraded: the server did not answer for 12 s (connection refused)`. Empty without a verdict."""
    found = run.validity
    return visible(": ".join(filter(None, (found.verdict, "; ".join(found.reasons))))) if found is not None else ""


def validity_report(run: Run) -> Report:
    """A row for each reason why the figures are degraded or invalid. Empty if the figures are valid."""
    found = run.validity
    if found is None or not doubtful(run):
        return []
    rows = [f"{found.verdict}: {found.reasons[0]}", *found.reasons[1:]]
    return [labelled(" " if n else "figures", visible(words), "alert") for n, words in enumerate(rows)]


def outage(view: View) -> str:
    """`the server has not answered for 12 s: connection refused`; empty while the server answers."""
    if not view.down:
        return ""
    return visible(f"the server has not answered for {view.down_s:.0f} s: {view.down}")


def starved(run: Run) -> bool:
    """Whether the load generator lacked CPU time, so that its latencies are too high."""
    return (run.summary.client_runq_ratio or 0.0) > STARVED


def client_report(run: Run) -> Report:
    """The share of the time in which the load generator waited for a CPU: it is part of every latency below it."""
    waited = run.summary.client_runq_ratio
    if waited is None:
        return []
    words: list[Segment] = [(f"the client waited for a CPU {units.precise_percent(waited)} of the time", "alert" if starved(run) else "")]
    if starved(run):
        words.append((": the latencies, TTFT most of all, are too high and not reliable", "alert"))
    return [labelled("client", words)]
