"""Shared by the rules about model servers: what a rule reads from the load client, from the page of
the server, or from both. A server is the same whether we send its load or others do."""

from __future__ import annotations

from collections.abc import Mapping

from gpuconsole.diagnosis.probes import PROBE_OF
from gpuconsole.diagnosis.rule import (
    CantTell,
    Case,
    Interval,
    Knobs,
    Missing,
    Suggestion,
    Threshold,
    percent,
)
from gpuconsole.model import units
from gpuconsole.model.engines import why_lacking
from gpuconsole.model.knobs.knob import Value, show
from gpuconsole.model.serving import PROBE_TOKENS
from gpuconsole.session.server_signals import standstill_limit_s

# --- thresholds that several rules share ----------------------------------------------------------

NOTABLE_QUEUE = 1.0
"""With fewer waiting requests on average there is no queue."""
FULL = Threshold("full", 0.9, "ratio", "a KV cache that is 90 % full or more (survey I04)")
TAKEN = Threshold(
    "taken",
    0.5,
    "ratio",
    (
        "all slots are in use in most readings (survey I03: 0.8; but answers of one length end"
        " together: 0.68 in DiagBench V02)"
    ),
)
RATE = Threshold(
    "rate",
    0.01,
    "per request",
    "1 preemption in 100 requests is notable, 5 are high (tensward; survey I04)",
)
MFU = Threshold("mfu", 0.5, "of the arithmetic", "half of the peak (survey I19)")
MBU = Threshold("mbu", 0.6, "of the bandwidth", "60 % of the memory bandwidth (survey I19)")
QUEUE = Threshold(
    "queue",
    0.1,
    "of the request",
    "a tenth of a request's time: a shorter wait is not reported",
)
LARGEST_QUEUE = Threshold(
    "queue",
    0.2,
    "of the request",
    "with 20 % of the time in the queue there is more load than the server can take",
)
NEAR = Threshold(
    "near",
    0.7,
    "ratio",
    "70 % of the slots or of the KV cache: a third more requests would fill them",
)
BUSY_HOST = Threshold(
    "busy host",
    0.5,
    "of the time",
    "tasks wait for a core half of the time (/proc/pressure/cpu): any gap may come from there",
)
SEVERAL = (
    "several servers answer behind this address, so no rate is known: watch each server by itself"
)
TOO_FEW_READINGS = "there were too few readings of the page in this time: watch for longer"
BEFORE = Threshold("before", 0.1, "s", "people notice a wait of 0.1 s (Miller 1968, Nielsen 1993)")
PART = Threshold(
    "part", 0.2, "of the wait", "a fifth of the time to the first token, as far as it is certain"
)

# --- what a rule reads, from the client or from the page ------------------------------------------


def engine_of(case: Case) -> str:
    """Return the engine of the server, as in data/engines.toml: `embedded` for our own, empty where
    nothing names it."""
    return str(case.knobs.get("server", ""))


def queue_ratio(case: Case) -> float:
    """Return the share of a request's time in the server that it waits in the queue. While a queue
    grows, the requests that leave it now have waited longer than those that end now have taken in
    all. Raises Missing."""
    return min(1.0, case.value("server.queue_s") / max(1e-9, case.value("server.e2e_s")))


def known_queue_ratio(case: Case) -> float:
    """Return `queue_ratio`, or 0 where the server does not report its times."""
    return queue_ratio(case) if case.has("server.queue_s", "server.e2e_s") else 0.0


def queue_words(case: Case) -> str:
    """Return `, for 57 % of a request's time`; empty where the server does not report its times."""
    if not case.has("server.queue_s", "server.e2e_s"):
        return ""
    return f", for {percent(queue_ratio(case))} of a request's time"


def recoverable(case: Case) -> float:
    """Return the share of a request's time that a cure of the queue frees: at least a twentieth,
    because something waits."""
    return max(0.05, min(0.9, known_queue_ratio(case)))


def short_of_room(case: Case) -> float:
    """Count the requests that wait for a slot or for the KV cache: where the engine names the
    reasons, without those that are deferred. Raises Missing."""
    return case.get("server.requests_short_of_capacity", case.value("server.requests_waiting"))


