"""Shared by the rules about a server that is only watched: everything comes from its own metrics
page, under the load of other clients."""

from __future__ import annotations

from collections.abc import Mapping

from gpuconsole.diagnosis.families.serving import NOTABLE_QUEUE
from gpuconsole.diagnosis.probes import PROBE_OF
from gpuconsole.diagnosis.rule import Case, Threshold
from gpuconsole.model import units
from gpuconsole.model.engines import why_lacking
from gpuconsole.model.serving import PROBE_TOKENS

FULL = Threshold("full", 0.9, "ratio", "a KV cache that is 90 % full or more (survey I04)")
TAKEN = Threshold(
    "taken", 0.5, "ratio", "all slots are in use in most readings (see serve.seats_too_few)"
)
RATE = Threshold(
    "rate",
    0.01,
    "per request",
    "1 preemption in 100 requests is notable (see serve.kv_full_preemption)",
)
WORKS = Threshold("busy", 0.9, "of the time", "the GPU is in forward passes for 90 % of the time")
BEFORE = Threshold("before", 0.1, "s", "people notice a wait of 0.1 s (Miller 1968, Nielsen 1993)")
PART = Threshold(
    "part", 0.2, "of the wait", "a fifth of the time to the first token, as far as it is certain"
)
QUEUE = Threshold(
    "queue",
    0.1,
    "of the request",
    "a tenth of a request's time: from this share on a wait is worth a name",
)

FROM = {
    "kv_cache_peak_ratio": "kv_cache_usage_ratio",
    "kv_cache_full_ratio": "kv_cache_usage_ratio",
    "preemptions_per_request": "preemptions",
    "seats_taken_ratio": "sequence_limit",
    "itl_p50_upper_s": "itl_s",
    "itl_p99_lower_s": "itl_s",
    "scheduler_idle_ratio": "scheduler_idle_s",
    "forward_ratio": "forward_s",
}
"""The name in data/engines.toml of the signals that are made from another one."""
WORDS = {
    "requests_running": "the number of running requests",
    "requests_waiting": "the number of waiting requests",
    "requests_deferred": "the number of deferred requests",
    "kv_cache_usage_ratio": "the use of the KV cache",
    "preemptions": "the count of preemptions",
    "sequence_limit": "the limit of running sequences",
    "token_limit": "the limit of tokens in an iteration",
    "iteration_tokens": "the number of tokens in an iteration",
    "itl_s": "the time between tokens",
    "scheduler_idle_s": "the idle time of the scheduler",
    "forward_s": "the time of the forward passes",
    "request_prompt_tokens": "the length of the prompts",
    "generation_tokens_per_s": "the count of tokens",
}
"""Signals in words."""


def lacks(case: Case, signal: str) -> str:
    """Why a rule has no conclusion without `signal`: what is missing, and what turns it on."""
    if signal in PROBE_OF:
        return (
            "the page is of an engine alone and does not show how long a client waits before it: P"
            " asks, and sends a few requests (--probe)"
        )
    name = signal.removeprefix("server.")
    source = FROM.get(name, name)
    return (
        f"{WORDS.get(source, source)} is missing:"
        f" {why_lacking(str(case.knobs.get('server', '')), source.removesuffix('_per_s'))}"
    )


def short_of_room(case: Case) -> float:
    """The requests that wait for a slot or for the KV cache: where the engine names the reasons,
    without those that are deferred. Raises Missing."""
    return case.get("server.requests_short_of_capacity", case.value("server.requests_waiting"))


def queues(case: Case) -> bool:
    """Whether requests wait for room in the engine. Raises Missing."""
    return short_of_room(case) >= NOTABLE_QUEUE


def cache_is_full(case: Case) -> bool:
    """Whether the KV cache is full in most readings; False where the engine does not say."""
    return case.get("server.kv_cache_full_ratio", 0.0) >= TAKEN


