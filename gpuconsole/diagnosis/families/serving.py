"""Shared by the rules about model servers."""

from __future__ import annotations

from gpuconsole.diagnosis.rule import CantTell, Case, Interval, Knobs, Suggestion, Threshold
from gpuconsole.model.knobs.knob import Value, show

NOTABLE_QUEUE = 1.0
"""With fewer waiting requests on average there is no queue."""


def queue_ratio(case: Case) -> float:
    """Return the share of a request's time in the server that it waits in the queue. While a queue
    grows, the requests that leave it now have waited longer than those that end now have taken in
    all."""
    return min(1.0, case.value("server.queue_s") / max(1e-9, case.value("server.e2e_s")))


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
        "max_num_seqs": "--max-batch-size",
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


def spike(case: Case) -> float:
    """The 99th percentile of the gaps between chunks over their median."""
    return case.value("client.chunk_gap_p99_s") / usual_gap_s(case)


def frontend_is_busy(case: Case) -> bool:
    """Whether the process that answers requests may be short of CPU."""
    return case.get("server.frontend_cpu_ratio", 0.0) >= FRONTEND_BUSY


def several_users(case: Case) -> bool:
    """Whether a fixed number of users, more than one, sends the load."""
    return not open_loop(case) and int(case.knobs["concurrency"]) > 1


def more_users_gain(case: Case) -> bool:
    """Whether more concurrent requests raise the throughput (probe P12). Raises Missing."""
    return several_users(case) and case.value("probe.concurrency_gain") >= MORE_USERS
