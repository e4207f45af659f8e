"""The metric catalogue: every quantity that a source may report, declared once.

The name of a metric ends in its unit (`_ratio` is 0..1). A source that cannot report a metric gives the reason. A source cannot send
a metric that is not declared here.
"""

from __future__ import annotations

from gpuconsole.model.metrics.gpu import GPU_METRICS, LINK_METRICS
from gpuconsole.model.metrics.metric import Kind, Metric, declare

__all__ = ["CATALOGUE", "Kind", "Metric", "series_key"]

_HOST = (
    declare("host.cores_busy", "cores", "psutil", "Busy CPU cores among those that the console may use, all processes"),
    declare("host.core_busy_ratio", "ratio", "psutil", "Share of time in which this CPU core was busy"),
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
    declare("workload.loss", "", "workload", "The last training loss that the workload reported"),
    declare("workload.flops_per_s", "FLOP/s", "step account", "Model FLOPs per second of step time"),
    declare("workload.mfu_ratio", "ratio", "step account", "Model FLOP/s over the peak that the run is compared with"),
    declare("workload.memory_bytes", "bytes", "worker", "Peak device memory of the worker; on a CPU the resident set size of the worker"),
    declare("workload.tokens_per_j", "tokens/J", "derived", "Tokens per joule: tokens/s over the power of the device"),
    declare("workload.samples_per_j", "samples/J", "derived", "Samples per joule: samples/s over the power of the device", better="higher"),
    declare("workload.flops_per_j", "FLOP/s/W", "derived", "Model FLOP/s per watt of device power"),
    declare(
        "workload.cost_per_million_tokens",
        "per Mtoken",
        "derived",
        "Price per hour (--price) over millions of tokens per hour, in the currency of the price",
    ),
)

_SERVING = (
    declare("workload.requests_per_s", "requests/s", "load generator", "Requests answered per second"),
    declare(
        "workload.ttft_s",
        "s",
        "load generator",
        "Time to first token: from sending the request to the first token; median over one second",
        "distribution",
    ),
    declare(
        "workload.tpot_s",
        "s",
        "load generator",
        "Time per output token: (E2E - TTFT) / (output tokens - 1); median over one second",
        "distribution",
    ),
    declare(
        "workload.itl_s",
        "s",
        "load generator",
        "Inter-token latency: a chunk of k tokens counts as k gaps of gap/k; median over one second",
        "distribution",
    ),
    declare("workload.e2e_s", "s", "load generator", "From sending the request to the last token; median over one second", "distribution"),
    declare("workload.active_requests", "requests", "load generator", "Requests that the client has sent and that are not finished"),
    declare("workload.failed_requests_per_s", "requests/s", "load generator", "Requests that failed, per second", better="lower"),
    declare("server.requests_running", "requests", "server /metrics", "Sequences in the server's current iteration"),
    declare(
        "server.requests_waiting", "requests", "server /metrics", "Sequences that wait in the server for a sequence slot or for KV cache"
    ),
    declare("server.kv_cache_usage_ratio", "ratio", "server /metrics", "Share of the KV cache that sequences use"),
    declare(
        "server.preemptions_per_s",
        "/s",
        "server /metrics",
        "Preempted sequences: the server frees their KV cache and computes it again later",
        better="lower",
    ),
    declare("server.prompt_tokens_per_s", "tokens/s", "server /metrics", "Prompt tokens computed"),
    declare("server.generation_tokens_per_s", "tokens/s", "server /metrics", "Tokens generated for all clients"),
    declare(
        "server.prefix_hit_ratio",
        "ratio",
        "server /metrics",
        "Prompt tokens found in the prefix cache over all prompt tokens looked up",
        better="higher",
    ),
    declare("server.flops_per_s", "FLOP/s", "server /metrics", "Model FLOP/s per GPU, estimated by vLLM (--enable-mfu-metrics)"),
    declare(
        "server.read_bytes_per_s", "bytes/s", "server /metrics", "Bytes per second that the model must read per GPU, estimated by vLLM"
    ),
    declare("server.frontend_cpu_ratio", "ratio", "/proc", "CPU cores used by the process that accepts requests and sends tokens (vLLM)"),
)

_CONSOLE = (
    declare("console.cpu_ratio", "ratio", "psutil", "CPU time of the console and its sampler over wall time, as a share of one core"),
    declare("console.memory_bytes", "bytes", "psutil", "Resident memory of the console process"),
)

CATALOGUE: dict[str, Metric] = {metric.name: metric for metric in GPU_METRICS + LINK_METRICS + _HOST + _WORKLOAD + _SERVING + _CONSOLE}


def series_key(metric: str, device: str) -> str:
    """The name of a series: `gpu.power_w{device=gpu:0}`."""
    return f"{metric}{{device={device}}}"
