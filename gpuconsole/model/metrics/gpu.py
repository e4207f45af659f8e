"""The metrics of a GPU. A metric of one NVLink belongs to a device with its own name: `gpu:0/link:3`.

`needs` is the oldest hardware that has the metric. A metric that a driver, a container or MIG withholds reads `n/a` with the reason.
Sources: `nvml.gpm` are the hardware counters of Hopper and newer, averaged over the time between two samples. `nvml.field` are NVML's
field values. `nvml` is a separate NVML call. `derived` is computed from other metrics. A sample names the source of each value that
did not come from the usual source.
"""

from __future__ import annotations

import msgspec

from gpuconsole.model.metrics.metric import Metric, declare

HOPPER, AMPERE, VOLTA, ANY = "Hopper", "Ampere", "Volta", "any"


def _gpm(name: str, unit: str, meaning: str) -> Metric:
    return declare(f"gpu.{name}", unit, "nvml.gpm", meaning, needs=HOPPER)


def _nvml(name: str, unit: str, meaning: str, needs: str = ANY, *, counter: bool = False) -> Metric:
    return declare(f"gpu.{name}", unit, "nvml", meaning, needs=needs, kind="counter" if counter else "gauge")


def _field(name: str, unit: str, meaning: str, needs: str, *, counter: bool = False) -> Metric:
    return declare(f"gpu.{name}", unit, "nvml.field", meaning, needs=needs, kind="counter" if counter else "gauge")


ACTIVITY = (
    _gpm("sm_active_ratio", "ratio", "Share of time in which an SM had at least one warp, averaged over SMs"),
    _gpm("sm_occupancy_ratio", "ratio", "Resident warps over the maximum, averaged over SMs"),
    _gpm("tensor_active_ratio", "ratio", "Share of peak cycles in which any tensor pipe was active"),
    _gpm("tensor_hmma_active_ratio", "ratio", "Share of peak cycles in which tensor pipes did fp16, bf16 or tf32 (HMMA)"),
    _gpm("tensor_imma_active_ratio", "ratio", "Share of peak cycles in which tensor pipes did integers (IMMA)"),
    _gpm("tensor_dfma_active_ratio", "ratio", "Share of peak cycles in which tensor pipes did fp64 (DFMA)"),
    _gpm("tensor_dmma_active_ratio", "ratio", "Share of peak cycles in which tensor pipes did fp64 matrices (DMMA)"),
    _gpm("fp64_active_ratio", "ratio", "Share of peak cycles in which the fp64 pipe was active"),
    _gpm("fp32_active_ratio", "ratio", "Share of peak cycles in which the fp32 pipe was active"),
    _gpm("fp16_active_ratio", "ratio", "Share of peak cycles in which the fp16 pipe was active (not the tensor cores)"),
    _gpm("integer_active_ratio", "ratio", "Share of peak cycles in which the integer pipe was active"),
    _gpm("graphics_active_ratio", "ratio", "Share of time in which any graphics or compute engine was active"),
    _gpm("dram_active_ratio", "ratio", "HBM bandwidth in use over its maximum"),
    declare("gpu.hbm_bytes_per_s", "bytes/s", "derived", "HBM bandwidth in use: dram_active_ratio times the datasheet peak", needs=HOPPER),
    _nvml("utilization_ratio", "ratio", "Share of time in which at least one kernel ran, of any size; not a measure of load"),
    _nvml("memory_utilization_ratio", "ratio", "Share of time in which device memory was read or written; not bandwidth"),
    _nvml("encoder_utilization_ratio", "ratio", "Share of time in which the video encoder was busy"),
    _nvml("decoder_utilization_ratio", "ratio", "Share of time in which the video decoder was busy"),
    _nvml("jpeg_utilization_ratio", "ratio", "Share of time in which the JPEG decoder was busy", AMPERE),
    _nvml("optical_flow_utilization_ratio", "ratio", "Share of time in which the optical-flow engine was busy", AMPERE),
)

MEMORY = (
    _nvml("hbm_used_bytes", "bytes", "Device memory in use by all processes"),
    _nvml("hbm_free_bytes", "bytes", "Device memory that can still be allocated"),
    _nvml("hbm_reserved_bytes", "bytes", "Device memory that the driver reserves (0 where the driver does not report it separately)"),
    _nvml("hbm_total_bytes", "bytes", "Device memory"),
    _nvml("bar1_used_bytes", "bytes", "BAR1 memory in use: device memory mapped for the CPU and for other GPUs"),
    _nvml("bar1_total_bytes", "bytes", "BAR1 window"),
)

