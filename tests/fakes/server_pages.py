"""Metrics pages of model servers under a load that a test describes: the names, labels, types and
units of each engine, without our own table.

Sources: vLLM: vllm/v1/metrics/loggers.py of 0.32.0 (and 0.10.0 for the old names). SGLang:
sglang/srt/observability/metrics_collector.py of 0.5.23. TGI: docs/source/reference/metrics.md at
db931fcf. llama.cpp: tools/server/server-task.cpp (2026). TensorRT-LLM:
tensorrt_llm/metrics/collector.py (1.3). Triton: tensorrtllm_backend README.md at 0b9d7d5, lines 424
to 471. LMDeploy: lmdeploy/metrics/loggers.py of 0.18.0. Ray Serve: vllm/v1/metrics/ray_wrappers.py
and ray/dashboard/modules/metrics/dashboards/serve_llm_dashboard_panels.py of 2.60. Dynamo:
docs.nvidia.com/dynamo 1.6 and AIPerf docs/server-metrics.

As a process, `python -m tests.fakes.server_pages ENGINE STATE` serves such a page, and prints its
address.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from aiohttp import web

VLLM_LABELS = 'engine="0",model_name="m"'
SGLANG_LABELS = 'engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"'
SECONDS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
VLLM_ITL = (
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
SGLANG_ITL = (
    0.002,
    0.004,
    0.006,
    0.008,
    0.01,
    0.015,
    0.02,
    0.025,
    0.03,
    0.035,
    0.04,
    0.06,
    0.08,
    0.1,
    0.2,
    0.4,
    0.6,
    0.8,
    1.0,
    2.0,
    4.0,
)
TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


@dataclass(frozen=True)
class Load:
    """What a server does: gauges, and what has happened in one second. `gaps`: the seconds between
    tokens, each as often as it stands here. `invalid`, `broken`: answers with HTTP 4xx and 5xx.
    `left`: requests whose clients leave, which the engine does not count; `late`: answers that have
    ended in the engine and not yet in the web server (negative: the reverse)."""

    running: float = 4
    waiting: float = 0
    deferred: float = 0
    kv: float = 0.2
    requests: int = 10
    aborted: int = 0
    failed: int = 0
    invalid: int = 0
    broken: int = 0
    left: int = 0
    late: int = 0
    prompt: int = 100
    output: int = 50
    preemptions: int = 0
    ttft: float = 0.08
    queue: float = 0.001
    prefill: float = 0.07
    decode: float = 0.9
    gaps: Sequence[float] = (0.018,)
    iteration: float = 12
    hits: float = 0.0
    idle: float = 0.5
    forward: float = 0.4
    front: float = 0
    limit: float = 64
    budget: float = 8192

    @property
    def e2e(self) -> float:
        return self.queue + self.prefill + self.decode


def line(name: str, value: float, labels: str = "") -> str:
    return f"{name}{{{labels}}} {value:g}" if labels else f"{name} {value:g}"


def histogram(
    name: str, values: Sequence[float], count: float, bounds: Sequence[float], labels: str = ""
) -> list[str]:
    """`count` values, spread evenly over `values`."""
    each = count / len(values)
    rows = [
        line(
            f"{name}_bucket",
            each * sum(value <= bound for value in values),
            f'{labels}{"," if labels else ""}le="{bound}"',
        )
        for bound in bounds
    ]
    rows.append(line(f"{name}_bucket", count, f'{labels}{"," if labels else ""}le="+Inf"'))
    return [
        *rows,
        line(f"{name}_sum", each * sum(values), labels),
        line(f"{name}_count", count, labels),
    ]


def vllm(load: Load, seconds: float, prefix: str = "vllm:", labels: str = VLLM_LABELS) -> list[str]:
    n = load.requests * seconds
    gauges = {
        "num_requests_running": load.running,
        "num_requests_waiting": load.waiting,
        "kv_cache_usage_perc": load.kv,
    }
    totals = {
        "num_preemptions_total": load.preemptions * seconds,
        "prompt_tokens_total": n * load.prompt,
        "generation_tokens_total": n * load.output,
        "prefix_cache_queries_total": n * load.prompt,
        "prefix_cache_hits_total": n * load.prompt * load.hits,
        "estimated_flops_per_gpu_total": 0,
        "estimated_read_bytes_per_gpu_total": 0,
    }
    rows = [line(prefix + name, value, labels) for name, value in {**gauges, **totals}.items()]
    for reason, value in (("capacity", load.waiting - load.deferred), ("deferred", load.deferred)):
        rows.append(
            line(f"{prefix}num_requests_waiting_by_reason", value, f'{labels},reason="{reason}"')
        )
    done = {
        "stop": n / 2,
        "length": n / 2,
        "abort": load.aborted * seconds,
        "error": load.failed * seconds,
        "repetition": 0,
    }
    rows += [
        line(f"{prefix}request_success_total", value, f'{labels},finished_reason="{reason}"')
        for reason, value in done.items()
    ]
    times = {
        "time_to_first_token_seconds": load.ttft,
        "e2e_request_latency_seconds": load.e2e,
        "request_queue_time_seconds": load.queue,
        "request_prefill_time_seconds": load.prefill,
        "request_decode_time_seconds": load.decode,
    }
    for name, value in times.items():
        rows += histogram(prefix + name, [value], n, SECONDS, labels)
    rows += histogram(
        f"{prefix}inter_token_latency_seconds", load.gaps, n * (load.output - 1), VLLM_ITL, labels
    )
    rows += histogram(
        f"{prefix}iteration_tokens_total", [load.iteration], 50 * seconds, TOKENS, labels
    )
    rows += histogram(f"{prefix}request_prompt_tokens", [load.prompt], n, TOKENS, labels)
    answers = (n + load.left * seconds - load.late) / 2
    statuses = {
        "2xx": answers, "4xx": load.invalid * seconds / 2, "5xx": load.broken * seconds / 2,
    }  # fmt: skip
    rows += [
        line("http_requests_total", value, f'handler="{handler}",method="POST",status="{status}"')
        for handler in ("/v1/completions", "/v1/chat/completions")
        for status, value in statuses.items()
    ]
    # a scanner asks for what is not there
    strange = (("none", "4xx"), ("/v1/models", "4xx"), ("/health", "5xx"))
    rows += [
        line("http_requests_total", 9 * n, f'handler="{handler}",method="GET",status="{status}"')
        for handler, status in strange
    ]
    return [
        *rows,
        *histogram(f"{prefix}request_generation_tokens", [load.output], n, TOKENS, labels),
    ]


def vllm_0_10(load: Load, seconds: float) -> list[str]:
    """The page of 0.10.2, which has the old names beside the new ones."""
    n, rows = load.requests * seconds, vllm(load, seconds)
    rows = [row for row in rows if "waiting_by_reason" not in row]
    rows += [line("vllm:gpu_cache_usage_perc", load.kv, VLLM_LABELS)]
    rows += [line("vllm:gpu_prefix_cache_queries_total", n * load.prompt, VLLM_LABELS)]
    rows += [line("vllm:gpu_prefix_cache_hits_total", n * load.prompt * load.hits, VLLM_LABELS)]
    return [
        *rows,
        *histogram(
            "vllm:time_per_output_token_seconds",
            load.gaps,
            n * (load.output - 1),
            VLLM_ITL,
            VLLM_LABELS,
        ),
    ]


def sglang(load: Load, seconds: float, prefix: str = "sglang:") -> list[str]:
    """The page of 0.5.23 with --enable-metrics-for-all-schedulers on two tensor-parallel ranks, and
    with priorities."""
    n, rows = load.requests * seconds, []
    gauges = {
        "num_running_reqs": load.running, "num_queue_reqs": load.waiting,
        "num_grammar_queue_reqs": load.deferred, "token_usage": load.kv, "gen_throughput": 0,
        "utilization": 0, "fwd_occupancy": float("nan"), "max_total_num_tokens": 20480,
        "cache_hit_rate": 0,
    }  # fmt: skip
    for rank in ("0", "1"):
        labels = SGLANG_LABELS.replace('tp_rank="0"', f'tp_rank="{rank}"')
        rows += [
            line(prefix + name, value, f'{labels},priority=""') for name, value in gauges.items()
        ]
        rows += [line(f"{prefix}num_running_reqs", load.running, f'{labels},priority="1"')]
        modes = {
            "prefill_compute": n * load.prompt * (1 - load.hits),
            "prefill_cache": n * load.prompt * load.hits,
            "decode": n * load.output,
        }
        rows += [
            line(f"{prefix}realtime_tokens_total", value, f'{labels},mode="{mode}"')
            for mode, value in modes.items()
        ]
        rows += [line(f"{prefix}num_retracted_requests_total", load.preemptions * seconds, labels)]
        rows += [line(f"{prefix}scheduler_idle_seconds_total", load.idle * seconds, labels)]
        parts = {"prefill": load.forward / 4, "decode": 3 * load.forward / 4}
        rows += [
            line(
                f"{prefix}forward_execution_seconds_total",
                part * seconds,
                f'{labels},category="{name}"',
            )
            for name, part in parts.items()
        ]
    ended = {
        "prompt_tokens_total": n * load.prompt,
        "generation_tokens_total": n * load.output,
        "num_requests_total": n,
    }
    for name, value in ended.items():  # two thirds of the requests stream
        rows += [
            line(prefix + name, value * 2 / 3, 'model_name="m",is_streaming="true"'),
            line(prefix + name, value / 3, 'model_name="m",is_streaming="false"'),
        ]
    rows += [
        line(
            f"{prefix}cached_tokens_total",
            n * load.prompt * load.hits,
            'model_name="m",cache_source="device"',
        )
    ]
    rows += [line(f"{prefix}num_aborted_requests_total", load.aborted * seconds, 'model_name="m"')]
    rows += [
        line(
            f"{prefix}http_responses_total",
            value * seconds,
            f'endpoint="{endpoint}",method="POST",status_code="{code}"',
        )
        for endpoint, code, value in (
            ("/generate", 200, load.requests), ("/generate", 400, load.invalid / 2),
            ("/v1/completions", 404, load.invalid / 2), ("/v1/completions", 503, load.broken),
            ("/nowhere", 404, 9 * load.requests), ("/health", 500, 9 * load.requests),
        )
    ]  # fmt: skip
    # what does not stream has its first token at its end
    for streams, first in (("true", load.ttft), ("false", load.e2e)):
        rows += histogram(
            f"{prefix}time_to_first_token_seconds",
            [first],
            n / 2,
            SECONDS,
            f'model_name="m",is_streaming="{streams}"',
        )
    rows += histogram(
        f"{prefix}e2e_request_latency_seconds", [load.e2e], n, SECONDS, 'model_name="m"'
    )
    rows += histogram(
        f"{prefix}inter_token_latency_seconds",
        load.gaps,
        n * (load.output - 1),
        SGLANG_ITL,
        'model_name="m"',
    )
    return [
        *rows,
        *histogram(f"{prefix}queue_time_seconds", [load.queue], n, SECONDS, SGLANG_LABELS),
    ]


def tgi(load: Load, seconds: float) -> list[str]:
    n = load.requests * seconds
    rows = [
        line("tgi_batch_current_size", load.running),
        line("tgi_queue_size", load.waiting),
        line("tgi_request_success", n),
    ]
    rows += [
        line("tgi_request_failure", load.failed * seconds, 'err="generation"'),
        line("tgi_request_failure", 0, 'err="overloaded"'),
    ]
    rows += histogram("tgi_request_generated_tokens", [load.output], n, TOKENS) + histogram(
        "tgi_request_input_length", [load.prompt], n, TOKENS
    )
    rows += histogram("tgi_request_duration", [load.e2e], n, SECONDS) + histogram(
        "tgi_request_queue_duration", [load.queue], n, SECONDS
    )
    return [
        *rows,
        *histogram(
            "tgi_request_mean_time_per_token_duration", [load.e2e / load.output], n, SECONDS
        ),
    ]


def llama_cpp(load: Load, seconds: float) -> list[str]:
    n = load.requests * seconds
    return [
        line("llamacpp:prompt_tokens_total", n * load.prompt * (1 - load.hits)),
        line("llamacpp:prompt_tokens_cached_total", n * load.prompt * load.hits),
        line("llamacpp:tokens_predicted_total", n * load.output),
        line("llamacpp:tokens_predicted_seconds_total", n * load.decode),
        line("llamacpp:n_decode_total", 50 * seconds),
        line("llamacpp:requests_processing", load.running),
        line("llamacpp:requests_deferred", load.waiting),
        line("llamacpp:predicted_tokens_seconds", 55),
    ]


def tensorrt_llm(load: Load, seconds: float) -> list[str]:
    n, labels, rows = load.requests * seconds, 'engine_type="pytorch",model_name="m"', []
    gauges = {
        "num_requests_running": load.running,
        "num_requests_waiting": load.waiting,
        "kv_cache_utilization": load.kv,
        "kv_cache_hit_rate": load.hits,
        "max_batch_size_runtime": load.limit,
        "max_num_tokens_runtime": load.budget,
    }
    totals = {"prompt_tokens_total": n * load.prompt, "generation_tokens_total": n * load.output}
    rows += [line(f"trtllm_{name}", value, labels) for name, value in {**gauges, **totals}.items()]
    rows += [line("trtllm_request_success_total", n, f'{labels},finished_reason="stop"')]
    rows += [
        line(
            "trtllm_request_success_total",
            load.aborted * seconds,
            f'{labels},finished_reason="cancelled"',
        )
    ]
    times = {
        "time_to_first_token_seconds": load.ttft,
        "e2e_request_latency_seconds": load.e2e,
        "request_queue_time_seconds": load.queue,
    }
    for name, value in times.items():
        rows += histogram(f"trtllm_{name}", [value], n, SECONDS, labels)
    return [
        *rows,
        *histogram(
            "trtllm_time_per_output_token_seconds",
            load.gaps,
            n * (load.output - 1),
            VLLM_ITL,
            labels,
        ),
    ]


def triton(load: Load, seconds: float) -> list[str]:
    n, labels = load.requests * seconds, 'model="ensemble",version="1"'
    kinds = {
        "waiting": load.waiting,
        "context": 1,
        "scheduled": load.running,
        "max": load.limit,
        "active": load.running + load.waiting,
    }
    blocks = {"fraction": load.kv, "tokens_per": 64, "used": 100, "free": 6139, "max": 6239}
    rows = [
        line("nv_trt_llm_request_metrics", value, f'{labels},request_type="{kind}"')
        for kind, value in kinds.items()
    ]
    rows += [
        line("nv_trt_llm_kv_cache_block_metrics", value, f'{labels},kv_cache_block_type="{kind}"')
        for kind, value in blocks.items()
    ]
    rows += [
        line("nv_inference_request_success", n, labels),
        line("nv_inference_request_failure", load.failed * seconds, f'{labels},reason="OTHER"'),
    ]
    rows += [
        line("nv_inference_request_duration_us", n * load.e2e * 1e6, labels),
        line("nv_inference_queue_duration_us", n * load.queue * 1e6, labels),
    ]
    return [*rows, line("nv_inference_pending_request_count", load.waiting, labels)]


def lmdeploy(load: Load, seconds: float) -> list[str]:
    n, rows = load.requests * seconds, []
    gauges = {
        "num_requests_running": load.running,
        "num_requests_waiting": load.waiting,
        "num_api_requests_waiting": load.front,
        "gpu_cache_usage_perc": load.kv,
        "prefix_cache_hit_rate": load.hits,
        "num_requests_succeeded": n,
        "num_requests_failed": load.failed * seconds,
        "prompt_tokens_total": n * load.prompt,
        "generation_tokens_total": n * load.output,
    }
    rows += [line(f"lmdeploy:{name}", value, VLLM_LABELS) for name, value in gauges.items()]
    rows += histogram("lmdeploy:time_to_first_token_seconds", [load.ttft], n, SECONDS, VLLM_LABELS)
    rows += histogram(
        "lmdeploy:iter_token_latency", load.gaps, n * (load.output - 1), VLLM_ITL, VLLM_LABELS
    )
    return [
        *rows,
        *histogram("lmdeploy:e2e_request_latency_seconds", [load.e2e], n, SECONDS, VLLM_LABELS),
    ]


def ray_serve(load: Load, seconds: float) -> list[str]:
    """vLLM behind Ray Serve: every character that is no letter or digit is an underscore."""
    rows = [
        line(
            "ray_serve_deployment_queued_queries",
            load.front,
            'deployment="LLMServer",application="app"',
        )
    ]
    return [*rows, *vllm(load, seconds, "ray_vllm_", 'WorkerId="w",engine="0",model_name="m"')]


def dynamo(load: Load, seconds: float) -> list[str]:
    """The frontend alone."""
    n, labels = load.requests * seconds, 'model="m"'
    rows = [
        line("dynamo_frontend_inflight_requests", load.running + load.front, labels),
        line("dynamo_frontend_queued_requests", load.front, labels),
    ]
    rows += [
        line(
            "dynamo_frontend_requests_total",
            n,
            f'{labels},endpoint="chat",request_type="stream",status="success"',
        )
    ]
    rows += [
        line(
            "dynamo_frontend_requests_total",
            load.failed * seconds,
            f'{labels},endpoint="chat",request_type="stream",status="error"',
        )
    ]
    rows += [
        line("dynamo_frontend_output_tokens_total", n * load.output, labels),
        line("dynamo_frontend_model_max_num_seqs", load.limit, labels),
    ]
    rows += histogram("dynamo_frontend_input_sequence_tokens", [load.prompt], n, TOKENS, labels)
    for name, value in {
        "time_to_first_token_seconds": load.ttft,
        "request_duration_seconds": load.e2e,
    }.items():
        rows += histogram(f"dynamo_frontend_{name}", [value], n, SECONDS, labels)
    return [
        *rows,
        *histogram(
            "dynamo_frontend_inter_token_latency_seconds",
            load.gaps,
            n * (load.output - 1),
            VLLM_ITL,
            labels,
        ),
    ]


def dynamo_with_worker(load: Load, seconds: float) -> list[str]:
    """The frontend and a worker with DYN_SYSTEM_PORT on one page: the same requests twice."""
    return [
        *dynamo(load, seconds),
        line("dynamo_component_gpu_cache_usage_percent", load.kv, 'model="m"'),
        *vllm(load, seconds),
    ]


PAGES: Mapping[str, Callable[[Load, float], list[str]]] = {
    "vllm": vllm,
    "vllm 0.10": vllm_0_10,
    "sglang": sglang,
    "tgi": tgi,
    "llama.cpp": llama_cpp,
    "tensorrt-llm": tensorrt_llm,
    "triton": triton,
    "lmdeploy": lmdeploy,
    "ray-serve": ray_serve,
    "dynamo": dynamo,
    "dynamo with worker": dynamo_with_worker,
}


def page(engine: str, load: Load, seconds: float) -> str:
    """The page of `engine` after `seconds` of `load`."""
    return "\n".join(PAGES[engine](load, seconds)) + "\n"


@dataclass
class PageServer:
    """What an HTTP server answers: the page of an engine after as many seconds as pages were asked
    for. `asked`: the method and the path of each request."""

    engine: str
    load: Load = field(default_factory=Load)
    asked: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def next_page(self) -> str:
        self.seconds += 1
        return page(self.engine, self.load, self.seconds)


CAPPED = Load(running=10, waiting=90, kv=0.193, requests=12, queue=7.0, decode=0.9)
"""vllm#37307: 10 requests run, 90 wait, and the KV cache is 19 % full. Others called it
compute-bound."""
STATES = {"few": Load(), "capped": CAPPED}


def busier(load: Load, **changes: float) -> Load:
    return replace(load, **changes)  # type: ignore[arg-type]


def main(engine: str, state: str) -> None:
    """Serve the page of `engine` in `state`, and print the address."""
    begun = time.monotonic()

    async def answer(request: web.Request) -> web.Response:
        known = request.path == "/metrics"
        return (
            web.Response(text=page(engine, STATES[state], time.monotonic() - begun))
            if known
            else web.Response(status=404)
        )

    async def serve() -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print(f"serving http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
        await asyncio.Event().wait()

    asyncio.run(serve())


if __name__ == "__main__":
    main(*sys.argv[1:])
