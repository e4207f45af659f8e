"""The summary of a run, computed from its record when a view, a snapshot or a rule asks for it; its
cost; and whether the figures of a serving run can be trusted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import msgspec

from gpuconsole.model.engines import why_lacking
from gpuconsole.model.machine import UNKNOWN_GPU, Device
from gpuconsole.model.run import Rank, Run, Step, Summary, Validity
from gpuconsole.model.snapshot import Environment
from gpuconsole.model.stacks import Place
from gpuconsole.session.figures.breakdown import (
    RATES,
    add_bandwidth,
    add_served_work,
    of_all_processes,
    summarize,
)
from gpuconsole.session.figures.flops import SampleFlops, flops_of_sample
from gpuconsole.session.figures.peak import (
    Peak,
    bandwidth_peak,
    facts_of_rates,
    flops_peak,
    why_above,
)
from gpuconsole.session.figures.totals import Totals
from gpuconsole.session.machine import devices_used
from gpuconsole.session.run import RunRecord
from gpuconsole.session.server_signals import STILL_SHARE, standstill_limit_s
from gpuconsole.session.serving import ServingRecord

# --- cost of work ---------------------------------------------------------------------------------

SECONDS_PER_HOUR = 3600.0
NO_PRICE = "no price is known: --price PER_HOUR"
NO_POWER = "the device reports no power"
GPU_NOT_KNOWN = (
    "which GPU this job uses is not known: torch reports no uuid and no address of it, and the"
    " driver lists no process of the job"
)


def rates_per_watt(
    tokens_per_s: float | None,
    samples_per_s: float | None,
    flops_per_s: float | None,
    power_w: float | None,
) -> dict[str, float]:
    """Work per joule, by metric: work per second over watts of the same time. Empty if the power is
    not known."""
    if not power_w:
        return {}
    per_joule = {}
    if samples_per_s:
        per_joule["workload.samples_per_j"] = samples_per_s / power_w
    if tokens_per_s:
        per_joule["workload.tokens_per_j"] = tokens_per_s / power_w
    if flops_per_s:
        per_joule["workload.flops_per_j"] = flops_per_s / power_w
    return per_joule


def cost_per_million_tokens(tokens_per_s: float, price_per_hour: float) -> float:
    """Price of a million tokens, in the currency of `price_per_hour`, which is the price of
    everything that the run uses."""
    return price_per_hour / (tokens_per_s * SECONDS_PER_HOUR) * 1e6


# --- the summary of a run, computed from its record when a view, a snapshot or a rule asks for it
# ---

_Computed = tuple[Summary, list[Rank], list[Place], dict[str, str], Validity | None]
_Key = tuple[int, int | None, tuple[Device, ...], Environment]
_memo: WeakKeyDictionary[RunRecord, tuple[_Key, _Computed]] = WeakKeyDictionary()
"""The last result for each record, with all inputs of the computation."""


def summarized(
    record: RunRecord, devices: Sequence[Device], environment: Environment, limit: int | None = None
) -> Run:
    """A copy of the record's run with its summary, its ranks, its validity, and the reasons for
    missing figures.

    The summary uses the last `limit` steady steps (None: all of them, the percentiles the stored
    ones), or all or the last steps while no step is steady. In a serving run any `limit` means the
    last LIVE_STEPS ticks. Energy and cost are known after the end of the run. The record does not
    change. `environment` contains the price and the calibration of this machine.
    """
    if record.archived is not None:
        before = record.archived
        return msgspec.structs.replace(
            record.run,
            summary=before.summary,
            ranks=before.ranks,
            places=before.places,
            unavailable={**before.unavailable, **record.run.unavailable},
            validity=before.validity,
        )
    key = (
        record.version if limit is None else record.live_version,
        limit,
        tuple(devices),
        environment,
    )
    memo = _memo.get(record)
    if memo is None or memo[0] != key:
        memo = _memo[record] = (key, _compute(record, devices, environment, limit))
    summary, ranks, places, missing, valid = memo[1]
    return msgspec.structs.replace(
        record.run,
        summary=summary,
        ranks=ranks,
        places=places,
        unavailable={**missing, **record.run.unavailable},
        validity=valid,
    )


def work_of(record: RunRecord, totals: Totals) -> SampleFlops | None:
    """FLOPs of a sample of these steps; None where they are neither counted nor estimated."""
    run = record.run
    tokens = totals.tokens / totals.samples if totals.samples else 0.0
    return flops_of_sample(run.facts, run.knobs, tokens)


def peaks_of(
    record: RunRecord, devices: Sequence[Device], environment: Environment
) -> tuple[Peak | None, Peak | None]:
    """The reference FLOP/s and bytes per second of the run. None for a watched server whose device
    is not known."""
    run = record.run
    if run.watched and not run.server_devices:
        return None, None
    device = next((device for device in devices if device.id == run.device), Device(run.device, ""))
    # a server may run on another machine
    calibration = None if run.serves else environment.calibration
    facts = facts_of_rates(run)
    flops = flops_peak(
        run.settings,
        facts,
        device.peaks,
        device.is_gpu,
        serves=run.serves,
        calibration=calibration,
        measured_as=record.notes.get("peak", ""),
    )
    return flops, bandwidth_peak(
        run.settings, facts, device.peaks, device.is_gpu, serves=run.serves, calibration=calibration
    )


def _compute(
    record: RunRecord, devices: Sequence[Device], environment: Environment, limit: int | None
) -> _Computed:
    steps = record.summary_steps(limit)
    totals = record.side_work.totals if limit is None else Totals(steps)
    peaks = peaks_of(record, devices, environment)
    if record.serving is not None:
        serving = record.serving
        if limit is not None and record.live is not None:
            serving, steps = record.live
        summary, ranks = (
            _serving_summary(record, serving, steps, peaks, limit is not None),
            list[Rank](),
        )
    else:
        summary = _training_summary(record, steps, totals, peaks)
        ranks = record.ranks.summaries(limit)
    missing = (
        _add_cost(summary, record, devices, environment.price_per_hour)
        if record.closed_t is not None
        else {}
    )
    if record.run.watched:
        missing |= _not_reported(record)
    elif record.serving is not None and record.serving.in_one_piece and summary.ttft_s is None:
        missing |= dict.fromkeys(OF_FIRST_TOKENS, IN_ONE_PIECE)
    if record.run.device == UNKNOWN_GPU:
        missing["workload.mfu_ratio"] = GPU_NOT_KNOWN
    if peaks[0] is not None and summary.flops_per_s and summary.mfu_ratio is None:
        missing["workload.mfu_ratio"] = why_above(
            summary.flops_per_s / summary.whole_ratio, peaks[0]
        )
    if _issued_only(record, totals):
        for name in RATES:
            setattr(summary, name, None)
            missing[f"workload.{name}"] = ISSUED_ONLY
        summary.mfu_ratio = summary.mfu_causal_ratio = summary.hfu_ratio = None
        missing["workload.mfu_ratio"] = ISSUED_ONLY
    places = record.stacks.places(record.steady_t or 0.0)
    return summary, ranks, places, missing, validity(record)


ISSUED_ONLY = (
    "the host had issued all steps long before the GPU had done them, and the job ended before its"
    " step time was steady"
)
OF_ITS_TIME = 0.5
"""If steps take less than this share of the time of a job that does nothing else, the step times
are those of the host, not of the GPU."""


def _issued_only(record: RunRecord, totals: Totals) -> bool:
    """Return whether the step times of a job on a GPU that was never steady are only the times in
    which the host issues the steps. A launch queue holds a thousand replays of a CUDA graph."""
    run = record.run
    if not run.is_job or run.device == "cpu" or record.closed_t is None or record.steady_t:
        return False
    # without graphs, the rest of the time may be an evaluation, or files that are written
    if "memory.graph_pools" not in record.probe_signals:
        return False
    return 0 < totals.wall_s < OF_ITS_TIME * run.duration_s


ASKED_OF_SERVERS = {
    "tokens_per_s": "output tokens/s", "prompt_tokens_per_s": "input tokens/s",
    "requests_per_s": "requests", "requests_running": "running", "requests_waiting": "waiting",
    "kv_cache_usage_ratio": "KV cache", "preemptions_per_s": "preemptions",
    "prefix_hit_ratio": "prefix hits", "ttft_s": "TTFT", "itl_s": "ITL", "e2e_s": "E2E",
}  # fmt: skip
"""What is shown of every server that is watched, in words."""
_COUNTED = {
    "tokens_per_s": "generation_tokens",
    "prompt_tokens_per_s": "prompt_tokens",
    "requests_per_s": "requests",
    "preemptions_per_s": "preemptions",
}
SEVERAL_SERVERS = "several servers answer behind this address"
_FROM_WORKLOAD = ("tokens_per_s", "requests_per_s", "ttft_s", "itl_s", "e2e_s")


def _not_reported(record: RunRecord) -> dict[str, str]:
    """Why a figure of a watched server is missing, by the name of its metric. Empty before the
    first reading."""
    if record.serving is None or not record.serving.states:
        return {}
    state, server = record.serving.states[-1], record.run.server
    engine = str(server.engine.value) if server is not None and server.engine is not None else ""
    reported = {
        *state.gauges,
        *state.totals,
        *(name.removesuffix("_count") for name in state.totals),
    }
    reported |= {"prefix_hit_ratio"} & {
        name.replace("prefix_hits", "prefix_hit_ratio") for name in reported
    }
    names = {name: _COUNTED.get(name, name) for name in ASKED_OF_SERVERS}
    several = SEVERAL_SERVERS if record.serving.several_servers else ""
    return {
        f"{'workload' if name in _FROM_WORKLOAD else 'server'}.{name}": several
        or why_lacking(engine, "prefix_hits" if name == "prefix_hit_ratio" else signal)
        for name, signal in names.items()
        if signal not in reported
    }


def _training_summary(
    record: RunRecord,
    steps: Sequence[Step],
    totals: Totals,
    peaks: tuple[Peak | None, Peak | None],
) -> Summary:
    summary = summarize(steps, totals, work_of(record, totals), peaks[0])
    add_bandwidth(summary, totals, record.facts.get("bytes_per_sample"), peaks[1])
    if record.whole_ratio > 1:
        summary = of_all_processes(summary, record.whole_ratio)
        if summary.mfu_peak_source:
            summary.mfu_peak_source += "; per GPU"
    summary.memory_peak_bytes = record.memory_bytes
    if record.overhead_start is not None and record.seen_steps > record.overhead_start[1]:
        overhead_s, first = record.overhead_start
        summary.overhead_s_per_step = (record.overhead_s - overhead_s) / (record.seen_steps - first)
    summary.probes_s = record.probes_s or None
    if record.first_losses:
        summary.loss_first = sum(record.first_losses) / len(record.first_losses)
    return summary


def _serving_summary(
    record: RunRecord,
    serving: ServingRecord,
    ticks: Sequence[Step],
    peaks: tuple[Peak | None, Peak | None],
    live: bool,
) -> Summary:
    summary = serving.summary(ticks, record.opened.objective, live)
    if ticks:
        add_served_work(summary, serving.rates(ticks[0].t - ticks[0].wall_s), *peaks)
    return summary


def _add_cost(
    summary: Summary, record: RunRecord, devices: Sequence[Device], price_per_hour: float | None
) -> dict[str, str]:
    """Add energy and price of the work if they are known; return the reasons for missing
    figures."""
    missing: dict[str, str] = {}
    used, reason = devices_used(record.run, record.ranks.joined, record.device_of, devices)
    total = record.energy.total(used)
    if total is None:
        missing["workload.tokens_per_j"] = missing["workload.flops_per_j"] = reason or NO_POWER
    else:
        summary.energy_j, tokens = total
        summary.tokens_per_j = tokens / summary.energy_j if tokens else None
        if summary.tokens_per_j and summary.flops_per_s and summary.tokens_per_s:
            summary.flops_per_j = (
                summary.flops_per_s / summary.tokens_per_s.mean * summary.tokens_per_j
            )
    if summary.tokens_per_s is None:
        return missing
    if price_per_hour is None:
        missing["workload.cost_per_million_tokens"] = NO_PRICE
    else:
        summary.cost_per_million_tokens = cost_per_million_tokens(
            summary.tokens_per_s.mean, price_per_hour
        )
    return missing


# --- whether the figures of a serving run can be trusted ------------------------------------------

STARVED = 0.15
"""The load generator waits for a CPU for more than this share of the time: its latencies include
the wait. From benchmarks/loadgen/starved.py, a starved client and a scripted server with its own
CPU: with a TTFT of 20 ms, the median TTFT was 5 % too high at 14 to 18 %, and 11 to 19 % too high
at 38 %; with a TTFT of 200 ms, 2 % at 47 %. TPOT, E2E and tokens/s stayed within 3 %. Where client
and server share the CPUs, the wait also shows that the server lacks CPU time: 0.82 of the tokens/s
of an independent client at 31 to 72 % (vLLM on two cores)."""
FAILED = 0.01
"""More than this share of the requests failed. Percentiles are over the answered requests only. A
failed request has no latency, so it counts as slower than all others: with more than 1 % of
failures, p99 is a failed request, and the printed p99 is too low."""
MAX_FAILED_SHARE = 0.6
"""More than this share of the requests failed: the figures describe a minority. With more than
50 %, the median request failed. The limit is a little higher, so that the verdict of a server that
fails every second request does not depend on the last request."""
MAX_DOWN_SHARE = 0.5
"""The server stopped to answer for good, and did not answer for more than this share of the
measured time: the figures describe the smaller part of the run. A server that answers again
degrades a run."""


MAX_IN_ONE_PIECE = 0.1
"""More than this share of the answers came in one piece. Of a few, a busy client is the cause."""
IN_ONE_PIECE = (
    "answers come in one piece: something between buffers them, or the server does not stream"
)
OF_FIRST_TOKENS = ("workload.ttft_s", "workload.itl_s", "workload.tpot_s", "workload.chunk_gap_s")
"""The figures that an answer in one piece does not have."""


def validity(record: RunRecord) -> Validity | None:
    """The verdict over the counted requests of the run, with its reasons. None for a training run,
    and before an active run has a counted request. None also where the user stopped the run before
    a request counted, except in an outage, or where all requests failed."""
    serving = record.serving
    if serving is None:
        return None
    if serving.watched:
        return _watched_validity(record, serving)
    over = record.closed_t is not None
    failed = sum(serving.failures.values())
    counted = serving.answered + failed
    in_trouble = serving.outages.current is not None or (
        bool(serving.uncounted) and not serving.uncounted[""]
    )
    if not counted and (not over or (record.run.state == "stopped" and not in_trouble)):
        return None
    broken = _broken(serving, failed)
    doubts = [
        *_outages(serving, over),
        *_failures(serving.failures, failed, counted, not broken),
        *_in_one_piece(serving),
        *_client(serving),
    ]
    if over and record.run.state == "failed" and counted:
        doubts.append("the run failed before its end")
    reasons = [*broken, *doubts]
    return Validity("invalid" if broken else "degraded" if reasons else "valid", reasons)


def _watched_validity(record: RunRecord, serving: ServingRecord) -> Validity | None:
    """The verdict over a server that is only watched: outages, restarts, standstills, and requests
    that were not answered. None before there are two readings."""
    if len(serving.states) < 2:
        return None
    since = serving.states[0].t
    if serving.outages.current is not None and serving.outages.ratio(since) > MAX_DOWN_SHARE:
        return Validity(
            "invalid",
            [
                (
                    f"the server did not answer for {serving.outages.ratio(since) * 100:.0f} % of"
                    " the time"
                )
            ],
        )
    reasons = [*_outages(serving, record.closed_t is not None), *_not_served(record, serving)]
    if serving.several_servers:
        reasons.append(f"{SEVERAL_SERVERS}: no rate and no percentile is known")
    return Validity("degraded" if reasons else "valid", reasons)


ABORTED = 0.05
"""More than this share of the requests were aborted by their clients. People stop some answers."""
INVALID = 0.05
"""More than this share of the requests were refused with HTTP 4xx. Clients make mistakes."""
MIN_NOT_SERVED = 3
"""Fewer such requests are chance."""


def _not_served(record: RunRecord, serving: ServingRecord) -> list[str]:
    """The requests that the server did not answer, by its own counts, and its standstills."""
    counts = serving.outcomes(record.steady_t or 0.0)
    ended = sum(counts.values())
    reasons = [
        f"{counts[name] / ended * 100:.2g} % of the requests {words}"
        for name, words, limit in (
            ("requests_failed", "failed", FAILED),
            ("requests_rejected", "were refused", FAILED),
            ("requests_aborted", "were aborted by their clients", ABORTED),
            ("requests_invalid", "were refused (HTTP 4xx)", INVALID),
        )
        if counts[name] >= MIN_NOT_SERVED and counts[name] > limit * ended
    ]
    limit_s, watched_s = standstill_limit_s(record.run.engine), record.run.duration_s
    past_s, still_s = serving.progress.longest_s, serving.progress.still_s
    longest_s = past_s if past_s > STILL_SHARE * watched_s else still_s
    return reasons + (
        [f"no token came for {longest_s:.0f} s while requests were under way"]
        if longest_s >= limit_s
        else []
    )


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
        return [
            (
                f"no {'counted ' if serving.uncounted[''] else ''}request was"
                f" answered{_commonest(serving.failures)}"
            )
        ]
    own, since = serving.failed_in_outages, serving.counted_from or 0.0
    if serving.outages.current is not None and serving.outages.ratio(since) > MAX_DOWN_SHARE:
        return [
            f"the server did not answer for {serving.outages.ratio(since) * 100:.0f} % of the time"
        ]
    # the number of failures in an outage depends on the pauses of the client
    if failed - own > MAX_FAILED_SHARE * (counted - own):
        return [f"{failed} of {counted} requests failed{_commonest(serving.failures)}"]
    return []


def _outages(serving: ServingRecord, over: bool) -> list[str]:
    # a slow first answer, before a request counts, spoils no figure
    last, since = serving.outages.last, serving.counted_from or 0.0
    if last is None or not serving.outages.count(since):
        return (
            [f"the server restarted{_times(serving.restarts)}: its counters began again"]
            if serving.restarts
            else []
        )
    seconds, count = serving.outages.total_s(since), serving.outages.count(since)
    often = f" in {count} outages" if count > 1 else ""
    if last.ended is None and not over:
        return [f"the server has not answered for {seconds:.0f} s{often} ({last.why})"]
    return [f"the server did not answer for {seconds:.0f} s{often} ({last.why})"]


def _failures(failures: Counter[str], failed: int, counted: int, named: bool) -> list[str]:
    if not named or failed <= FAILED * counted:
        return []
    return [f"{failed / counted * 100:.2g} % of the requests failed{_commonest(failures)}"]


def _in_one_piece(serving: ServingRecord) -> list[str]:
    count, answered = serving.in_one_piece, serving.answered
    if count <= MAX_IN_ONE_PIECE * answered:
        return []
    part = "" if count == answered else f" of these {count} of {answered}"
    return [f"{IN_ONE_PIECE}; TTFT and ITL{part} are not known"]


def _client(serving: ServingRecord) -> list[str]:
    """The reasons that the load generator is the cause of."""
    waited = serving.runq_ratio(serving.counted_from) if serving.counted_from is not None else None
    reasons = (
        [f"the load generator waited for a CPU {waited * 100:.0f} % of the time"]
        if waited is not None and waited > STARVED
        else []
    )
    return reasons + (
        [f"{serving.dropped} messages of the load generator were lost"] if serving.dropped else []
    )


def _commonest(causes: Counter[str]) -> str:
    return f"; the commonest cause: {causes.most_common(1)[0][0]}" if causes else ""


def _times(count: int) -> str:
    return f" {count} times" if count > 1 else ""