def queues(case: Case) -> bool:
    """Return whether requests wait for room in the engine. Raises Missing."""
    return short_of_room(case) >= NOTABLE_QUEUE


def are_deferred(case: Case) -> bool:
    """Return whether most of the requests that wait are not ready to run. Raises Missing."""
    deferred, waiting = (
        case.value("server.requests_deferred"),
        case.value("server.requests_waiting"),
    )
    waiting = max(waiting, deferred)  # SGLang counts its grammars apart
    return deferred >= NOTABLE_QUEUE and 2 * deferred >= waiting


def cache_is_full(case: Case) -> bool:
    """Return whether the KV cache is full in most readings; False where the engine does not say."""
    return case.get("server.kv_cache_full_ratio", 0.0) >= TAKEN


def preempts(case: Case) -> bool:
    """Return whether the server evicts requests from a full cache."""
    often = case.get("server.preemptions_per_request", 0.0) >= RATE
    alone = case.get("server.preemptions", 0.0) >= 1  # no request ended
    return (often or alone) and case.get("server.kv_cache_peak_ratio", 1.0) >= FULL


def slots_are_taken(case: Case) -> bool:
    """Return whether all sequence slots are in use while requests wait; False where no limit is
    known."""
    return case.get("server.slots_taken_ratio", 0.0) >= TAKEN


def running_of_engine(case: Case) -> float:
    """Return the running requests of the engine that runs most. Raises Missing."""
    return case.get("server.engine_running", case.value("server.requests_running"))


def prompt_tokens(case: Case) -> float:
    """Return the mean tokens of a prompt: of the requests that we send, or of those that the server
    counts. Raises Missing."""
    if case.has("client.prompt_tokens"):
        return case.value("client.prompt_tokens")
    return case.value("server.request_prompt_tokens")


def sequence_limit(case: Case) -> float | None:
    """Return the limit of running sequences of an engine; None where neither the page nor a setting
    has it."""
    if case.has("server.sequence_limit"):
        return case.value("server.sequence_limit")
    setting = case.knobs.get("max_num_seqs")
    return float(setting) if isinstance(setting, int | float) and setting else None


def token_budget(case: Case) -> float | None:
    """Return the limit of tokens in an iteration; None where neither a setting nor the page has
    it."""
    setting = case.knobs.get("max_num_batched_tokens")
    if isinstance(setting, int | float) and setting:
        return float(setting)
    return case.get("server.token_limit", 0.0) or None


def served(case: Case) -> bool:
    """Return whether requests ended and tokens came, as far as the page counts them; False where
    the page counts neither. Requests for embeddings or classes end without a token."""
    tokens, ended = "server.generation_tokens_per_s", "server.requests_per_s"
    if not case.has(tokens) and not case.has(ended):
        return False
    made = case.get(tokens, 1.0) > 0 or case.get("server.request_output_tokens", 0.0) == 0
    return made and case.get(ended, 1.0) > 0


def require_served(case: Case) -> None:
    """Raise CantTell, with the reason, where nobody was served: then nothing is called healthy."""
    if case.get("server.replicas", 0.0) > 1:
        raise CantTell(SEVERAL)
    if not served(case):
        tokens = "server.generation_tokens_per_s"
        if not case.has(tokens) and not case.has("server.requests_per_s"):
            raise Missing("server.requests_per_s")
        if case.get("server.requests_running", 0.0) + case.get("server.requests_waiting", 0.0) > 0:
            what = "no request ended" if case.get(tokens, 0.0) > 0 else "no token came"
            raise CantTell(f"{what} in this time, although requests are under way")
        ours = case.get("probe.client_ttft_s", 0.0)
        shown = f"; {client_words(ours, case.get('probe.client_itl_s', 0.0))}" if ours else ""
        raise CantTell(f"no request was answered in this time: there is nothing to judge{shown}")
    if (still := case.get("server.longest_still_s", 0.0)) >= standstill_limit_s(engine_of(case)):
        raise CantTell(f"no token came for {still:.0f} s while requests were under way")


def used(case: Case) -> dict[str, float]:
    """Return the known shares of the slots of an engine and of its KV cache that are in use, by
    their words."""
    shares: dict[str, float] = {}
    limit = sequence_limit(case)
    if limit and case.has("server.requests_running"):
        shares["of its slots"] = running_of_engine(case) / limit
    if case.has("server.kv_cache_usage_ratio"):
        shares["of its KV cache"] = case.value("server.kv_cache_usage_ratio")
    return shares


