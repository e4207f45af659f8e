"""A serving run's latencies and its server's state, each in a line."""

from __future__ import annotations

from gpuconsole.model.run import Distribution, Run
from gpuconsole.report import facts
from gpuconsole.report import units as format
from gpuconsole.report.cells import Row, Segment, line, row_width
from gpuconsole.session.api import View

LATENCIES = (("TTFT", "ttft_s"), ("TPOT", "tpot_s"), ("ITL", "itl_s"), ("E2E", "e2e_s"), ("client queue", "client_queue_s"))
"""What matters most comes first: the last ones go where there is no room."""
FULL = 0.9


def serving_rows(view: View, run: Run, width: int, room: int) -> list[Row]:
    """Latencies, then the server; as many rows as there is room for."""
    return [_latencies(run, width), _server(view, run, width)][: max(0, room)]


def figures(view: View, run: Run, width: int) -> list[Segment]:
    """Requests per second, those within the objective, what tokens cost, and failures."""
    summary = run.summary
    if summary.requests_per_s is None:
        return []
    text = f"{format.digits(summary.requests_per_s.mean)} requests/s"
    if summary.goodput_per_s is not None:
        text += f"   goodput {format.digits(summary.goodput_per_s)}/s"
    text += facts.costs(view) if width >= 100 else ""
    failed: list[Segment] = []
    if summary.failed_requests:
        cause = next(iter(summary.failures), "") if width >= 110 else ""
        failed = [(f"   {summary.failed_requests} failed" + (f": {cause}" if cause else ""), "alert")]
    return [(text, "accent"), *failed]


def _latencies(run: Run, width: int) -> Row:
    entries: list[Segment] = []
    for name, field in LATENCIES:
        found: Distribution | None = getattr(run.summary, field)
        p50, p99, unit = format.durations(found.p50, found.p99) if found is not None else (format.NA, "", "")
        entry: list[Segment] = [("   " if entries else "", ""), (f"{name} p50", "dim"), (f" {p50.strip()}", "title")]
        entry += [(f" p99 {p99.strip()} {unit}", "")] if found is not None else []
        if row_width(entries + entry) > width:
            break
        entries += entry
    return line(width, *entries)


def _server(view: View, run: Run, width: int) -> Row:
    running, waiting = facts.latest(view, "server.requests_running"), facts.latest(view, "server.requests_waiting")
    if running is None and waiting is None:
        told = "the server has not told its state yet" if facts.active(view) else "the server's side is unknown"
        return line(width, (told if view.run is not None else "", "dim"))
    usage, preemptions = facts.latest(view, "server.kv_cache_usage_ratio"), facts.latest(view, "server.preemptions_per_s")
    hits = facts.latest(view, "server.prefix_hit_ratio")
    entries: list[Segment] = [("server ", "dim"), (f"running {running or 0:.0f}  waiting {waiting or 0:.0f}", "title")]
    more: list[Segment] = []
    if usage is not None:
        more.append((f"  KV cache {format.percent(usage)}", "alert" if usage >= FULL else ""))
    if preemptions is not None:
        more.append((f"  preemptions {format.digits(preemptions)}/s", "alert" if preemptions > 0 else ""))
    if hits is not None:
        more.append((f"  prefix hits {format.percent(hits)}", ""))
    for name, ratio in (("MFU", run.summary.mfu_ratio), ("MBU", run.summary.mbu_ratio)):
        if ratio is not None:
            more.append((f"  {name} {format.percent(ratio)}", ""))
    for entry in more:  # whole ones only
        if row_width([*entries, entry]) <= width:
            entries.append(entry)
    return line(width, *entries)
