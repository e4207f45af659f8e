"""A serving run: its requests, its latencies and the state of its server."""

from __future__ import annotations

from collections.abc import Mapping

from gpuconsole.diagnosis.families.serving import PROBED, probe_words
from gpuconsole.model import units
from gpuconsole.model.figures import FIGURES, LATENCIES, SummaryFigure
from gpuconsole.model.finding import Signal
from gpuconsole.model.run import Distribution, Run
from gpuconsole.model.serving import OURS
from gpuconsole.model.text import visible
from gpuconsole.report.cells import Row, Segment, line, row_width
from gpuconsole.report.parts import BLANK, Column, Report, Table, labelled
from gpuconsole.report.run.figures import (
    GAP,
    client_report,
    figure_text,
    in_row,
    starved,
    with_unit,
)
from gpuconsole.session import facts
from gpuconsole.session.api import View
from gpuconsole.session.figures.summary import ASKED_OF_SERVERS
from gpuconsole.session.serving import OF_HISTOGRAMS

FULL = 0.9
"""From this share of used KV cache on, the figure is marked."""


# --- all figures ----------------------------------------------------------------------------------


def request_report(run: Run) -> Report:
    """Requests per second, failures with their causes, goodput. Empty for a training run."""
    summary = run.summary
    if not run.serves:
        return []
    report: Report = []
    if requests := figure_text(run, "requests_per_s"):
        counts = (
            f"   {summary.requests} answered, {summary.failed_requests}"
            f" {'aborted, failed or refused' if run.watched else 'failed'}"
        )
        report.append(
            labelled(
                "requests",
                [(requests, "title"), (counts, "alert" if summary.failed_requests else "")],
            )
        )
    report += [
        labelled("", f"{count} x {visible(cause)}", "alert", indent=2)
        for cause, count in summary.failures.items()
    ]
    if goodput := figure_text(run, "goodput_per_s"):
        report.append(labelled("goodput", f"{goodput} within the objective"))
    return report


def server_report(run: Run) -> Report:
    """What the model server reports about itself, each fact with its source. Empty where it reports
    nothing, and for a training run."""
    reported = run.server.known() if run.server is not None else {}
    if not reported:
        return []
    rows = [
        [(name, "dim"), (_fact(name, fact.value), ""), (fact.source, "dim")]
        for name, fact in reported.items()
    ]
    columns = (
        Column("the server reports", least=16),
        Column("value"),
        Column("source", least=8, drop=1),
    )
    return [Table(columns, rows), BLANK]


def _fact(name: str, value: float | str) -> str:
    if isinstance(value, str):
        return visible(value)
    if name.startswith("enable_"):
        return "on" if value else "off"
    return units.size_bytes(value) if name.endswith("_bytes") else f"{value:.12g}"


def latency_report(run: Run) -> Report:
    """How long the client waited for a CPU; then a table of latencies, each with its formula."""
    measured = [
        (figure, times)
        for figure in LATENCIES
        if (times := getattr(run.summary, figure.field)) is not None
    ]
    if not run.serves or not measured:
        return []
    heads = (("mean", 3), ("p50", 0), ("p90", 2), ("p95", 4), ("p99", 0))
    last = "by the server's histogram: p50, p99 within" if run.watched else "formula"
    columns = (
        Column("latency"),
        *(Column(head, ">", drop=drop) for head, drop in heads),
        Column(last, least=16, drop=1),
    )
    return [
        *client_report(run),
        Table(columns, [_latency_cells(figure, times) for figure, times in measured]),
    ]


def _latency_cells(figure: SummaryFigure, times: Distribution) -> list[Segment]:
    texts = [
        units.latency(value) if value is not None else ""
        for value in (times.mean, times.p50, times.p90, times.p95, times.p99)
    ]
    return [
        (figure.label, "dim"),
        *((text, "") for text in texts),
        (_within(times) or figure.formula, "dim"),
    ]


def _within(times: Distribution) -> str:
    """`10.0 to 25.0 ms, 25.0 to 50.0 ms`: the buckets of the median and of the 99th percentile.
    Empty for times that were measured one by one."""
    if not times.within:
        return ""
    return ", ".join(_bucket(*times.within[share]) for share in ("p50", "p99"))