def host_is_busy(case: Case) -> bool:
    """Return whether tasks on the machine of the server wait for a core; False where the server is
    on another machine."""
    return case.get("host.run_queue_delay_ratio", 0.0) >= BUSY_HOST


CLIENT_GAPS = ("client.chunk_gap_p50_s", "client.chunk_gap_p99_s")
PAGE_GAPS = ("server.itl_p50_upper_s", "server.itl_p99_lower_s")


def gap_signals(case: Case) -> tuple[str, str]:
    """The signals of the median and of the 99th percentile of the time between tokens: by the load
    client, or by the buckets of the page (then an upper and a lower bound)."""
    return CLIENT_GAPS if case.has(*CLIENT_GAPS) else PAGE_GAPS


def spike(case: Case) -> float:
    """The 99th percentile of the time between tokens over its median. Raises Missing, and CantTell
    where the median is 0: chunks that arrive in one read carry the same time."""
    median, tail = map(case.value, gap_signals(case))
    if median <= 0:
        raise CantTell("the median gap between chunks is 0 s: several chunks arrive at once")
    return tail / median


# --- what a page lacks ----------------------------------------------------------------------------

FROM = {
    "kv_cache_peak_ratio": "kv_cache_usage_ratio",
    "kv_cache_full_ratio": "kv_cache_usage_ratio",
    "preemptions_per_request": "preemptions",
    "slots_taken_ratio": "sequence_limit",
    "kv_cache_idle_ratio": "kv_cache_usage_ratio",
    "still_s": "kv_cache_usage_ratio",
    "itl_p50_upper_s": "itl_s",
    "itl_p99_lower_s": "itl_s",
    "scheduler_idle_ratio": "scheduler_idle_s",
    "forward_ratio": "forward_s",
    "mbu_ratio": "flops",
    "mfu_ratio": "flops",
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
    "generation_tokens": "the count of tokens",
    "requests": "the count of ended requests",
    "flops": "the count of FLOPs and bytes",
    "prefill_s": "the time of the prefill",
    "decode_s": "the time of decoding",
}
"""Signals in words."""


def lacks(case: Case, signal: str) -> str:
    """Why a rule has no conclusion without `signal`: what is missing, and what turns it on."""
    if signal in PROBE_OF:
        return (
            "the page is of an engine alone and does not show how long a client waits before it: P"
            " asks, and sends a few requests (--probe)"
        )
    replicas = case.signals.get("server.replicas")
    if replicas is not None and replicas.value > 1:
        return SEVERAL
    if not any(known.startswith(("server.", "client.")) for known in case.signals):
        return TOO_FEW_READINGS
    name = signal.removeprefix("server.")
    if name.startswith(("itl_p50", "itl_p99")) and case.has("server.itl_s"):
        return "too few gaps between tokens came in this time for a 99th percentile"
    source = FROM.get(name, name).removesuffix("_per_s")
    return f"{WORDS.get(source, source)} is missing: {why_lacking(engine_of(case), source)}"


# --- the work of a server -------------------------------------------------------------------------


def context_tokens(case: Case) -> float:
    """Mean tokens of a sequence while it decodes: its prompt and half of its answer."""
    return case.value("client.prompt_tokens") + case.value("client.output_tokens") / 2


def kv_bytes(case: Case) -> float:
    """Bytes of keys and values that one decoding iteration reads, for all running sequences."""
    return (
        case.value("server.requests_running")
        * context_tokens(case)
        * case.value("server.kv_bytes_per_token")
    )


def stalled_ratio(case: Case) -> float:
    """Share of the time between chunks beyond the usual gap: no request gets a token while a prompt
    is read. 0 if the usual gap is unknown."""
    usual = case.value("client.chunk_gap_p50_s")
    return max(0.0, 1 - usual / max(1e-9, case.value("client.chunk_gap_s"))) if usual > 0 else 0.0


def usual_gap_s(case: Case) -> float:
    """The median gap between chunks, in seconds. Raises CantTell if it is 0: chunks that arrive in
    one read carry the same time."""
    gap = case.value("client.chunk_gap_p50_s")
    if gap <= 0:
        raise CantTell("the median gap between chunks is 0 s: several chunks arrive at once")
    return gap


