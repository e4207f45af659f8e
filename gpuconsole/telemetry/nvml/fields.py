"""NVML's field values: many numbers in one call, each with its own return code and timestamp.

Rates of counters use the driver's timestamps, so that a late reading does not look like a slow
device.
"""

from __future__ import annotations

import math
from collections.abc import Container
from typing import Any, NamedTuple

from gpuconsole.telemetry.nvml.library import (
    NOT_SUPPORTED,
    CallFailed,
    call,
    driver_is_at_least,
    member,
)

FIRST_READING = "a rate needs two readings"
WENT_BACK = "the driver's counter or its clock decreased"
WRAPS = "the driver's byte counter has 32 bits and wraps between two readings"
_32_BITS = float(1 << 32)
ALL_LINKS = 0xFFFFFFFF  # scopeId of the NVLink throughput fields: all links together
_US = 1e-6

# nvmlValueType_t to the member of the union that holds it.
_MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
_NOT_A_VALUE = {"uiVal": 0xFFFFFFFF, "ullVal": 0xFFFFFFFFFFFFFFFF}


class Field(NamedTuple):
    """One field. `identifier` is the NVML_FI_* number (ABI). `is_rate`: the metric is the counter's
    growth per second times `factor`.

    `wraps`: the counter wraps on some devices (nvml.h). 32 bits of PCIe bytes last 0.07 to 0.3 s at
    the full rate of a link with 16 lanes. Such a counter is refused, so that the next source is
    asked.
    """

    metric: str
    identifier: int
    factor: float = 1.0
    is_rate: bool = False
    scope: int = 0
    wraps: bool = False


FAST_FIELDS = (
    Field("gpu.power_instant_w", 186, 1e-3),  # POWER_INSTANT, mW
    # Nanoseconds since the driver was loaded in which the clocks were limited.
    Field("gpu.power_cap_time_ratio", 74, 1e-9, True),  # PERF_POLICY_POWER
    Field("gpu.thermal_time_ratio", 75, 1e-9, True),  # PERF_POLICY_THERMAL
    Field("gpu.sync_boost_time_ratio", 76, 1e-9, True),  # PERF_POLICY_SYNC_BOOST
    Field("gpu.board_limit_time_ratio", 77, 1e-9, True),  # PERF_POLICY_BOARD_LIMIT
    Field("gpu.reliability_time_ratio", 79, 1e-9, True),  # PERF_POLICY_RELIABILITY
    # Read only where GPM has no value.
    Field("gpu.pcie_tx_bytes_per_s", 197, 1.0, True, wraps=True),  # PCIE_COUNT_TX_BYTES
    Field("gpu.pcie_rx_bytes_per_s", 198, 1.0, True, wraps=True),  # PCIE_COUNT_RX_BYTES
    # NVLINK_THROUGHPUT_DATA_TX, KiB
    Field("gpu.nvlink_tx_bytes_per_s", 138, 1024.0, True, ALL_LINKS),
    # NVLINK_THROUGHPUT_DATA_RX, KiB
    Field("gpu.nvlink_rx_bytes_per_s", 139, 1024.0, True, ALL_LINKS),
)


REASON_COUNTERS = (
    "gpu.sw_thermal_time_ratio",
    "gpu.hw_thermal_time_ratio",
    "gpu.power_brake_time_ratio",
)


def reason_fields() -> tuple[Field, ...]:
    """CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN and the two after it; empty before driver 575, which
    brought them.

    Driver 580.82 gave them new numbers and used the old numbers for power smoothing (nvml.h of
    nvidia-ml-py 12.570, 12.575, 13.580.65 and 13.580.82).
    """
    if not driver_is_at_least(575):
        return ()
    first = 269 if driver_is_at_least(580, 82) else 251
    return tuple(Field(name, first + n, 1e-9, True) for n, name in enumerate(REASON_COUNTERS))


SLOW_FIELDS = (
    Field("gpu.memory_temperature_c", 82),  # MEMORY_TEMP
    Field("gpu.ecc_corrected", 3),  # ECC_SBE_VOL_TOTAL
    Field("gpu.ecc_uncorrected", 4),  # ECC_DBE_VOL_TOTAL
    Field("gpu.ecc_corrected_lifetime", 5),  # ECC_SBE_AGG_TOTAL
    Field("gpu.ecc_uncorrected_lifetime", 6),  # ECC_DBE_AGG_TOTAL
    Field("gpu.rows_remapped_corrected", 142),  # REMAPPED_COR
    Field("gpu.rows_remapped_uncorrected", 143),  # REMAPPED_UNC
    Field("gpu.row_remap_pending", 144),  # REMAPPED_PENDING
    Field("gpu.row_remap_failed", 145),  # REMAPPED_FAILURE
)


