"""The metric catalogue: every quantity that a source may report, declared once.

A metric's name ends in its unit (`_ratio` is 0..1). A source that cannot report a metric says why; a metric
that is not declared here cannot be sent.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["gauge", "counter", "distribution"]


class Metric(msgspec.Struct, frozen=True):
    """One named quantity. `source` names the reader that produces it on its usual device."""

    name: str
    unit: str
    kind: Kind
    source: str
    meaning: str


def _m(name: str, unit: str, source: str, meaning: str, kind: Kind = "gauge") -> Metric:
    return Metric(name=name, unit=unit, kind=kind, source=source, meaning=meaning)


_ALL = (
    # --- one GPU ---------------------------------------------------------------------------------------
    _m("gpu.sm_active_ratio", "ratio", "nvml.gpm", "Share of time in which an SM had at least one warp, averaged over SMs"),
    _m("gpu.sm_occupancy_ratio", "ratio", "nvml.gpm", "Resident warps over the maximum, averaged over SMs"),
    _m("gpu.tensor_active_ratio", "ratio", "nvml.gpm", "Share of peak cycles in which a tensor pipe issued"),
    _m("gpu.dram_active_ratio", "ratio", "nvml.gpm", "HBM bandwidth in use over its maximum"),
    _m("gpu.hbm_bytes_per_s", "bytes/s", "nvml.gpm", "HBM bandwidth in use: dram_active_ratio times the datasheet peak"),
    _m("gpu.utilization_ratio", "ratio", "nvml", "Share of time in which any kernel ran, however small; not a measure of load"),
    _m("gpu.memory_utilization_ratio", "ratio", "nvml", "Share of time in which the memory controller was busy"),
    _m("gpu.hbm_used_bytes", "bytes", "nvml", "Device memory in use by all processes"),
    _m("gpu.hbm_total_bytes", "bytes", "nvml", "Device memory"),
    _m("gpu.power_w", "W", "nvml", "Board power draw"),
    _m("gpu.power_limit_w", "W", "nvml", "Enforced power limit"),
    _m("gpu.energy_j", "J", "nvml", "Energy since the driver was loaded", "counter"),
    _m("gpu.temperature_c", "°C", "nvml", "GPU core temperature"),
    _m("gpu.sm_clock_hz", "Hz", "nvml", "SM clock"),
    _m("gpu.memory_clock_hz", "Hz", "nvml", "Memory clock"),
    _m("gpu.pcie_rx_bytes_per_s", "bytes/s", "nvml.gpm, else nvml", "PCIe traffic into the GPU"),
    _m("gpu.pcie_tx_bytes_per_s", "bytes/s", "nvml.gpm, else nvml", "PCIe traffic out of the GPU"),
    _m("gpu.nvlink_rx_bytes_per_s", "bytes/s", "nvml.gpm", "NVLink traffic into the GPU, all links"),
    _m("gpu.nvlink_tx_bytes_per_s", "bytes/s", "nvml.gpm", "NVLink traffic out of the GPU, all links"),
    # --- the host --------------------------------------------------------------------------------------
    _m("host.cores_busy", "cores", "psutil", "CPU cores busy, all processes"),
    _m("host.core_busy_ratio", "ratio", "psutil", "Busy share of one CPU core"),
    _m("host.run_queue_delay_ratio", "ratio", "/proc/pressure/cpu", "Share of time in which some task waited for a core"),
    _m("host.io_pressure_ratio", "ratio", "/proc/pressure/io", "Share of time in which some task waited for I/O"),
    _m("host.memory_pressure_ratio", "ratio", "/proc/pressure/memory", "Share of time in which some task waited for memory"),
    _m("host.memory_used_bytes", "bytes", "psutil", "Host memory that is not available to new programs"),
    _m("host.memory_total_bytes", "bytes", "psutil", "Host memory"),
    _m("host.disk_read_bytes_per_s", "bytes/s", "psutil", "Bytes read from block devices"),
    _m("host.disk_write_bytes_per_s", "bytes/s", "psutil", "Bytes written to block devices"),
    _m("host.net_rx_bytes_per_s", "bytes/s", "psutil", "Bytes received, all interfaces but loopback"),
    _m("host.net_tx_bytes_per_s", "bytes/s", "psutil", "Bytes sent, all interfaces but loopback"),
    # --- the workload ----------------------------------------------------------------------------------
    _m("workload.tokens_per_s", "tokens/s", "step account", "Tokens trained per second of step time"),
    _m("workload.samples_per_s", "samples/s", "step account", "Samples trained per second of step time"),
    _m("workload.step_time_s", "s", "step account", "Wall time of a step", "distribution"),
    _m("workload.loss", "", "workload", "Training loss as the workload last reported it"),
    _m("workload.flops_per_s", "FLOP/s", "step account", "Model FLOPs per second of step time"),
    _m("workload.mfu_ratio", "ratio", "step account", "Model FLOP/s over the peak in use (its source is named beside it)"),
    _m("workload.memory_bytes", "bytes", "worker", "Peak device memory of the worker; on a CPU its resident set"),
    # --- the console itself ----------------------------------------------------------------------------
    _m("console.cpu_ratio", "ratio", "psutil", "CPU time of the console and its sampler over wall time, of one core"),
    _m("console.memory_bytes", "bytes", "psutil", "Resident memory of the console process"),
)

CATALOGUE: dict[str, Metric] = {metric.name: metric for metric in _ALL}


def series_key(metric: str, device: str) -> str:
    """The name of a series: `gpu.power_w{device=gpu:0}`."""
    return f"{metric}{{device={device}}}"