COMMANDS = {
    "sglang": "python -m sglang.launch_server ...",
    "tgi": "text-generation-launcher ...",
    "llama.cpp": "llama-server ...",
    "tensorrt-llm": "trtllm-serve ...",
    "lmdeploy": "lmdeploy serve api_server ...",
}
"""How each engine is started; vLLM's command for the embedded server and an unknown engine."""
FLAGS = {
    "sglang": {
        "max_num_seqs": "--max-running-requests",
        "max_num_batched_tokens": "--chunked-prefill-size",
        "gpu_memory_utilization": "--mem-fraction-static",
        "tensor_parallel_size": "--tp-size",
        "quantization": "--quantization",
    },
    "tgi": {
        "max_num_batched_tokens": "--max-batch-prefill-tokens",
        "gpu_memory_utilization": "--cuda-memory-fraction",
        "tensor_parallel_size": "--num-shard",
        "quantization": "--quantize",
    },
    "tensorrt-llm": {
        "max_num_seqs": "--max_batch_size",
        "max_num_batched_tokens": "--max_num_tokens",
        "gpu_memory_utilization": "--kv_cache_free_gpu_memory_fraction",
        "tensor_parallel_size": "--tp_size",
    },
    "lmdeploy": {
        "max_num_seqs": "--max-batch-size",
        "max_num_batched_tokens": "--max-prefill-token-num",
        "gpu_memory_utilization": "--cache-max-entry-count",
        "tensor_parallel_size": "--tp",
    },
    "triton": {},
    "ollama": {"max_num_seqs": "OLLAMA_NUM_PARALLEL"},
    "ray-serve": {},
    "dynamo": {},
    "llama.cpp": {"max_num_seqs": "--parallel", "max_num_batched_tokens": "--batch-size"},
}
"""The flags of other engines than vLLM that mean the same as a knob (documentation of SGLang 0.5,
TGI 3, llama.cpp, TensorRT-LLM 1.2, LMDeploy 0.18)."""


def restart(case: Case, changes: Knobs, predicted: Interval | None, why: str) -> Suggestion | None:
    """The suggestion to start the server with another value of one setting; None where the engine
    has no flag for the setting."""
    ((name, value),) = changes.items()
    code = restart_code(str(case.knobs.get("server", "")), name, value)
    return case.suggest(changes, predicted, why, code) if code else None


def flag_of(engine: str, name: str) -> str:
    """The flag of `engine` for the knob `name`; empty where it has none."""
    return FLAGS[engine].get(name, "") if engine in FLAGS else f"--{name.replace('_', '-')}"


def restart_code(engine: str, name: str, value: Value) -> str:
    """The command that starts `engine` with another value of one setting; empty where the engine
    has no flag for the setting."""
    flag = flag_of(engine, name)
    return f"{COMMANDS.get(engine, 'vllm serve ...')} {flag} {show(value)}" if flag else ""


def open_loop(case: Case) -> bool:
    return case.value("client.request_rate") > 0


SPIKE = Threshold(
    "spike",
    3.0,
    "ratio",
    "gaps between chunks: p99 is three times p50 (tensward 2 and 3; survey I06)",
)
FRONTEND_BUSY = Threshold(
    "busy",
    0.7,
    "cores",
    "70 % of the one core that a Python process can use (tensward 0.7 and 0.9; survey I11)",
)
MORE_USERS = Threshold(
    "gain",
    1.3,
    "x",
    "a third more throughput for four times the users: less is not worth a change of the load",
)


def frontend_is_busy(case: Case) -> bool:
    """Whether the process that answers requests may be short of CPU."""
    return case.get("server.frontend_cpu_ratio", 0.0) >= FRONTEND_BUSY


def several_users(case: Case) -> bool:
    """Whether a fixed number of users, more than one, sends the load."""
    return not open_loop(case) and int(case.knobs["concurrency"]) > 1


def more_users_gain(case: Case) -> bool:
    """Whether more concurrent requests raise the throughput (probe P12). Raises Missing."""
    return several_users(case) and case.value("probe.concurrency_gain") >= MORE_USERS


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
