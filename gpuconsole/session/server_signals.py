"""The signals about a model server that come from its own page, and whether it makes progress.

They are the same under a load of ours and under the load of others: a page does not know who sends
the requests. What a page does not tell has no signal.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from gpuconsole.model.finding import Signal
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.text import percent
from gpuconsole.session.figures.distributions import of_histogram
from gpuconsole.wire.events import ServerState

SERVER = "the server's /metrics"
FULL_KV = 0.9
FACTS = {
    "weight_bytes": "B", "kv_bytes_per_token": "B", "kv_cache_tokens": "tokens",
    "peak_bytes_per_s": "B/s", "frontend_processes": "processes",
}  # fmt: skip
"""What a server says of itself, with the units."""
GAUGES = {
    "requests_running": "requests", "requests_waiting": "requests", "kv_cache_usage_ratio": "ratio",
    "requests_deferred": "requests", "requests_short_of_capacity": "requests",
    "grammar_waiting": "requests", "front_waiting": "requests", "models_loaded": "models",
    "on_gpu_ratio": "ratio", "asleep": "", "accept_length": "tokens", "accept_ratio": "ratio",
    "lora_limit": "adapters", "engines": "engines", "replicas": "servers",
}  # fmt: skip
"""Gauges whose mean the rules read, with their units."""
OUTCOMES = (
    "requests", "requests_failed", "requests_aborted", "requests_rejected", "requests_invalid",
)  # fmt: skip
"""The ways in which requests end: answered, failed, aborted by the client, refused for lack of
room, refused with HTTP 4xx (a prompt that is too long, a wrong model, a malformed request)."""


class ServerReadings(NamedTuple):
    """The readings of a server that a diagnosis is about. `gained`, `buckets`: the increase of each
    count and of each bucket of a histogram over `wall` seconds."""

    states: Sequence[ServerState]
    gained: Mapping[str, float]
    buckets: Mapping[tuple[str, float], float]
    wall: float
    progress: ServerProgress

    def gauges(self, name: str) -> list[float]:
        return [state.gauges[name] for state in self.states if name in state.gauges]

    def buckets_of(self, name: str) -> dict[float, float]:
        return {bound: count for (of, bound), count in self.buckets.items() if of == name}


# --- whether the server makes progress ------------------------------------------------------------


MOVES = (
    "generation_tokens", "requests", "requests_failed", "prompt_tokens", "itl_s_count",
    "ttft_s_count",
)  # fmt: skip
"""Totals of which one grows while an engine works."""
CACHE = "kv_cache_usage_ratio"
STILL_S, STILL_SGLANG_S = 15.0, 45.0
"""A longer standstill is a hang. SGLang writes its gauges again only every 30 s while it has
nothing to do: until then the last request seems to run."""


STILL_SHARE = 0.05
"""A past standstill of more than this share of the time spoils the figures; a present one always
does."""


def standstill_limit_s(engine: str) -> float:
    """Return the seconds without progress after which this engine stands still."""
    return STILL_SGLANG_S if engine == "sglang" else STILL_S


class ServerProgress(NamedTuple):
    """Since when engines of a server make no progress. `still_since`: the time of the first reading
    of the present standstill, by engine (an empty name: the whole server); without the engines that
    make progress, have nothing to do, or do not report the use of the KV cache. Engines of the last
    kind (TGI, llama.cpp) count the tokens of a request only when it ends. `longest_s`: the seconds
    of the longest standstill so far. `last`: the newest reading."""

    still_since: Mapping[str, float] = {}
    longest_s: float = 0.0
    last: ServerState | None = None

    def after(self, state: ServerState) -> ServerProgress:
        """Return the progress after one more reading. A token, the end of a request, a prompt that
        is read, and a change of the KV cache are progress; a request that its client aborts is
        not."""
        before = self.last
        if before is None:
            return ServerProgress({}, self.longest_s, state)
        parts = {"": (before.totals | before.gauges, state.totals | state.gauges)}
        for name in state.engines.keys() & before.engines.keys():
            parts[name] = before.engines[name], state.engines[name]
        since = {
            name: self.still_since.get(name, before.t)
            for name, (then, now) in parts.items()
            if CACHE in now and has_work(now) and not moved(then, now)
        }
        longest = max([self.longest_s, *(state.t - begun for begun in since.values())])
        return ServerProgress(since, longest, state)

    @property
    def still_s(self) -> float:
        """Return the seconds of the longest present standstill of an engine; 0 without one."""
        return self.last.t - min(self.still_since.values()) if self.last and self.still_since else 0

    @property
    def still_engines(self) -> list[str]:
        """Return the names of the engines that stand still, where others go on."""
        return [] if "" in self.still_since else sorted(self.still_since)


def has_work(now: Mapping[str, float]) -> bool:
    """Return whether requests run or wait for room, on a page that counts work."""
    ready = now.get("requests_waiting", 0.0) - now.get("requests_deferred", 0.0)
    counted = any(name in now for name in MOVES)
    return counted and (now.get("requests_running", 0.0) > 0 or ready > 0)


def moved(then: Mapping[str, float], now: Mapping[str, float]) -> bool:
    """Return whether an engine made progress between two readings."""
    return any(now.get(name) != then.get(name) for name in (*MOVES, CACHE))


# --- the signals ----------------------------------------------------------------------------------


def server_signals(
    readings: ServerReadings, knobs: Knobs, facts: Mapping[str, float]
) -> dict[str, Signal]:
    """Return the signals that rules read from the page of a server. `facts`: what the server says
    of itself; `knobs`: the settings in force."""
    signals = _state_signals(readings) | _rate_signals(readings) | _outcome_signals(readings)
    signals |= _limit_signals(readings, knobs, facts) | _engine_signals(readings)
    signals |= _histogram_signals(readings)
    if "server.token_limit" not in signals and (budget := _token_budget(readings, signals)):
        signals["server.token_limit"] = budget
    for name, unit in FACTS.items():
        if name in facts:
            measured = ", layers of the model's shape for one row, measured there"
            signals[f"server.{name}"] = Signal(
                facts[name], unit, f"the server{measured if unit == 'B/s' else ''}"
            )
    return signals


def _state_signals(readings: ServerReadings) -> dict[str, Signal]:
    """The means of the gauges, and how full the KV cache is."""
    signals: dict[str, Signal] = {}
    for name, unit in GAUGES.items():
        if values := readings.gauges(name):
            signals[f"server.{name}"] = Signal(
                statistics.fmean(values), unit, f"{SERVER}, mean of {len(values)}"
            )
    if busy := readings.gauges("frontend_cpu_ratio"):
        source = f"/proc of the process that answers, n={len(busy)}"
        signals["server.frontend_cpu_ratio"] = Signal(statistics.fmean(busy), "ratio", source)
    if busy := readings.gauges("forward_busy_ratio"):
        signals["server.forward_ratio"] = Signal(
            statistics.fmean(busy), "ratio", f"{SERVER}, mean of {len(busy)}"
        )
    if usage := readings.gauges("kv_cache_usage_ratio"):
        signals["server.kv_cache_peak_ratio"] = Signal(
            max(usage), "ratio", f"{SERVER}, highest of {len(usage)}"
        )
        full = sum(value >= FULL_KV for value in usage) / len(usage)
        source = f"{SERVER}, share of {len(usage)} readings at {percent(FULL_KV)} or more"
        signals["server.kv_cache_full_ratio"] = Signal(full, "ratio", source)
        idle = [
            state.gauges["kv_cache_usage_ratio"]
            for state in readings.states
            if "kv_cache_usage_ratio" in state.gauges
            and state.gauges.get("requests_running") == 0
            and not state.gauges.get("requests_waiting")
        ]
        if 2 * len(idle) > len(usage):
            signals["server.kv_cache_idle_ratio"] = Signal(
                statistics.fmean(idle), "ratio", f"{SERVER}, mean of {len(idle)} without a request"
            )
    return signals


def _rate_signals(readings: ServerReadings) -> dict[str, Signal]:
    """What the server does in a second, over the time of the readings, and its standstill."""
    signals: dict[str, Signal] = {}
    gained, wall = readings.gained, readings.wall
    over = f"{SERVER}, over {wall:.0f} s"
    for name, unit in (
        ("prompt_tokens", "tokens/s"),
        ("generation_tokens", "tokens/s"),
        ("preemptions", "/s"),
        ("requests", "/s"),
    ):
        if name in gained and wall > 0:
            signals[f"server.{name}_per_s"] = Signal(gained[name] / wall, unit, over)
    if gained.get("requests") and "preemptions" in gained:
        signals["server.preemptions_per_request"] = Signal(
            gained["preemptions"] / gained["requests"], "", over
        )
    elif gained.get("preemptions"):
        signals["server.preemptions"] = Signal(
            gained["preemptions"], "", f"{SERVER}, no request ended in {wall:.0f} s"
        )
    if gained.get("prefix_queries") and "prefix_hits" in gained:
        signals["server.prefix_hit_ratio"] = Signal(
            gained["prefix_hits"] / gained["prefix_queries"],
            "ratio",
            f"{SERVER}, tokens found over tokens looked up",
        )
    elif reported := readings.gauges("prefix_hit_ratio"):
        signals["server.prefix_hit_ratio"] = Signal(
            statistics.fmean(reported), "ratio", f"{SERVER}, mean of {len(reported)}"
        )
    if gained.get("draft_tokens") and "accepted_tokens" in gained:
        signals["server.accept_ratio"] = Signal(
            gained["accepted_tokens"] / gained["draft_tokens"],
            "ratio",
            f"{SERVER}, accepted over drafted tokens",
        )
    engines = max(1.0, max(readings.gauges("engines"), default=1.0))
    for total, name in (
        ("scheduler_idle_s", "scheduler_idle_ratio"),
        ("forward_s", "forward_ratio"),
    ):
        if total in gained and wall > 0:
            signals[f"server.{name}"] = Signal(
                min(1.0, gained[total] / wall / engines),
                "ratio",
                f"{SERVER}, seconds of {wall:.0f} s",
            )
    past_s = readings.progress.longest_s
    if past_s > STILL_SHARE * wall:
        signals["server.longest_still_s"] = Signal(past_s, "s", f"{SERVER}, longest standstill")
    if readings.gauges(CACHE) and any(name in gained for name in MOVES):
        signals["server.still_s"] = Signal(
            readings.progress.still_s,
            "s",
            f"{SERVER}, since the last token, end of a request, or change of the KV cache",
        )
        if still := readings.progress.still_engines:
            signals["server.still_engines"] = Signal(
                float(len(still)), "engines", f"{SERVER}: {', '.join(still)}"
            )
    return signals


def outcomes(states: Sequence[ServerState], gained: Mapping[str, float]) -> dict[str, float]:
    """Count the requests by the way in which they ended. vLLM (0.32, tried) does not count requests
    that their clients abort: `_aborted` estimates them."""
    counts = {name: gained.get(name, 0.0) for name in OUTCOMES}
    # the engine and its web server count the same failures, the web server refusals too
    errors = gained.get("http_errors", 0.0) - counts["requests_rejected"]
    counts["requests_failed"] = max(counts["requests_failed"], errors)
    if states and not counts["requests_aborted"]:
        counts["requests_aborted"] = max(_left_engine(states, gained), _left_web_server(states))
    return counts


def _left_engine(states: Sequence[ServerState], gained: Mapping[str, float]) -> float:
    """Count the requests that have a first token, have not ended, and do not run. The estimate may
    be wrong by the number of running requests, so return 0 for a smaller estimate."""
    if not {"ttft_s_count", "e2e_s_count"} <= gained.keys():
        return 0.0
    running = [state.gauges.get("requests_running", 0.0) for state in states]
    gone = gained["ttft_s_count"] - gained["e2e_s_count"] - (running[-1] - running[0])
    return gone if gone > max(running) else 0.0


MIN_WHOLE = 4
"""The least number of readings that tell a steady rise from a random one."""


def _left_web_server(states: Sequence[ServerState]) -> float:
    """Count the requests that the web server has answered (HTTP 2xx) and the engine has not ended:
    the clients of these requests have left. Web server and engine do not count an answer at the
    same moment, so a single reading may be wrong by the answers that are just ending. Requests for
    several answers (n=2) hide aborted requests."""
    points: list[tuple[float, float]] = []
    before = 0.0
    for state in states:
        if "http_answers" not in state.totals or "requests" not in state.totals:
            continue
        answers = state.totals["http_answers"]
        if answers < before:
            points.clear()  # the server has restarted
        before = answers
        ended = state.totals["requests"] + state.totals.get("requests_failed", 0.0)
        points.append((state.t, answers - ended))
    if len(points) < MIN_WHOLE:
        return 0.0
    quarter, values = len(points) // 4, [value for _, value in points]
    rise = min(values[-quarter:]) - max(values[:quarter])
    tops = itertools.accumulate(values, max)
    chance = max(top - value for top, value in zip(tops, values, strict=True))
    if rise <= chance:
        return 0.0
    seen_s = points[-quarter][0] - points[quarter - 1][0]
    return rise * (points[-1][0] - points[0][0]) / seen_s


def _outcome_signals(readings: ServerReadings) -> dict[str, Signal]:
    """The shares of the ended requests that failed, were aborted, and were refused."""
    counts = outcomes(readings.states, readings.gained)
    ended = sum(counts.values())
    if ended <= 0:
        return {}
    return {"server.requests_ended": Signal(ended, "requests", f"{SERVER}, in all ways")} | {
        f"server.{name.removeprefix('requests_')}_ratio": Signal(
            counts[name] / ended, "ratio", f"{SERVER}, {counts[name]:.0f} of {ended:.0f} requests"
        )
        for name in OUTCOMES[1:]
        if name in readings.gained or counts[name]
    }


MIN_GAPS = 300
"""A 99th percentile needs three values above it."""


def _histogram_signals(readings: ServerReadings) -> dict[str, Signal]:
    """The means of the histograms, the tails of the time between tokens, and the length of a
    request."""
    signals: dict[str, Signal] = {}
    gained, wall = readings.gained, readings.wall
    for key, count in gained.items():
        if key.endswith("_count") and count > 0:
            name = key.removesuffix("_count")
            signals[f"server.{name}"] = Signal(
                gained.get(f"{name}_sum", 0.0) / count,
                "tokens" if name.endswith("_tokens") else "s",
                f"{SERVER}, mean over {wall:.0f} s",
            )
    gaps = of_histogram("itl_s", gained, readings.buckets_of("itl_s"))
    if gaps is not None and gaps.within and gaps.n >= MIN_GAPS:
        source = f"{SERVER}, buckets of {gaps.n} gaps"
        median, tail = gaps.within["p50"], gaps.within["p99"]
        if median[1] is not None:
            signals["server.itl_p50_upper_s"] = Signal(median[1], "s", f"{source}: p50 is below")
        signals["server.itl_p99_lower_s"] = Signal(tail[0], "s", f"{source}: p99 is above")
    ended = gained.get("requests", 0.0)
    tokens = gained.get("finished_prompt_tokens", gained.get("prompt_tokens"))
    if "server.request_prompt_tokens" not in signals and ended and tokens is not None:
        signals["server.request_prompt_tokens"] = Signal(
            tokens / ended, "tokens", f"{SERVER}, prompt tokens over ended requests"
        )
    return signals


# --- limits that a server reports, and limits that its readings show ------------------------------

MIN_QUEUED = 5
"""A limit is inferred from so many readings with a queue."""
SLACK = 0.25
"""A request that has just ended is out of the gauge, and the next one not yet in it. A reading may
be below the limit by what ends between two readings, and by no more than this share of the limit:
a real vLLM with 16 slots and answers of 60 to 100 tokens shows 16 in half of the readings."""
FLAT = 0.8
"""A limit is inferred if so many of the readings with a queue are at it, but for SLACK."""
REPLACED = 0.5
"""A limit is inferred if at least so many requests ended, for each slot: those that wait take the
places of those that end."""
MANY = 16
"""With so many running requests that get tokens, a constant count means a limit, even if hardly a
request ends in this time: an answer may take longer than the watch."""
MIN_INFERRED = 4
"""Fewer running requests may have many causes: one long request, slots of adapters, a grammar."""
PROMPTS = 2.0
MIN_BUDGET = 512
"""No engine has a smaller budget by itself: smaller iterations are as large as their prompts."""
MOSTLY = 0.5
"""A token budget is inferred where iterations have twice as many tokens as sequences run, and half
of them are in the last bucket that has any."""


def _running(state: ServerState) -> float:
    """The running requests of the engine that runs most."""
    of_engines = [gauges.get("requests_running", 0.0) for gauges in state.engines.values()]
    return max(of_engines, default=state.gauges["requests_running"])


def _limit_signals(
    readings: ServerReadings, knobs: Knobs, facts: Mapping[str, float]
) -> dict[str, Signal]:
    """The limits of an engine, and how often all its sequence slots are taken while requests wait.
    A limit that nothing reports is inferred: `server.sequence_top`, at least which it is."""
    signals: dict[str, Signal] = {}
    reported = readings.gauges("token_limit")
    if tokens := (reported[-1] if reported else facts.get("max_num_batched_tokens")):
        signals["server.token_limit"] = Signal(
            tokens, "tokens", SERVER if reported else "the server"
        )
    both = [
        state
        for state in readings.states
        if {"requests_running", "requests_waiting"} <= state.gauges.keys()
    ]
    limit, source = facts.get("max_num_seqs"), "the server"
    if limit and (changed := float(knobs.get("max_num_seqs", 0) or 0)):
        limit = min(limit, changed)  # a live change may have lowered the limit
    of_page = [state.gauges["sequence_limit"] for state in both if "sequence_limit" in state.gauges]
    if not limit and of_page and of_page[-1]:
        limit, source = of_page[-1], SERVER
    queued = [_running(state) for state in both if state.gauges["requests_waiting"] >= 1]
    # a refused request never had a slot
    ends = outcomes(readings.states, readings.gained)
    ended = sum(ends[name] for name in ("requests", "requests_failed", "requests_aborted"))

    def taken(top: float) -> float:
        slack = min(ended / max(1, len(both) - 1), SLACK * top)
        return sum(running >= top - slack for running in queued) / len(queued)

    if limit:
        signals["server.sequence_limit"] = Signal(limit, "requests", source)
        if both:
            share = taken(limit) if queued else 0.0
            at = f"{SERVER}, share of {len(queued)} readings with a queue and every slot taken"
            signals["server.slots_taken_ratio"] = Signal(share, "ratio", at)
    elif len(queued) >= MIN_QUEUED and 2 * len(queued) >= len(both):
        top = max(queued)
        replaced = ended >= REPLACED * top
        works = top >= MANY and readings.gained.get("generation_tokens", 0.0) > 0
        if top >= MIN_INFERRED and taken(top) >= FLAT and (replaced or works):
            words = (
                f"inferred: at most {top:.0f} run in {len(queued)} readings with a queue, and"
                f" {ended:.0f} requests {'that ended were replaced at once' if replaced else 'end'}"
            )
            signals["server.sequence_top"] = Signal(top, "requests", words)
    return signals


def _token_budget(readings: ServerReadings, signals: Mapping[str, Signal]) -> Signal | None:
    """The token budget of an iteration, inferred: most iterations are in one bucket of the
    histogram, none is larger, and prompts fill them."""
    count, total = (
        readings.gained.get("iteration_tokens_count", 0.0),
        readings.gained.get("iteration_tokens_sum", 0.0),
    )
    needed = ("server.requests_running", "server.requests_waiting")
    if count <= 0 or not all(name in signals for name in needed):
        return None
    running, waiting = (signals[name].value for name in needed)
    short = signals.get("server.requests_short_of_capacity")
    waiting = short.value if short is not None else waiting
    # iterations of decoding alone are as large as the batch
    if waiting < 1 or total / count < PROMPTS * running:
        return None
    counts = sorted(readings.buckets_of("iteration_tokens").items())
    place = next((place for place, (_, number) in enumerate(counts) if number >= count), None)
    if place is None:
        return None
    bound, below = counts[place][0], counts[place - 1] if place else (0.0, 0.0)
    share = 1 - below[1] / count
    source = (
        f"inferred: {percent(share)} of the iterations have {below[0]:.0f} to {bound:.0f}"
        " tokens, and none has more"
    )
    return Signal(bound, "tokens", source) if share >= MOSTLY and bound >= MIN_BUDGET else None


# --- several engines on one page ------------------------------------------------------------------

QUEUED = 1.0
"""An engine in which at least one request waits on average has a queue."""
NO_QUEUE, ROOM, ROOM_KV = 0.5, 0.8, 0.8
"""An engine could take more if less than every second reading has a waiting request, it runs less
than this share of its limit (or of what the fullest engine runs), and uses less than this share of
its KV cache."""


def _engine_signals(readings: ServerReadings) -> dict[str, Signal]:
    """How unequal the engines on one page are: how many have a queue and hold how many of the
    waiting requests, and how many could take more. Empty for one engine."""
    names = sorted({name for state in readings.states for name in state.engines})
    # engines of different models, or for prefill and decoding, share no requests
    if len(names) < 2 or max(readings.gauges("kinds_of_engines"), default=1.0) > 1:
        return {}

    def mean(of: Callable[[dict[str, float]], float | None], name: str) -> float:
        values = [
            value
            for state in readings.states
            if name in state.engines and (value := of(state.engines[name])) is not None
        ]
        return statistics.fmean(values) if values else 0.0

    waiting = {name: mean(lambda gauges: gauges.get("requests_waiting"), name) for name in names}
    running = {name: mean(lambda gauges: gauges.get("requests_running"), name) for name in names}
    cache = {name: mean(lambda gauges: gauges.get("kv_cache_usage_ratio"), name) for name in names}
    most = max(readings.gauges("sequence_limit"), default=max(running.values()))
    queued = [name for name in names if waiting[name] >= QUEUED]
    room = [
        name
        for name in names
        if waiting[name] < NO_QUEUE and running[name] < ROOM * most and cache[name] < ROOM_KV
    ]
    source = f"{SERVER}, of {len(names)} engines"
    which = f"{source}: {', '.join(queued)}" if queued else source
    return {
        "server.engine_running": Signal(max(running.values()), "requests", f"{source}, most"),
        "server.engines_queued": Signal(float(len(queued)), "engines", which),
        "server.engines_with_room": Signal(float(len(room)), "engines", source),
        "server.queued_waiting": Signal(
            sum(waiting[name] for name in queued), "requests", f"{which}, waiting in them"
        ),
        "server.queued_running": Signal(
            max((running[name] for name in queued), default=0.0), "requests", f"{which}, most"
        ),
        "server.room_running": Signal(
            statistics.fmean(running[name] for name in room) if room else 0.0,
            "requests",
            f"{source}, mean of those without a queue",
        ),
        "server.room_kv_ratio": Signal(
            max((cache[name] for name in room), default=0.0), "ratio", f"{source}, fullest of those"
        ),
    }
