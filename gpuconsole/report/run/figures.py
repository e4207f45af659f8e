"""The figures that several reports of a run share, each as text; and why the figures of a serving
run are degraded or invalid."""

from __future__ import annotations

from gpuconsole.model import units
from gpuconsole.model.figures import FIGURES, SummaryFigure
from gpuconsole.model.knobs.knob import show
from gpuconsole.model.run import Distribution, Run
from gpuconsole.model.text import visible
from gpuconsole.report.cells import Segment
from gpuconsole.report.parts import Report, labelled
from gpuconsole.session.api import View
from gpuconsole.session.figures.summary import STARVED

GAP = "   "

OF_FLOPS = ("flops_per_s", "mfu_ratio", "mfu_causal_ratio", "hfu_ratio")
TOTALS = ("FLOP/s", "FLOP/s/W", "bytes/s", "bytes", "J")
"""Units of totals and of their rates: a 0 means that nothing was counted."""


def with_unit(figure: SummaryFigure, value: float) -> str:
    """`41.2 MB`, `31 %`, `12.4 requests/s`."""
    if figure.text:
        return figure.text.format(units.plain(value))
    return (
        units.precise_percent(value)
        if figure.unit == "ratio"
        else units.quantity(value, figure.unit)
    )


def figure_text(run: Run, field: str, share: str = "mean", with_peak: bool = True) -> str:
    """The figure `field` of the summary, empty where it was not measured: `440 ms`,
    `18 240 ± 210 tokens/s`, `31 % of datasheet bf16`.

    `share`: which value of the distribution of a time.
    """
    figure, value = FIGURES[field], getattr(run.summary, field)
    if value is None or (value == 0 and figure.unit in TOTALS):
        return ""
    if field == "loss_last" and run.summary.loss_first is not None:
        return f"{run.summary.loss_first:.3f} -> {value:.3f}"
    if isinstance(value, Distribution) and figure.unit == "s":
        return units.latency(getattr(value, share)).strip()
    if isinstance(value, Distribution) and not figure.text:
        return f"{units.spread(value.mean, value.std if value.n > 1 else None, 0)} {figure.unit}"
    peak = getattr(run.summary, figure.peak) if figure.peak and with_peak else ""
    least = "at least " if run.summary.mfu_at_least and field in OF_FLOPS else ""
    return (
        least
        + with_unit(figure, value.mean if isinstance(value, Distribution) else value)
        + (f" of {peak}" if peak else "")
    )


def in_row(run: Run, field: str, with_peak: bool = True) -> str:
    """The figure as a row of a report shows it: `MFU 31 % of datasheet bf16`; empty where it was
    not measured."""
    figure = figure_text(run, field, with_peak=with_peak)
    return FIGURES[field].row[1].format(figure) if figure else ""


def figure_rows(run: Run) -> Report:
    """The rows of the figures that have no report of their own, each row with all its figures."""
    rows: dict[str, list[str]] = {}
    for field, figure in FIGURES.items():
        shown = figure.row[0] and (not figure.needs or figure_text(run, figure.needs))
        if shown and (text := in_row(run, field)):
            rows.setdefault(figure.row[0], []).append(text)
    return [labelled(label, GAP.join(figures)) for label, figures in rows.items()]


def throughput(run: Run) -> str:
    """`18 240 ± 210 tokens/s`."""
    return figure_text(run, "tokens_per_s") or figure_text(run, "samples_per_s") or units.NA


def served(run: Run) -> str:
    """`354 ± 15 tokens/s; TTFT 49.2 ms, p99 135 ms; E2E 900 ms, p99 1.09 s`: the figures of a model
    server."""
    times = [
        (
            f"{FIGURES[field].label} {figure_text(run, field, 'p50')}, p99"
            f" {figure_text(run, field, 'p99')}"
        )
        for field in ("ttft_s", "e2e_s")
        if (latency := getattr(run.summary, field)) is not None and latency.p99 is not None
    ]
    return "; ".join([throughput(run), *times])


def client_title(run: Run) -> str:
    """`GuideLLM 0.8.1, Qwen/Qwen3-8B, concurrency 8`: a run that another client measured."""
    model = run.server.model if run.server is not None else None
    load = [
        f"{name} {show(run.knobs[name])}"
        for name in ("concurrency", "request_rate", "arrivals")
        if run.knobs.get(name)
    ]
    return ", ".join([run.client, *([str(model.value)] if model is not None else []), *load[:1]])


def work(run: Run) -> str:
    """`127 requests`, `1 steady step`, `398 steps, never steady`."""
    over = run.state not in ("starting", "running")
    never = not run.serves and over and run.steady_from_s is None
    count, noun = (
        (run.summary.requests, "request")
        if run.serves
        else (run.summary.steps, "step" if never else "steady step")
    )
    words = f"{count} {noun}" if count == 1 else f"{count} {noun}s"
    return f"{words}, never steady" if never and count else words


# --- degraded and invalid figures -----------------------------------------------------------------


def doubtful(run: Run) -> bool:
    """Whether the figures of the run are degraded or invalid."""
    return run.validity is not None and run.validity.verdict != "valid"


def verdict(run: Run) -> str:
    """The verdict with all reasons in one line: `degraded: the server did not answer for 12 s
    (connection refused)`. Empty without a verdict."""
    validity = run.validity
    return (
        visible(": ".join(filter(None, (validity.verdict, "; ".join(validity.reasons)))))
        if validity is not None
        else ""
    )


def validity_report(run: Run) -> Report:
    """A row for each reason why the figures are degraded or invalid. Empty if the figures are
    valid."""
    validity = run.validity
    if validity is None or not doubtful(run):
        return []
    rows = [f"{validity.verdict}: {validity.reasons[0]}", *validity.reasons[1:]]
    return [
        labelled(" " if n else "numbers", visible(reason), "alert") for n, reason in enumerate(rows)
    ]


def outage(view: View) -> str:
    """`the server has not answered for 12 s: connection refused`; empty while the server
    answers."""
    if not view.down:
        return ""
    return visible(f"the server has not answered for {view.down_s:.0f} s: {view.down}")


def starved(run: Run) -> bool:
    """Whether the load generator lacked CPU time, so that its latencies are too high."""
    return (run.summary.client_runq_ratio or 0.0) > STARVED


def client_report(run: Run) -> Report:
    """The share of the time in which the load generator waited for a CPU: it is part of every
    latency below it."""
    waited = run.summary.client_runq_ratio
    if waited is None:
        return []
    waiting: list[Segment] = [
        (
            f"the client waited for a CPU {units.precise_percent(waited)} of the time",
            "alert" if starved(run) else "",
        )
    ]
    if starved(run):
        waiting.append(
            (": the latencies, TTFT most of all, are too high and not reliable", "alert")
        )
    return [labelled("client", waiting)]
