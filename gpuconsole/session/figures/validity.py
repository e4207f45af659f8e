"""Whether the figures of a serving run can be trusted. Pure: computed from the record of the run."""

from __future__ import annotations

from collections import Counter

from gpuconsole.model.run import Validity
from gpuconsole.session.run import RunRecord
from gpuconsole.session.serving import ServingRecord

STARVED = 0.15
"""The load generator waits for a CPU for more than this share of the time: its latencies include the wait. From benchmarks/loadgen/starved.py, a
starved client and a scripted server with its own CPU: with a TTFT of 20 ms, the median TTFT was 5 % too high at 14 to 18 %, and 11 to 19 % too high at
38 %; with a TTFT of 200 ms, 2 % at 47 %. TPOT, E2E and tokens/s stayed within 3 %. Where client and server share the CPUs, the wait also shows that the
server lacks CPU time: 0.82 of the tokens/s of an independent client at 31 to 72 % (vLLM on two cores)."""
FAILED = 0.01
"""More than this share of the requests failed. Percentiles are over the answered requests only. A failed request has no latency, so it counts as
slower than all others: with more than 1 % of failures, p99 is a failed request, and the printed p99 is too low."""
MOST_FAILED = 0.6
"""More than this share of the requests failed: the figures describe a minority. With more than 50 %, the median request failed. The limit is a little
higher, so that the verdict of a server that fails every second request does not depend on the last request."""
MOST_DOWN = 0.5
"""The server stopped to answer for good, and did not answer for more than this share of the measured time: the figures describe the smaller part of the
run. A server that answers again degrades a run."""


def validity(record: RunRecord) -> Validity | None:
    """The verdict over the counted requests of the run, with its reasons. None for a training run, and before an active run has a counted request.
    None also where the user stopped the run before a request counted, except in an outage, or where all requests failed."""
    serving = record.serving
    if serving is None:
        return None
    over = record.closed_t is not None
    failed = sum(serving.failures.values())
    counted = serving.answered + failed
    in_trouble = serving.outages.current is not None or (bool(serving.uncounted) and not serving.uncounted[""])
    if not counted and (not over or (record.run.state == "stopped" and not in_trouble)):
        return None
    broken = _broken(serving, failed)
    doubts = [*_outages(serving, over), *_failures(serving.failures, failed, counted, not broken), *_client(serving)]
    if over and record.run.state == "failed" and counted:
        doubts.append("the run failed before its end")
    reasons = [*broken, *doubts]
    return Validity("invalid" if broken else "degraded" if reasons else "valid", reasons)


def _broken(serving: ServingRecord, failed: int) -> list[str]:
    """The reason why no figure is valid."""
    counted = serving.answered + failed
    if not counted:
        answered = serving.uncounted[""]
        if answered:
            return [f"the warm-up did not end: none of the {answered} answered requests counts"]
        causes = Counter({cause: count for cause, count in serving.uncounted.items() if cause})
        return [f"no request was answered{_commonest(causes)}"]
    if not serving.answered:
        return [f"no {'counted ' if serving.uncounted[''] else ''}request was answered{_commonest(serving.failures)}"]
    own, since = serving.failed_in_outages, serving.counted_from or 0.0
    if serving.outages.current is not None and serving.outages.ratio(since) > MOST_DOWN:
        return [f"the server did not answer for {serving.outages.ratio(since) * 100:.0f} % of the time"]
    if failed - own > MOST_FAILED * (counted - own):  # the number of failures in an outage depends on the pauses of the client
        return [f"{failed} of {counted} requests failed{_commonest(serving.failures)}"]
    return []


def _outages(serving: ServingRecord, over: bool) -> list[str]:
    last, since = serving.outages.last, serving.counted_from or 0.0  # a slow first answer, before a request counts, spoils no figure
    if last is None or not serving.outages.count(since):
        return [f"the server restarted{_times(serving.restarts)}: its counters began again"] if serving.restarts else []
    seconds, count = serving.outages.total_s(since), serving.outages.count(since)
    often = f" in {count} outages" if count > 1 else ""
    if last.ended is None and not over:
        return [f"the server has not answered for {seconds:.0f} s{often} ({last.why})"]
    return [f"the server did not answer for {seconds:.0f} s{often} ({last.why})"]


def _failures(failures: Counter[str], failed: int, counted: int, named: bool) -> list[str]:
    if not named or failed <= FAILED * counted:
        return []
    return [f"{failed / counted * 100:.2g} % of the requests failed{_commonest(failures)}"]


def _client(serving: ServingRecord) -> list[str]:
    """The reasons that the load generator is the cause of."""
    waited = serving.runq_ratio(serving.counted_from) if serving.counted_from is not None else None
    found = [f"the load generator waited for a CPU {waited * 100:.0f} % of the time"] if waited is not None and waited > STARVED else []
    return found + ([f"{serving.dropped} messages of the load generator were lost"] if serving.dropped else [])


def _commonest(causes: Counter[str]) -> str:
    return f"; the commonest cause: {causes.most_common(1)[0][0]}" if causes else ""


def _times(count: int) -> str:
    return f" {count} times" if count > 1 else ""
