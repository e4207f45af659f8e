"""The metric catalogue: every quantity that a source may report, declared once.

A metric's name ends in its unit where it has one (`_ratio` is 0..1). A source that cannot report a metric says why; a metric
that is not declared here cannot be sent.
"""

from __future__ import annotations

from gpuconsole.model.metrics.gpu import GPU_METRICS, LINK_METRICS
from gpuconsole.model.metrics.metric import Kind, Metric, declare

__all__ = ["CATALOGUE", "Kind", "Metric", "series_key"]

_HOST = (
    declare("host.cores_busy", "cores", "psutil", "CPU cores busy, all processes"),
    declare("host.core_busy_ratio", "ratio", "psutil", "Busy share of one CPU core"),
    declare("host.run_queue_delay_ratio", "ratio", "/proc/pressure/cpu", "Share of time in which some task waited for a core"),
    declare("host.io_pressure_ratio", "ratio", "/proc/pressure/io", "Share of time in which some task waited for I/O"),
    declare("host.memory_pressure_ratio", "ratio", "/proc/pressure/memory", "Share of time in which some task waited for memory"),
    declare("host.memory_used_bytes", "bytes", "psutil", "Host memory that is not available to new programs"),
    declare("host.memory_total_bytes", "bytes", "psutil", "Host memory"),
    declare("host.disk_read_bytes_per_s", "bytes/s", "psutil", "Bytes read from block devices"),
    declare("host.disk_write_bytes_per_s", "bytes/s", "psutil", "Bytes written to block devices"),
    declare("host.net_rx_bytes_per_s", "bytes/s", "psutil", "Bytes received by network cards"),
    declare("host.net_tx_bytes_per_s", "bytes/s", "psutil", "Bytes sent by network cards"),
)

_WORKLOAD = (
    declare("workload.tokens_per_s", "tokens/s", "step account", "Tokens trained per second of step time"),
    declare("workload.samples_per_s", "samples/s", "step account", "Samples trained per second of step time"),
    declare("workload.step_time_s", "s", "step account", "Wall time of a step", "distribution"),
    declare("workload.loss", "", "workload", "Training loss as the workload last reported it"),
    declare("workload.flops_per_s", "FLOP/s", "step account", "Model FLOPs per second of step time"),
    declare("workload.mfu_ratio", "ratio", "step account", "Model FLOP/s over the peak in use (its source is named beside it)"),
    declare("workload.memory_bytes", "bytes", "worker", "Peak device memory of the worker; on a CPU its resident set"),
    declare("workload.tokens_per_j", "tokens/J", "derived", "Tokens per joule that the device drew: tokens/s over its power"),
    declare("workload.samples_per_j", "samples/J", "derived", "Samples per joule that the device drew: samples/s over its power"),
    declare("workload.flops_per_j", "FLOP/s/W", "derived", "Model FLOP/s per watt that the device drew"),
    declare(
        "workload.cost_per_million_tokens",
        "per Mtoken",
        "derived",
        "Price per hour (--price) over tokens per hour, in millions; its currency",
    ),
)

_SERVING = (
    declare("workload.requests_per_s", "requests/s", "load generator", "Requests answered per second"),
    declare(
        "workload.ttft_s", "s", "load generator", "Time to first token: request sent to first token, median of a second", "distribution"
    ),
    declare(
        "workload.tpot_s",
        "s",
        "load generator",
        "Time per output token: (E2E - TTFT) / (output tokens - 1), median of a second",
        "distribution",
    ),
    declare(
        "workload.itl_s",
        "s",
        "load generator",
        "Inter-token latency: a chunk of k tokens is k gaps of gap/k, median of a second",
        "distribution",
    ),
    declare("workload.e2e_s", "s", "load generator", "Request sent to last token, median of a second", "distribution"),
    declare("workload.active_requests", "requests", "load generator", "Requests that are on their way"),
    declare("workload.failed_requests_per_s", "requests/s", "load generator", "Requests that failed, per second"),
    declare("server.requests_running", "requests", "server /metrics", "Sequences that take part in the server's iterations"),
    declare("server.requests_waiting", "requests", "server /metrics", "Sequences that wait in the server, for a seat or for KV cache"),
    declare("server.kv_cache_usage_ratio", "ratio", "server /metrics", "Share of the KV cache that is held by sequences"),
    declare("server.preemptions_per_s", "/s", "server /metrics", "Sequences that lost their KV cache and are computed anew"),
    declare("server.prompt_tokens_per_s", "tokens/s", "server /metrics", "Prompt tokens computed"),
    declare("server.generation_tokens_per_s", "tokens/s", "server /metrics", "Tokens generated, of all clients"),
    declare("server.prefix_hit_ratio", "ratio", "server /metrics", "Prompt tokens found in the prefix cache over those looked up"),
    declare(
        "server.flops_per_s", "FLOP/s", "server /metrics", "Model FLOPs per second and GPU by vLLM's own estimate (--enable-mfu-metrics)"
    ),
    declare(
        "server.read_bytes_per_s", "bytes/s", "server /metrics", "Bytes that the model must read per second and GPU, by vLLM's own estimate"
    ),
    declare("server.frontend_cpu_ratio", "ratio", "/proc", "Cores that the process uses which takes requests and sends tokens (vLLM)"),
)

_CONSOLE = (
    declare("console.cpu_ratio", "ratio", "psutil", "CPU time of the console and its sampler over wall time, of one core"),
    declare("console.memory_bytes", "bytes", "psutil", "Resident memory of the console process"),
)

CATALOGUE: dict[str, Metric] = {metric.name: metric for metric in GPU_METRICS + LINK_METRICS + _HOST + _WORKLOAD + _SERVING + _CONSOLE}


def series_key(metric: str, device: str) -> str:
    """The name of a series: `gpu.power_w{device=gpu:0}`."""
    return f"{metric}{{device={device}}}"