POWER = (
    _nvml("power_w", "W", "Board power draw (a one-second average on Ampere and newer)"),
    _field("power_instant_w", "W", "Board power draw at the moment of reading", AMPERE),
    _nvml("power_limit_w", "W", "Power limit in force"),
    _nvml("power_limit_max_w", "W", "The highest power limit that can be set"),
    _nvml("energy_j", "J", "Energy since the driver was loaded", VOLTA, counter=True),
    _nvml("temperature_c", "°C", "GPU core temperature"),
    _nvml("temperature_slowdown_c", "°C", "Core temperature at which the hardware lowers its clocks"),
    _field("memory_temperature_c", "°C", "HBM temperature", AMPERE),
    _nvml("fan_ratio", "ratio", "Requested fan speed over the maximum"),
    _nvml("sm_clock_hz", "Hz", "SM clock"),
    _nvml("sm_clock_max_hz", "Hz", "The highest SM clock"),
    _nvml("memory_clock_hz", "Hz", "Memory clock"),
    _nvml("memory_clock_max_hz", "Hz", "The highest memory clock"),
)

# The reasons that limit the clocks: now (0 or 1), and as a share of the time since the last reading.
CLOCKS = (
    _nvml("clocks_idle", "0/1", "Clocks are low because the GPU is idle"),
    _nvml("clocks_app_setting", "0/1", "The application clock setting limits the clocks"),
    _nvml("clocks_power_cap", "0/1", "The power limit lowers the clocks"),
    _nvml("clocks_hw_slowdown", "0/1", "The hardware cuts the clocks to half or less: heat, power brake or power supply"),
    _nvml("clocks_sync_boost", "0/1", "The sync boost group limits the clocks"),
    _nvml("clocks_sw_thermal", "0/1", "The driver lowers the clocks because the GPU or its memory is hot"),
    _nvml("clocks_hw_thermal", "0/1", "The hardware cuts the clocks because of heat"),
    _nvml("clocks_power_brake", "0/1", "An external signal cuts the clocks, for example from the power supply"),
    _field("power_cap_time_ratio", "ratio", "Share of time in which the power limit lowered the clocks", VOLTA),
    _field("thermal_time_ratio", "ratio", "Share of time in which heat lowered the clocks", VOLTA),
    _field("sync_boost_time_ratio", "ratio", "Share of time in which sync boost lowered the clocks", VOLTA),
    _field("board_limit_time_ratio", "ratio", "Share of time in which the board's own limit lowered the clocks", VOLTA),
    _field("reliability_time_ratio", "ratio", "Share of time in which the reliability voltage lowered the clocks", VOLTA),
    _field("sw_thermal_time_ratio", "ratio", "Share of time in which the driver lowered the clocks because of heat", VOLTA),
    _field("hw_thermal_time_ratio", "ratio", "Share of time in which the hardware cut the clocks because of heat", VOLTA),
    _field("power_brake_time_ratio", "ratio", "Share of time in which an external signal cut the clocks", VOLTA),
)

LINKS = (
    declare(
        "gpu.pcie_rx_bytes_per_s",
        "bytes/s",
        "nvml.gpm",
        "PCIe traffic into the GPU with packet headers (without GPM: a byte counter, or the driver's average over 20 ms)",
    ),
    declare(
        "gpu.pcie_tx_bytes_per_s",
        "bytes/s",
        "nvml.gpm",
        "PCIe traffic out of the GPU with packet headers (without GPM: a byte counter, or the driver's average over 20 ms)",
    ),
    _nvml("pcie_link_generation", "", "Current PCIe generation of the link; an idle GPU lowers it to save power"),
    _nvml("pcie_link_generation_max", "", "The highest PCIe generation that GPU and slot support"),
    _nvml("pcie_link_width", "lanes", "PCIe lanes in use"),
    _nvml("pcie_link_width_max", "lanes", "The maximum number of PCIe lanes of GPU and slot"),
    _nvml("pcie_replays", "", "PCIe packets sent again since the driver was loaded; many replays mean a bad link", counter=True),
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
    _gpm("c2c_rx_bytes_per_s", "bytes/s", "Chip-to-chip traffic into the GPU (Grace CPU and GPU in one package)"),
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
    _field("ecc_corrected", "", "Single-bit memory errors since the driver was loaded: corrected", VOLTA, counter=True),
    _field("ecc_uncorrected", "", "Double-bit memory errors since the driver was loaded: data was lost", VOLTA, counter=True),
    _field("ecc_corrected_lifetime", "", "Single-bit memory errors over the lifetime of the GPU", VOLTA, counter=True),
    _field("ecc_uncorrected_lifetime", "", "Double-bit memory errors over the lifetime of the GPU", VOLTA, counter=True),
    _field("rows_remapped_corrected", "", "Memory rows replaced after corrected errors", AMPERE),
    _field("rows_remapped_uncorrected", "", "Memory rows replaced after uncorrected errors", AMPERE),
    _field("row_remap_pending", "0/1", "The GPU will replace a memory row at the next reset", AMPERE),
    _field("row_remap_failed", "0/1", "The GPU could not replace a memory row: the GPU needs service", AMPERE),
    _nvml("xid_errors", "", "Errors (XID) that the driver has reported since the console started", counter=True),
    _nvml("processes", "", "Visible processes that use this GPU"),
)

# Metrics that hardly ever change keep no history: with 64 GPUs of 18 links each the history would need 100 MB.
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
