"""DCGM's names for our metrics. gpuconsole's exporter exports these names in addition to our names, and the sampler reads them from a
dcgm-exporter.

Names, units and types are those of dcgm_fields.h and dcgm-exporter's counters files. A field is in this list only if it has the
same meaning as our metric. Three similar fields are excluded on purpose. DCGM_FI_DEV_PCIE_*_THROUGHPUT and
DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL have the type counter, but are rates with an uncertain unit. DCGM_FI_DEV_XID_ERRORS is the code of
the last error, while our `gpu.xid_errors` counts errors; the exporter computes this field from the XID events.
"""

from __future__ import annotations

from typing import Literal

import msgspec

MIB = float(1 << 20)
PERCENT = 0.01
MHZ = 1e6
MILLI = 1e-3
NANO = 1e-9

XID_FIELD = "DCGM_FI_DEV_XID_ERRORS"

DcgmKind = Literal["gauge", "counter", "rate"]


class DcgmField(msgspec.Struct, frozen=True):
    """`metric` is `field` times `factor`. With kind `rate`, the field is a counter, and `metric` is its growth per second times `factor`.

    A counter cannot be computed from its rate, so a field of kind `rate` is read but not exported. With `only_with`, the field is exported
    only if the metric `only_with` has a value from its usual source. Otherwise our metric may come from another kind of reading than DCGM's.
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
    """A counter of nanoseconds since the driver was loaded. Older DCGM headers state microseconds, but the values were always nanoseconds."""
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
    _dev("POWER_MGMT_LIMIT_MAX", "power_limit_max_w"),
    _counter("TOTAL_ENERGY_CONSUMPTION", "energy_j", MILLI),
    _dev("GPU_TEMP", "temperature_c"),
    _dev("SLOWDOWN_TEMP", "temperature_slowdown_c"),
    _dev("MEMORY_TEMP", "memory_temperature_c"),
    _dev("FAN_SPEED", "fan_ratio", PERCENT),
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