def preempts(case: Case) -> bool:
    """Whether the server throws requests out of a full cache."""
    return (
        case.get("server.preemptions_per_request", 0.0) >= RATE
        and case.get("server.kv_cache_peak_ratio", 1.0) >= FULL
    )


def slots_are_taken(case: Case) -> bool:
    """Whether all sequence slots are in use in most readings; False where the limit is not
    known."""
    return case.get("server.seats_taken_ratio", 0.0) >= TAKEN


def queue_ratio(case: Case) -> float:
    """The share of a request's time in the server that it waits; 0 where the engine does not
    say."""
    whole = case.get("server.e2e_s", 0.0)
    return min(1.0, case.get("server.queue_s", 0.0) / whole) if whole > 0 else 0.0


def recoverable(case: Case) -> float:
    """The share of a request's time that a cure of the queue frees: at least a twentieth, because
    something waits."""
    return max(0.05, min(0.9, queue_ratio(case)))


# --- what a probe has shown -----------------------------------------------------------------------

PROBED = (
    "probe.client_ttft_s", "probe.client_itl_s", "probe.chunks", "probe.requests_beside",
    "probe.engine_ttft_lower_s", "probe.engine_ttft_upper_s", "probe.before_engine_s",
    "probe.before_engine_upper_s", "probe.engine_itl_s",
)  # fmt: skip
"""What the probe of a watched server measures."""


def probed(case: Case) -> dict[str, float]:
    """What the probe has measured; empty without one."""
    return {name: case.value(name) for name in PROBED if case.has(name)}


def in_one_piece(probe: Mapping[str, float]) -> bool:
    """Whether answers come in one or two chunks: something between the client and the engine holds
    their tokens back."""
    return probe.get("probe.chunks", PROBE_TOKENS) <= 2


def largest_wait(probe: Mapping[str, float]) -> float:
    """The seconds before the engine from which on they are worth a name."""
    return max(float(BEFORE), PART * probe["probe.client_ttft_s"])


def probe_words(probe: Mapping[str, float]) -> str:
    """The result of the probe in one clause: `a client waits 900 ms for its first token, the engine
    counts 200 ms: 700 ms pass before the engine`."""
    client = units.duration(probe["probe.client_ttft_s"]).strip()
    beside = probe.get("probe.requests_beside")
    beside_words = (
        ""
        if beside is None
        else " beside no other request"
        if beside < 0.5
        else f" beside {beside:.0f} others"
    )
    if "probe.before_engine_s" not in probe:
        return f"a client waits {client} for its first token{beside_words}{_itl(probe)}"
    engine = _span(probe["probe.engine_ttft_lower_s"], probe["probe.engine_ttft_upper_s"])
    low, high = probe["probe.before_engine_s"], probe["probe.before_engine_upper_s"]
    words = f"a client waits {client} for its first token{beside_words}, the engine counts {engine}"
    if in_one_piece(probe):
        return f"{words}, and the answer comes in one piece"
    if high < largest_wait(probe):
        return (
            f"{words}: no more than {units.duration(high).strip()} pass before the"
            f" engine{_itl(probe)}"
        )
    return f"{words}: {_span(low, high)} pass before the engine{_itl(probe)}"


def client_words(ttft_s: float, itl_s: float) -> str:
    """`requests of ours: first token after 120 ms, then a token every 12 ms`. `itl_s`: 0 where it
    is not known."""
    then = f", then a token every {units.duration(itl_s).strip()}" if itl_s else ""
    return f"requests of ours: first token after {units.duration(ttft_s).strip()}{then}"


def _span(low: float, high: float) -> str:
    first, second, unit = units.durations(low, high)
    return (
        f"{second.strip()} {unit}"
        if first == second
        else f"{first.strip()} to {second.strip()} {unit}"
    )


def _itl(probe: Mapping[str, float]) -> str:
    client, engine = probe.get("probe.client_itl_s"), probe.get("probe.engine_itl_s")
    if client is None:
        return ""
    return f"; then a token every {units.duration(client).strip()}" + (
        f" (the engine: {units.duration(engine).strip()})" if engine else ""
    )
