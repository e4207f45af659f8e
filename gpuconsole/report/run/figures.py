"""The figures that several reports of a run share, each as text; and whether those of a serving run can be trusted, in words."""

from __future__ import annotations

from gpuconsole.model import units
from gpuconsole.model.run import Run
from gpuconsole.model.text import visible
from gpuconsole.report.cells import Segment
from gpuconsole.report.parts import Report, labelled
from gpuconsole.session.api import View
from gpuconsole.session.figures.summary import STARVED

# --- the figures that several reports of a run share, each as text -------------------------------------------


def throughput(run: Run) -> str:
    """`18 240 ± 210 tokens/s`."""
    rate, unit = run.throughput
    return f"{units.spread(rate.mean, rate.std if rate.n > 1 else None, 0)} {unit}" if rate else units.NA


def work(run: Run) -> str:
    """`127 requests`, `1 steady step`."""
    count, word = (run.summary.requests, "request") if run.serves else (run.summary.steps, "steady step")
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def step_time(run: Run) -> str:
    """The mean: `440 ms`."""
    found = run.summary.step_time_s
    return units.duration(found.mean).strip() if found else units.NA


def utilization(run: Run, name: str, with_peak: bool = True) -> str:
    """`MFU 31 % of datasheet bf16`; empty where the figure is not known. `name`: MFU or MBU."""
    summary = run.summary
    ratio, source = (summary.mfu_ratio, summary.mfu_peak_source) if name == "MFU" else (summary.mbu_ratio, summary.mbu_peak_source)
    if ratio is None:
        return ""
    return f"{name} {units.precise_percent(ratio)}" + (f" of {source}" if with_peak and source else "")


def costs(tokens_per_j: float | None, cost_per_million_tokens: float | None) -> list[str]:
    """`41.4 tokens/J` and `0.21 per million tokens`, as far as each is known."""
    found = [f"{units.plain(tokens_per_j)} tokens/J"] if tokens_per_j is not None else []
    return found + ([f"cost {units.plain(cost_per_million_tokens)} per million tokens"] if cost_per_million_tokens is not None else [])


# --- whether the figures of a serving run can be trusted, in words -------------------------------------------


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
