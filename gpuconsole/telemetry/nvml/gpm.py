"""GPM: the driver's hardware counters (Hopper and newer), as averages over the time between two samples."""

from __future__ import annotations

from typing import Any, NamedTuple

import pynvml

from gpuconsole.telemetry.nvml.library import FUNCTION_NOT_FOUND, CallFailed, call, reason_for

NEEDS_HOPPER = "GPM needs Hopper or newer"
FIRST_SAMPLE = "the first of two GPM samples has just been taken"
_METRICS_GET_VERSION = 1
_PERCENT = 0.01
_MIB = float(1 << 20)


class GpmMetric(NamedTuple):
    """NVML_GPM_METRIC_* by value (ABI), and the factor from GPM's unit (percent, MiB/s) to the catalogue's."""

    identifier: int
    factor: float


GPM_METRICS = {
    "gpu.sm_active_ratio": GpmMetric(2, _PERCENT),  # SM_UTIL
    "gpu.sm_occupancy_ratio": GpmMetric(3, _PERCENT),  # SM_OCCUPANCY
    "gpu.tensor_active_ratio": GpmMetric(5, _PERCENT),  # ANY_TENSOR_UTIL
    "gpu.dram_active_ratio": GpmMetric(10, _PERCENT),  # DRAM_BW_UTIL
    "gpu.pcie_tx_bytes_per_s": GpmMetric(20, _MIB),  # PCIE_TX_PER_SEC
    "gpu.pcie_rx_bytes_per_s": GpmMetric(21, _MIB),  # PCIE_RX_PER_SEC
    "gpu.nvlink_rx_bytes_per_s": GpmMetric(60, _MIB),  # NVLINK_TOTAL_RX_PER_SEC
    "gpu.nvlink_tx_bytes_per_s": GpmMetric(61, _MIB),  # NVLINK_TOTAL_TX_PER_SEC
}


class GpmReader:
    """The counters of one device: keeps the last sample and reads the averages since then."""

    def __init__(self, handle: Any) -> None:
        """Raises CallFailed when the device, the driver or the binding has no GPM."""
        if not call("nvmlGpmQueryDeviceSupport", handle).isSupportedDevice:
            raise CallFailed(3, NEEDS_HOPPER)
        struct = getattr(pynvml, "c_nvmlGpmMetricsGet_t", None)
        if struct is None:
            raise CallFailed(FUNCTION_NOT_FOUND, "the installed nvidia-ml-py lacks GPM")
        self._handle = handle
        self._earlier = call("nvmlGpmSampleAlloc")
        self._later = call("nvmlGpmSampleAlloc")
        self._has_earlier = False
        self._query = struct()
        self._query.version = _METRICS_GET_VERSION
        self._query.numMetrics = len(GPM_METRICS)
        for slot, metric in enumerate(GPM_METRICS.values()):
            self._query.metrics[slot].metricId = metric.identifier

    def read(self) -> tuple[dict[str, float], dict[str, str]]:
        """Values in catalogue units, unchecked, and the reasons for the others. Raises CallFailed when none can be had.

        The first call only takes a sample. A failed sample leaves the earlier one in place, so the next average
        reaches further back.
        """
        call("nvmlGpmSampleGet", self._handle, self._later)
        if not self._has_earlier:
            self._keep_later()
            return {}, dict.fromkeys(GPM_METRICS, FIRST_SAMPLE)
        self._query.sample1, self._query.sample2 = self._earlier, self._later
        call("nvmlGpmMetricsGet", self._query)
        self._keep_later()
        return self._split()

    def _keep_later(self) -> None:
        self._earlier, self._later = self._later, self._earlier
        self._has_earlier = True

    def _split(self) -> tuple[dict[str, float], dict[str, str]]:
        values, reasons = {}, {}
        for slot, (name, metric) in enumerate(GPM_METRICS.items()):
            answer = self._query.metrics[slot]
            if answer.nvmlReturn:  # each metric has a return code of its own
                reasons[name] = reason_for(answer.nvmlReturn)
            else:
                values[name] = answer.value * metric.factor
        return values, reasons