def _bucket(lower: float, upper: float | None) -> str:
    if upper is None:
        return f"above {units.latency(lower).strip()}"
    low, high, unit = units.durations(lower, upper)
    return f"{low.strip()} to {high.strip()} {unit}"


# --- a server that is only watched ----------------------------------------------------------------

BY_REASON = {"requests_short_of_capacity": "for room", "requests_deferred": "deferred"}
"""Waiting requests by reason, in words."""


def watched_report(run: Run) -> Report:
    """The state of a server that is only watched, then what its engine does not report, each with
    the reason. Empty for other runs."""
    if not run.watched:
        return []
    found = {name.removeprefix("server."): signal.value for name, signal in run.signals.items()}
    state: list[str] = []
    for name, words in (
        ("requests_running", "running"),
        ("requests_waiting", "waiting"),
        ("front_waiting", "waiting before the engine"),
    ):
        if name in found:
            reasons = ", ".join(
                f"{units.plain(found[key])} {word}"
                for key, word in BY_REASON.items()
                if name == "requests_waiting" and key in found
            )
            state.append(f"{words} {units.plain(found[name])}{f' ({reasons})' if reasons else ''}")
    for name, words in (
        ("kv_cache_usage_ratio", "KV cache"),
        ("prefix_hit_ratio", "prefix hits"),
        ("forward_ratio", "GPU computes"),
    ):
        state += [f"{words} {units.percent(found[name]).strip()}"] if name in found else []
    state += (
        [f"preemptions {units.plain(found['preemptions_per_s'])}/s"]
        if "preemptions_per_s" in found
        else []
    )
    if "models_loaded" in found:
        state.append(f"models loaded {found['models_loaded']:.0f}")
    if found.get("on_gpu_ratio", 1.0) < 1:
        state.append(
            f"only {units.percent(found['on_gpu_ratio']).strip()} of their bytes on a GPU: the rest"
            " runs on the CPU"
        )
    state += ["asleep: its memory is given back"] if found.get("asleep") else []
    report: Report = [labelled("server", GAP.join(state))] if state else []
    if "prompt_tokens_per_s" in found:
        report.append(labelled("input", f"{units.rate(found['prompt_tokens_per_s'], 0)} tokens/s"))
    means = [
        f"{FIGURES[name].label} {units.latency(found[name]).strip()}"
        for name in OF_HISTOGRAMS
        if name in found and getattr(run.summary, name) is None
    ]
    if means:
        report.append(labelled("mean", f"{GAP.join(means)}   (the server has no histogram)"))
    if words := probe_report(run):
        report.append(labelled("probe", words))
    missing = {
        name.partition(".")[2]: why
        for name, why in run.unavailable.items()
        if name.partition(".")[2] in ASKED_OF_SERVERS
    }
    by_reason: dict[str, list[str]] = {}
    for name, why in missing.items():
        by_reason.setdefault(why, []).append(ASKED_OF_SERVERS[name])
    rows = [f"{', '.join(names)}: {visible(why)}" for why, names in by_reason.items()]
    return [*report, *(labelled(" " if n else units.NA, row, "dim") for n, row in enumerate(rows))]


def probe_report(run: Run) -> str:
    """`5 requests of ours: a client waits 900 ms for its first token, ...`: what the probe of a
    watched server has sent and shown. Empty where nothing was sent."""
    if OURS not in run.signals:
        return ""
    values = {name: run.signals[name].value for name in PROBED if name in run.signals}
    return f"{ours(run)}{f': {probe_words(values)}' if values else ''}"


def probe_result(signals: Mapping[str, Signal]) -> str:
    """The result of a probe that has just ended."""
    return (
        f"probe: {probe_words({name: signal.value for name, signal in signals.items()})}"
        if signals
        else "probe: nothing was measured"
    )


def ours(run: Run) -> str:
    """`5 requests of ours`; empty where nothing was sent to a watched server."""
    count = run.signals[OURS].value if OURS in run.signals else 0
    return f"{count:.0f} request{'' if count == 1 else 's'} of ours" if count else ""


# --- on the main screen ---------------------------------------------------------------------------


def serving_rows(view: View, run: Run, width: int, room: int) -> list[Row]:
    """Latencies, then the state of the server, in at most `room` rows."""
    return [_latencies(run, width), _server(view, run, width)][: max(0, room)]


