"""The metrics: every quantity that a source may report, declared once, with its unit, its source
and DCGM's name for it.

A metric of one NVLink belongs to a device with its own name: `gpu:0/link:3`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from gpuconsole.model.figures import FIGURES, Better
from gpuconsole.model.memory import CARD, KEPT, OWNERS

# --- the declaration of a metric ------------------------------------------------------------------

Kind = Literal["gauge", "counter", "distribution"]


class Metric(msgspec.Struct, frozen=True):
    """One named quantity. `source` names the usual reader; `needs` is the oldest hardware that has
    the metric.

    `better`: which direction is better, for a metric that is no figure of a summary
    (`model.summary_figures`); empty where neither is. `history`: whether the session keeps past
    values. Metrics that hardly ever change keep only the newest value.
    """

    name: str
    unit: str
    kind: Kind
    source: str
    meaning: str
    needs: str = "any"
    history: bool = True
    better: Better = ""


def declare(
    name: str,
    unit: str,
    source: str,
    meaning: str,
    kind: Kind = "gauge",
    needs: str = "any",
    history: bool = True,
    better: Better = "",
) -> Metric:
    return Metric(
        name=name,
        unit=unit,
        kind=kind,
        source=source,
        meaning=meaning,
        needs=needs,
        history=history,
        better=better,
    )


# --- the metrics of a GPU. A metric of one NVLink belongs to a device with its own name -----------

HOPPER, AMPERE, VOLTA, ANY = "Hopper", "Ampere", "Volta", "any"


def _gpm(name: str, unit: str, meaning: str) -> Metric:
    return declare(f"gpu.{name}", unit, "nvml.gpm", meaning, needs=HOPPER)


def _nvml(name: str, unit: str, meaning: str, needs: str = ANY, *, counter: bool = False) -> Metric:
    return declare(
        f"gpu.{name}", unit, "nvml", meaning, needs=needs, kind="counter" if counter else "gauge"
    )


def _field(name: str, unit: str, meaning: str, needs: str, *, counter: bool = False) -> Metric:
    return declare(
        f"gpu.{name}",
        unit,
        "nvml.field",
        meaning,
        needs=needs,
        kind="counter" if counter else "gauge",
    )


ACTIVITY = (
    _gpm(
        "sm_active_ratio",
        "ratio",
        "Share of time in which an SM had at least one warp, averaged over SMs",
    ),
    _gpm("sm_occupancy_ratio", "ratio", "Resident warps over the maximum, averaged over SMs"),
    _gpm(
        "tensor_active_ratio", "ratio", "Share of peak cycles in which any tensor pipe was active"
    ),
    _gpm(
        "tensor_hmma_active_ratio",
        "ratio",
        "Share of peak cycles in which tensor pipes did fp16, bf16 or tf32 (HMMA)",
    ),
    _gpm(
        "tensor_imma_active_ratio",
        "ratio",
        "Share of peak cycles in which tensor pipes did integers (IMMA)",
    ),
    _gpm(
        "tensor_dfma_active_ratio",
        "ratio",
        "Share of peak cycles in which tensor pipes did fp64 (DFMA)",
    ),
    _gpm(
        "tensor_dmma_active_ratio",
        "ratio",
        "Share of peak cycles in which tensor pipes did fp64 matrices (DMMA)",
    ),
    _gpm("fp64_active_ratio", "ratio", "Share of peak cycles in which the fp64 pipe was active"),
    _gpm("fp32_active_ratio", "ratio", "Share of peak cycles in which the fp32 pipe was active"),
    _gpm(
        "fp16_active_ratio",
        "ratio",
        "Share of peak cycles in which the fp16 pipe was active (not the tensor cores)",
    ),
    _gpm(
        "integer_active_ratio", "ratio", "Share of peak cycles in which the integer pipe was active"
    ),
    _gpm(
        "graphics_active_ratio",
        "ratio",
        "Share of time in which any graphics or compute engine was active",
    ),
    _gpm("dram_active_ratio", "ratio", "HBM bandwidth in use over its maximum"),
    declare(
        "gpu.hbm_bytes_per_s",
        "bytes/s",
        "derived",
        "HBM bandwidth in use: dram_active_ratio times the datasheet peak",
        needs=HOPPER,
    ),
    _nvml(
        "utilization_ratio",
        "ratio",
        "Share of time in which at least one kernel ran, of any size; not a measure of load",
    ),
    _nvml(
        "memory_utilization_ratio",
        "ratio",
        "Share of time in which device memory was read or written; not bandwidth",
    ),
    _nvml(
        "encoder_utilization_ratio", "ratio", "Share of time in which the video encoder was busy"
    ),
    _nvml(
        "decoder_utilization_ratio", "ratio", "Share of time in which the video decoder was busy"
    ),
    _nvml(
        "jpeg_utilization_ratio",
        "ratio",
        "Share of time in which the JPEG decoder was busy",
        AMPERE,
    ),
    _nvml(
        "optical_flow_utilization_ratio",
        "ratio",
        "Share of time in which the optical-flow engine was busy",
        AMPERE,
    ),
)

MEMORY = (
    _nvml(
        "hbm_used_bytes",
        "bytes",
        "Device memory in use by all processes (unified memory: by those on the GPU)",
    ),
    _nvml(
        "hbm_free_bytes",
        "bytes",
        "Device memory that can still be allocated (unified memory: by the host or the GPU)",
    ),
    _nvml(
        "hbm_reserved_bytes",
        "bytes",
        "Device memory that the driver reserves (0 where the driver does not report it separately)",
    ),
    _nvml(
        "hbm_total_bytes",
        "bytes",
        "Device memory (unified memory: that of the host; never add both)",
    ),
    _nvml(
        "bar1_used_bytes",
        "bytes",
        "BAR1 memory in use: device memory mapped for the CPU and for other GPUs",
    ),
    _nvml("bar1_total_bytes", "bytes", "BAR1 window"),
)

POWER = (
    _nvml(
        "power_w",
        "W",
        "Board power draw (a one-second average on Ampere and newer, but not on A100 and A30)",
    ),
    _field("power_instant_w", "W", "Board power draw at the moment of reading", AMPERE),
    _nvml("power_limit_w", "W", "Power limit in force"),
    _nvml("power_limit_default_w", "W", "The power limit of the board as it is sold"),
    _nvml("power_limit_max_w", "W", "The highest power limit that can be set"),
    _nvml("energy_j", "J", "Energy since the driver was loaded", VOLTA, counter=True),
    _nvml("temperature_c", "°C", "GPU core temperature"),
    _nvml(
        "temperature_slowdown_c", "°C", "Core temperature at which the hardware lowers its clocks"
    ),
    _field("memory_temperature_c", "°C", "HBM temperature", AMPERE),
    _nvml("fan_ratio", "ratio", "Requested fan speed over the maximum"),
    _nvml(
        "performance_state",
        "",
        (
            "Performance state (P-state): 0 is the highest, 15 the lowest; P0 and P2 are normal at"
            " work, P8 at rest"
        ),
    ),
    _nvml("sm_clock_hz", "Hz", "SM clock"),
    _nvml("sm_clock_max_hz", "Hz", "The highest SM clock"),
    _nvml("memory_clock_hz", "Hz", "Memory clock"),
    _nvml("memory_clock_max_hz", "Hz", "The highest memory clock"),
)

# The reasons that limit the clocks: now (0 or 1), and as a share of the time since the last
# reading.
CLOCKS = (
    _nvml("clocks_idle", "0/1", "Clocks are low because the GPU is idle"),
    _nvml("clocks_app_setting", "0/1", "The application clock setting limits the clocks"),
    _nvml("clocks_power_cap", "0/1", "The power limit lowers the clocks (throttled)"),
    _nvml(
        "clocks_hw_slowdown",
        "0/1",
        (
            "The hardware cuts the clocks to half or less (throttled): heat, power brake or power"
            " supply"
        ),
    ),
    _nvml("clocks_sync_boost", "0/1", "The sync boost group limits the clocks"),
    _nvml(
        "clocks_sw_thermal",
        "0/1",
        "The driver lowers the clocks because the GPU or its memory is hot (throttled)",
    ),
    _nvml("clocks_hw_thermal", "0/1", "The hardware cuts the clocks because of heat (throttled)"),
    _nvml(
        "clocks_power_brake",
        "0/1",
        "An external signal cuts the clocks (throttled), for example from the power supply",
    ),
    _field(
        "power_cap_time_ratio",
        "ratio",
        "Share of time in which the power limit lowered the clocks (throttled)",
        VOLTA,
    ),
    _field(
        "thermal_time_ratio",
        "ratio",
        "Share of time in which heat lowered the clocks (throttled)",
        VOLTA,
    ),
    _field(
        "sync_boost_time_ratio",
        "ratio",
        "Share of time in which sync boost lowered the clocks",
        VOLTA,
    ),
    _field(
        "board_limit_time_ratio",
        "ratio",
        "Share of time in which the board's own limit lowered the clocks (throttled)",
        VOLTA,
    ),
    _field(
        "reliability_time_ratio",
        "ratio",
        "Share of time in which the reliability voltage lowered the clocks (throttled)",
        VOLTA,
    ),
    _field(
        "sw_thermal_time_ratio",
        "ratio",
        "Share of time in which the driver lowered the clocks because of heat (throttled)",
        VOLTA,
    ),
    _field(
        "hw_thermal_time_ratio",
        "ratio",
        "Share of time in which the hardware cut the clocks because of heat (throttled)",
        VOLTA,
    ),
    _field(
        "power_brake_time_ratio",
        "ratio",
        "Share of time in which an external signal cut the clocks (throttled)",
        VOLTA,
    ),
)

LINKS = (
    declare(
        "gpu.pcie_rx_bytes_per_s",
        "bytes/s",
        "nvml.gpm",
        (
            "PCIe traffic into the GPU with packet headers (without GPM: a byte counter, or the"
            " driver's average over 20 ms)"
        ),
    ),
    declare(
        "gpu.pcie_tx_bytes_per_s",
        "bytes/s",
        "nvml.gpm",
        (
            "PCIe traffic out of the GPU with packet headers (without GPM: a byte counter, or the"
            " driver's average over 20 ms)"
        ),
    ),
    _nvml(
        "pcie_link_generation",
        "",
        "Current PCIe generation of the link; an idle GPU lowers it to save power",
    ),
    _nvml("pcie_link_generation_max", "", "The highest PCIe generation that GPU and slot support"),
    _nvml("pcie_link_width", "lanes", "PCIe lanes in use"),
    _nvml("pcie_link_width_max", "lanes", "The maximum number of PCIe lanes of GPU and slot"),
    _nvml(
        "pcie_replays",
        "",
        "PCIe packets sent again since the driver was loaded; many replays mean a bad link",
        counter=True,
    ),
    declare(
        "gpu.nvlink_rx_bytes_per_s",
        "bytes/s",
        "nvml.gpm",
        "NVLink traffic into the GPU, all links (without GPM: a byte counter)",
        needs=VOLTA,
    ),
    declare(
        "gpu.nvlink_tx_bytes_per_s",
        "bytes/s",
        "nvml.gpm",
        "NVLink traffic out of the GPU, all links (without GPM: a byte counter)",
        needs=VOLTA,
    ),
    _nvml("nvlinks_active", "links", "Active NVLinks", VOLTA),
    _gpm(
        "c2c_rx_bytes_per_s",
        "bytes/s",
        "Chip-to-chip traffic into the GPU (Grace CPU and GPU in one package)",
    ),
    _gpm("c2c_tx_bytes_per_s", "bytes/s", "Chip-to-chip traffic out of the GPU"),
)

ONE_NVLINK = (
    _gpm("link_rx_bytes_per_s", "bytes/s", "NVLink traffic into the GPU over this link"),
    _gpm("link_tx_bytes_per_s", "bytes/s", "NVLink traffic out of the GPU over this link"),
    _nvml("link_up", "0/1", "Whether this NVLink is active", VOLTA),
    _field("link_replays", "", "Packets that this NVLink sent again", VOLTA, counter=True),
    _field("link_recoveries", "", "Times that this NVLink had to recover", VOLTA, counter=True),
    _field("link_crc_errors", "", "Damaged packets that this NVLink received", VOLTA, counter=True),
)

HEALTH = (
    _field(
        "ecc_corrected",
        "",
        "Single-bit memory errors since the driver was loaded: corrected",
        VOLTA,
        counter=True,
    ),
    _field(
        "ecc_uncorrected",
        "",
        "Double-bit memory errors since the driver was loaded: data was lost",
        VOLTA,
        counter=True,
    ),
    _field(
        "ecc_corrected_lifetime",
        "",
        "Single-bit memory errors over the lifetime of the GPU",
        VOLTA,
        counter=True,
    ),
    _field(
        "ecc_uncorrected_lifetime",
        "",
        "Double-bit memory errors over the lifetime of the GPU",
        VOLTA,
        counter=True,
    ),
    _field("rows_remapped_corrected", "", "Memory rows replaced after corrected errors", AMPERE),
    _field(
        "rows_remapped_uncorrected", "", "Memory rows replaced after uncorrected errors", AMPERE
    ),
    _field(
        "row_remap_pending", "0/1", "The GPU will replace a memory row at the next reset", AMPERE
    ),
    _field(
        "row_remap_failed",
        "0/1",
        "The GPU could not replace a memory row: the GPU needs service",
        AMPERE,
    ),
    _nvml(
        "xid_errors",
        "",
        "Errors (XID) that the driver has reported since the console started",
        counter=True,
    ),
    _nvml("processes", "", "Visible processes that use this GPU"),
)

# Metrics that hardly ever change keep no history: with 64 GPUs of 18 links each the history would
# need 100 MB.
_STEADY = (
    "_total_bytes",
    "_reserved_bytes",
    "_limit_w",
    "_max_w",
    "_max_hz",
    "_slowdown_c",
    "_max",
    "_generation",
    "_width",
    "nvlinks_active",
)


def _without_history(metric: Metric) -> Metric:
    return msgspec.structs.replace(metric, history=False)


GPU_METRICS = tuple(
    _without_history(metric) if metric.name.endswith(_STEADY) or metric in HEALTH else metric
    for metric in ACTIVITY + MEMORY + POWER + CLOCKS + LINKS + HEALTH
)
LINK_METRICS = tuple(map(_without_history, ONE_NVLINK))


# --- DCGM's names for our metrics -----------------------------------------------------------------

MIB = float(1 << 20)
PERCENT = 0.01
MHZ = 1e6
MILLI = 1e-3
NANO = 1e-9

XID_FIELD = "DCGM_FI_DEV_XID_ERRORS"

DcgmKind = Literal["gauge", "counter", "rate"]


class DcgmField(msgspec.Struct, frozen=True):
    """The value of `metric` is the value of `field` times `factor`. With kind `rate`, `field` is a
    counter: the value is its growth per second times `factor`.

    A counter cannot be computed from its rate, so a field of kind `rate` is read but not exported.
    With `only_with`, the field is exported only if the metric `only_with` has a value from its
    usual source. Otherwise our metric may come from another kind of reading than DCGM's.
    """

    field: str
    metric: str
    factor: float = 1.0
    kind: DcgmKind = "gauge"
    only_with: str = ""


def _prof(name: str, metric: str, only_with: str = "") -> DcgmField:
    return DcgmField(f"DCGM_FI_PROF_{name}", f"gpu.{metric}", only_with=only_with)


def _dev(name: str, metric: str, factor: float = 1.0) -> DcgmField:
    return DcgmField(f"DCGM_FI_DEV_{name}", f"gpu.{metric}", factor)


def _counter(name: str, metric: str, factor: float = 1.0) -> DcgmField:
    return DcgmField(f"DCGM_FI_DEV_{name}", f"gpu.{metric}", factor, "counter")


def _time_share(name: str, metric: str) -> DcgmField:
    """A counter of nanoseconds since the driver was loaded. Older DCGM headers state microseconds,
    but the values were always nanoseconds."""
    return DcgmField(f"DCGM_FI_DEV_{name}", f"gpu.{metric}", NANO, "rate")


# Without GPM our PCIe rates may come from NVML, which averages over 20 ms only.
_GPM = "gpu.sm_active_ratio"

FIELDS = (
    _prof("GR_ENGINE_ACTIVE", "graphics_active_ratio"),
    _prof("SM_ACTIVE", "sm_active_ratio"),
    _prof("SM_OCCUPANCY", "sm_occupancy_ratio"),
    _prof("PIPE_TENSOR_ACTIVE", "tensor_active_ratio"),
    _prof("PIPE_TENSOR_HMMA_ACTIVE", "tensor_hmma_active_ratio"),
    _prof("PIPE_TENSOR_IMMA_ACTIVE", "tensor_imma_active_ratio"),
    _prof("PIPE_TENSOR_DFMA_ACTIVE", "tensor_dfma_active_ratio"),
    _prof("PIPE_FP64_ACTIVE", "fp64_active_ratio"),
    _prof("PIPE_FP32_ACTIVE", "fp32_active_ratio"),
    _prof("PIPE_FP16_ACTIVE", "fp16_active_ratio"),
    _prof("PIPE_INT_ACTIVE", "integer_active_ratio"),
    _prof("DRAM_ACTIVE", "dram_active_ratio"),
    # Gauges in bytes per second; old counters files give another type.
    _prof("PCIE_TX_BYTES", "pcie_tx_bytes_per_s", _GPM),
    _prof("PCIE_RX_BYTES", "pcie_rx_bytes_per_s", _GPM),
    _prof("NVLINK_TX_BYTES", "nvlink_tx_bytes_per_s"),
    _prof("NVLINK_RX_BYTES", "nvlink_rx_bytes_per_s"),
    _dev("GPU_UTIL", "utilization_ratio", PERCENT),
    _dev("MEM_COPY_UTIL", "memory_utilization_ratio", PERCENT),
    _dev("ENC_UTIL", "encoder_utilization_ratio", PERCENT),
    _dev("DEC_UTIL", "decoder_utilization_ratio", PERCENT),
    _dev("FB_TOTAL", "hbm_total_bytes", MIB),
    _dev("FB_FREE", "hbm_free_bytes", MIB),
    _dev("FB_USED", "hbm_used_bytes", MIB),
    _dev("FB_RESERVED", "hbm_reserved_bytes", MIB),
    _dev("BAR1_TOTAL", "bar1_total_bytes", MIB),
    _dev("BAR1_USED", "bar1_used_bytes", MIB),
    _dev("POWER_USAGE", "power_w"),
    _dev("POWER_USAGE_INSTANT", "power_instant_w"),
    _dev("ENFORCED_POWER_LIMIT", "power_limit_w"),
    _dev("POWER_MGMT_LIMIT_DEF", "power_limit_default_w"),
    _dev("POWER_MGMT_LIMIT_MAX", "power_limit_max_w"),
    _counter("TOTAL_ENERGY_CONSUMPTION", "energy_j", MILLI),
    _dev("GPU_TEMP", "temperature_c"),
    _dev("SLOWDOWN_TEMP", "temperature_slowdown_c"),
    _dev("MEMORY_TEMP", "memory_temperature_c"),
    _dev("FAN_SPEED", "fan_ratio", PERCENT),
    _dev("PSTATE", "performance_state"),
    _dev("SM_CLOCK", "sm_clock_hz", MHZ),
    _dev("MAX_SM_CLOCK", "sm_clock_max_hz", MHZ),
    _dev("MEM_CLOCK", "memory_clock_hz", MHZ),
    _dev("MAX_MEM_CLOCK", "memory_clock_max_hz", MHZ),
    _dev("PCIE_LINK_GEN", "pcie_link_generation"),
    _dev("PCIE_MAX_LINK_GEN", "pcie_link_generation_max"),
    _dev("PCIE_LINK_WIDTH", "pcie_link_width"),
    _dev("PCIE_MAX_LINK_WIDTH", "pcie_link_width_max"),
    _counter("PCIE_REPLAY_COUNTER", "pcie_replays"),
    _counter("ECC_SBE_VOL_TOTAL", "ecc_corrected"),
    _counter("ECC_DBE_VOL_TOTAL", "ecc_uncorrected"),
    _counter("ECC_SBE_AGG_TOTAL", "ecc_corrected_lifetime"),
    _counter("ECC_DBE_AGG_TOTAL", "ecc_uncorrected_lifetime"),
    _dev("CORRECTABLE_REMAPPED_ROWS", "rows_remapped_corrected"),
    _dev("UNCORRECTABLE_REMAPPED_ROWS", "rows_remapped_uncorrected"),
    _dev("ROW_REMAP_PENDING", "row_remap_pending"),
    _dev("ROW_REMAP_FAILURE", "row_remap_failed"),
    _time_share("POWER_VIOLATION", "power_cap_time_ratio"),
    _time_share("THERMAL_VIOLATION", "thermal_time_ratio"),
    _time_share("SYNC_BOOST_VIOLATION", "sync_boost_time_ratio"),
    _time_share("BOARD_LIMIT_VIOLATION", "board_limit_time_ratio"),
    _time_share("RELIABILITY_VIOLATION", "reliability_time_ratio"),
    _time_share("CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS", "sw_thermal_time_ratio"),
    _time_share("CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS", "hw_thermal_time_ratio"),
    _time_share("CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS", "power_brake_time_ratio"),
)


# --- the metric catalogue -------------------------------------------------------------------------

__all__ = ["CATALOGUE", "Kind", "Metric", "series_key"]

_HOST = (
    declare(
        "host.cores_busy",
        "cores",
        "psutil",
        "Busy CPU cores among those that the console may use, all processes",
    ),
    declare(
        "host.core_busy_ratio", "ratio", "psutil", "Share of time in which this CPU core was busy"
    ),
    declare(
        "host.load_average_1min",
        "",
        "getloadavg",
        (
            "Tasks of the whole machine that run or wait for a core or a disk, average of the last"
            " minute"
        ),
    ),
    declare(
        "host.run_queue_delay_ratio",
        "ratio",
        "/proc/pressure/cpu",
        "Share of time in which some task waited for a core",
    ),
    declare(
        "host.io_pressure_ratio",
        "ratio",
        "/proc/pressure/io",
        "Share of time in which some task waited for I/O",
    ),
    declare(
        "host.memory_pressure_ratio",
        "ratio",
        "/proc/pressure/memory",
        "Share of time in which some task waited for memory",
    ),
    declare(
        "host.memory_used_bytes",
        "bytes",
        "psutil",
        "Host memory that is not available to new programs",
    ),
    declare("host.memory_total_bytes", "bytes", "psutil", "Host memory"),
    declare(
        "host.swap_used_bytes",
        "bytes",
        "/proc/meminfo",
        "Swap space of the whole machine that is in use",
    ),
    declare("host.swap_total_bytes", "bytes", "/proc/meminfo", "Swap space of the whole machine"),
    declare("host.disk_read_bytes_per_s", "bytes/s", "psutil", "Bytes read from block devices"),
    declare("host.disk_write_bytes_per_s", "bytes/s", "psutil", "Bytes written to block devices"),
    declare("host.net_rx_bytes_per_s", "bytes/s", "psutil", "Bytes received by network cards"),
    declare("host.net_tx_bytes_per_s", "bytes/s", "psutil", "Bytes sent by network cards"),
)


def _live(field: str) -> Metric:
    """The live metric of a figure of the summary."""
    figure = FIGURES[field]
    assert figure.live is not None
    source, meaning = figure.live
    return declare(
        figure.metric,
        figure.unit,
        source,
        meaning,
        "distribution" if figure.unit == "s" else "gauge",
    )


_WORKLOAD = (
    _live("tokens_per_s"),
    _live("samples_per_s"),
    _live("step_time_s"),
    declare("workload.loss", "", "workload", "The last training loss that the run reported"),
    _live("flops_per_s"),
    _live("mfu_ratio"),
    declare(
        "workload.memory_bytes",
        "bytes",
        "worker",
        "Peak device memory of the worker; on a CPU the resident set size of the worker",
    ),
    _live("tokens_per_j"),
    declare(
        "workload.samples_per_j",
        "samples/J",
        "derived",
        "Samples per joule: samples/s over the power of the device",
        better="higher",
    ),
    _live("flops_per_j"),
    _live("cost_per_million_tokens"),
    *(
        declare(owner.metric, "bytes", "torch", owner.about)
        for owner in (*OWNERS.values(), KEPT, CARD)
    ),
)

_SERVING = (
    _live("requests_per_s"),
    _live("ttft_s"),
    _live("tpot_s"),
    _live("itl_s"),
    _live("e2e_s"),
    declare(
        "workload.active_requests",
        "requests",
        "load generator",
        "Requests that the client has sent and that are not finished",
    ),
    declare(
        "workload.failed_requests_per_s",
        "requests/s",
        "load generator",
        "Requests that failed, per second",
        better="lower",
    ),
    declare(
        "server.requests_running",
        "requests",
        "server /metrics",
        "Sequences in the server's current iteration",
    ),
    declare(
        "server.requests_waiting",
        "requests",
        "server /metrics",
        "Sequences that wait in the server for a sequence slot or for KV cache",
    ),
    declare(
        "server.kv_cache_usage_ratio",
        "ratio",
        "server /metrics",
        "Share of the KV cache that sequences use",
    ),
    declare(
        "server.kv_cache_mean_ratio",
        "ratio",
        "server /metrics",
        "The same, the mean of several engines on one page",
    ),
    declare(
        "server.requests_deferred",
        "requests",
        "server /metrics",
        (
            "Waiting requests that lack something else than room: keys and values from elsewhere,"
            " or a grammar"
        ),
    ),
    declare(
        "server.requests_short_of_capacity",
        "requests",
        "server /metrics",
        "Waiting requests that lack room in the batch or the KV cache",
    ),
    declare(
        "server.front_waiting",
        "requests",
        "server /metrics",
        "Requests that wait in a router before the engine (Ray Serve, Dynamo)",
    ),
    declare(
        "server.sequence_limit",
        "requests",
        "server /metrics",
        "The most sequences in an iteration, where the page has this limit",
    ),
    declare(
        "server.engines",
        "engines",
        "server /metrics",
        "The engines, ranks or replicas that report on one page, where there are several",
    ),
    declare(
        "server.kinds_of_engines",
        "",
        "server /metrics",
        "Kinds of engines on one metrics page: of different models, or for different work",
    ),
    declare(
        "server.replicas",
        "servers",
        "server /metrics",
        "The servers that have answered behind one address: it has no rates and no percentiles",
    ),
    declare(
        "server.accept_length",
        "tokens",
        "server /metrics",
        "Tokens of a forward pass with speculative decoding: accepted drafts and one more (SGLang)",
    ),
    declare(
        "server.accept_ratio",
        "ratio",
        "server /metrics",
        "Share of the drafted tokens that the model accepts (SGLang)",
    ),
    declare(
        "server.grammar_waiting",
        "requests",
        "server /metrics",
        "Requests that wait for their grammar to be compiled (SGLang)",
    ),
    declare(
        "server.lora_limit",
        "adapters",
        "server /metrics",
        "The most LoRA adapters in one iteration",
    ),
    declare(
        "server.token_limit",
        "tokens",
        "server /metrics",
        "The most tokens in an iteration, where the page has this limit",
    ),
    declare(
        "server.forward_busy_ratio",
        "ratio",
        "server /metrics",
        "Share of the time in which the GPU is in forward passes (SGLang)",
    ),
    declare(
        "server.asleep",
        "",
        "server /metrics",
        "1 while the server has given its memory back (vLLM's sleep mode)",
    ),
    declare("server.models_loaded", "models", "server /api/ps", "Models in memory (Ollama)"),
    declare(
        "server.on_gpu_ratio",
        "ratio",
        "server /api/ps",
        "Share of the bytes of the loaded models that is on a GPU (Ollama)",
    ),
    declare(
        "server.preemptions_per_s",
        "/s",
        "server /metrics",
        "Preempted sequences: the server frees their KV cache and computes it again later",
        better="lower",
    ),
    declare("server.prompt_tokens_per_s", "tokens/s", "server /metrics", "Prompt tokens computed"),
    declare(
        "server.generation_tokens_per_s",
        "tokens/s",
        "server /metrics",
        "Tokens generated for all clients",
    ),
    declare(
        "server.prefix_hit_ratio",
        "ratio",
        "server /metrics",
        "Prompt tokens found in the prefix cache over all prompt tokens looked up",
        better="higher",
    ),
    declare(
        "server.flops_per_s",
        "FLOP/s",
        "server /metrics",
        "Model FLOP/s per GPU, estimated by vLLM (--enable-mfu-metrics)",
    ),
    declare(
        "server.read_bytes_per_s",
        "bytes/s",
        "server /metrics",
        "Bytes per second that the model must read per GPU, estimated by vLLM",
    ),
    declare(
        "server.frontend_cpu_ratio",
        "ratio",
        "/proc",
        "CPU cores used by the process that accepts requests and sends tokens (vLLM)",
    ),
)

_CONSOLE = (
    declare(
        "console.cpu_ratio",
        "ratio",
        "psutil",
        "CPU time of the console and its sampler over wall time, as a share of one core",
    ),
    declare("console.memory_bytes", "bytes", "psutil", "Resident memory of the console process"),
)

CATALOGUE: dict[str, Metric] = {
    metric.name: metric
    for metric in GPU_METRICS + LINK_METRICS + _HOST + _WORKLOAD + _SERVING + _CONSOLE
}


def series_key(metric: str, device: str) -> str:
    """The name of a series: `gpu.power_w{device=gpu:0}`."""
    return f"{metric}{{device={device}}}"