BLACKWELL = 10
"""NVML's number of the architecture."""


def link_fields(links: int, architecture: int | None = None) -> tuple[Field, ...]:
    """The fields of single NVLinks, by metric and link: `gpu.link_replays/3`.

    Blackwell has other error counters: NVML's change log removes 161 to 163 there, and 215 counts
    recoveries, successful (213) and failed (214).
    """
    kinds = {
        "gpu.link_replays": 161,  # NVLINK_ERROR_DL_REPLAY
        # NVLINK_ERROR_DL_RECOVERY, or NVLINK_COUNT_LINK_RECOVERY_EVENTS
        "gpu.link_recoveries": 215 if (architecture or 0) >= BLACKWELL else 162,
        "gpu.link_crc_errors": 163,  # NVLINK_ERROR_DL_CRC
    }
    return tuple(
        Field(f"{name}/{link}", identifier, scope=link)
        for link in range(links)
        for name, identifier in kinds.items()
    )


class FieldReader:
    """One batch of fields of one device. Unsupported fields are not read again."""

    source = "nvml.field"

    def __init__(self, handle: Any, fields: tuple[Field, ...]) -> None:
        self._handle = handle
        self._fields = fields
        self.waiting: list[str] = []
        """Metrics without a new driver value in the last reading."""
        self._never: dict[str, CallFailed] = {}
        self._before: dict[str, tuple[float, float]] = {}

    def read(self, have: Container[str]) -> tuple[dict[str, float], dict[str, CallFailed]]:
        """Values and failures of the metrics that are not in `have`. Raises CallFailed only for a
        lost device."""
        self.waiting = []
        failures = {name: failure for name, failure in self._never.items() if name not in have}
        wanted = [
            field
            for field in self._fields
            if field.metric not in have and field.metric not in self._never
        ]
        # otherwise the rate of a counter that another source provided meanwhile would cover all
        # that time
        asked = {field.metric for field in wanted}
        self._before = {name: before for name, before in self._before.items() if name in asked}
        if not wanted:
            return {}, failures
        try:
            answers = call(
                "nvmlDeviceGetFieldValues",
                self._handle,
                [(field.identifier, field.scope) for field in wanted],
            )
        except CallFailed as failure:
            if failure.is_loss:
                raise
            return {}, failures | {field.metric: failure for field in wanted}
        values: dict[str, float] = {}
        for field, answer in zip(wanted, answers, strict=True):
            try:
                value = self._value(field, answer)
                if value is None:
                    self.waiting.append(field.metric)
                else:
                    values[field.metric] = value
            except CallFailed as failure:
                if failure.is_loss:
                    raise
                failures[field.metric] = failure
                if failure.is_permanent:
                    self._never[field.metric] = failure
        return values, failures

    def _value(self, field: Field, answer: Any) -> float | None:
        """The value in catalogue units, unchecked; None: no new value since the last reading.
        Raises CallFailed when the field has no value."""
        code = member(answer, "nvmlReturn")
        if code:
            raise CallFailed(code)
        kind = _MEMBERS.get(member(answer, "valueType"), "ullVal")
        raw = float(getattr(member(answer, "value"), kind))
        if raw == _NOT_A_VALUE.get(kind):
            return math.nan
        if not field.is_rate:
            return raw * field.factor
        if field.wraps and kind == "uiVal":
            raise CallFailed(NOT_SUPPORTED, WRAPS)
        # the type has 64 bits, but nothing shows yet that the counter has
        if field.wraps and raw < _32_BITS:
            raise CallFailed(-1, WRAPS)
        t = float(member(answer, "timestamp")) * _US
        before = self._before.get(field.metric)
        # the driver updates this counter less often than it is read
        if before is not None and t == before[0]:
            return None
        self._before[field.metric] = (t, raw)
        if before is None:
            raise CallFailed(-1, FIRST_READING)
        if raw < before[1] or t < before[0]:
            raise CallFailed(-1, WENT_BACK)
        return (raw - before[1]) * field.factor / float(t - before[0])