COSTS = ("tokens_per_j", "cost_per_million_tokens")


def figures(view: View, run: Run, width: int) -> list[Segment]:
    """Requests per second, goodput and cost."""
    requests, goodput = figure_text(run, "requests_per_s"), run.summary.goodput_per_s
    if not requests:
        return []
    texts = [requests]
    if goodput is not None:
        texts.append(
            "goodput "
            f"{figure_text(run, 'goodput_per_s') if width >= 100 else f'{units.plain(goodput)}/s'}"
        )
    texts += live_costs(view, run) if width >= 100 else []
    return [(GAP.join(texts), "")]


def live_costs(view: View, run: Run) -> list[str]:
    """Tokens per joule and cost: of the last interval; after the end of the run, of the whole
    run."""
    if whole := [text for field in COSTS if (text := figure_text(run, field))]:
        return whole
    present = [(FIGURES[field], facts.latest(view, FIGURES[field].metric)) for field in COSTS]
    return [with_unit(figure, value) for figure, value in present if value is not None]


def _latencies(run: Run, width: int) -> Row:
    waited = run.summary.client_runq_ratio
    entries: list[Segment] = []
    if starved(run):  # before the figures, because the figures are not reliable
        entries.append(
            (f"client waited for a CPU {units.percent(waited).strip()} of the time", "alert")
        )
    for figure in (
        [figure for figure in LATENCIES if figure.field in OF_HISTOGRAMS]
        if run.watched
        else LATENCIES[:5]
    ):
        times: Distribution | None = getattr(run.summary, figure.field)
        p50, p99 = units.p50_p99(times.p50, times.p99) if times is not None else (units.NA, "")
        entry: list[Segment] = [
            (GAP if entries else "", ""),
            (f"{figure.label} p50", "dim"),
            (f" {p50}", "title"),
        ]
        entry += [(f" p99 {p99}", "")] if times is not None else []
        if row_width(entries + entry) > width:
            break
        entries += entry
    if waited is not None and not starved(run):
        entry = [(f"   client CPU wait {units.precise_percent(waited)}", "dim")]
        entries += entry if row_width(entries + entry) <= width else []
    return line(width, *entries)


def _server(view: View, run: Run, width: int) -> Row:
    running, waiting = (
        facts.latest(view, "server.requests_running"),
        facts.latest(view, "server.requests_waiting"),
    )
    if running is None and waiting is None:
        unknown = (
            "the server has not reported its state yet"
            if facts.active(view)
            else "the state of the server is not known"
        )
        why = facts.reason(view, "server.requests_running")
        return line(
            width,
            (
                f"server n/a: {why}" if why != facts.NO_SAMPLE else unknown,
                "alert" if view.down else "dim",
            ),
        )
    usage, preemptions = (
        facts.latest(view, "server.kv_cache_usage_ratio"),
        facts.latest(view, "server.preemptions_per_s"),
    )
    hits = facts.latest(view, "server.prefix_hit_ratio")
    entries: list[Segment] = [
        ("server ", "dim"),
        (f"running {running or 0:.0f}  waiting {waiting or 0:.0f}", "title"),
    ]
    more: list[Segment] = []
    if failed := run.summary.failed_requests:
        cause = next(iter(run.summary.failures), "") if width >= 100 else ""
        more.append((f"  {failed} failed" + (f": {visible(cause)}" if cause else ""), "alert"))
    if width < 100 and (requests := figure_text(run, "requests_per_s")):
        more.append((f"  {requests}", ""))
    if ours(run):
        more.append((f"  {ours(run)}", "accent"))
    if usage is not None:
        more.append((f"  KV cache {units.percent(usage)}", "alert" if usage >= FULL else ""))
    if preemptions is not None:
        more.append(
            (f"  preemptions {units.plain(preemptions)}/s", "alert" if preemptions > 0 else "")
        )
    if hits is not None:
        more.append((f"  prefix hits {units.percent(hits)}", ""))
    more += [
        (f"  {text}", "")
        for field in ("mfu_ratio", "mbu_ratio")
        if (text := in_row(run, field, with_peak=False))
    ]
    for entry in more:  # whole entries only
        if row_width([*entries, entry]) <= width:
            entries.append(entry)
    return line(width, *entries)
