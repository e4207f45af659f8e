"""GPM: the driver's hardware counters (Hopper and newer), as averages over the time between two
samples."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Container, Iterable
from typing import Any, NamedTuple

import pynvml

from gpuconsole.telemetry.nvml.facts import fact
from gpuconsole.telemetry.nvml.library import (
    FUNCTION_NOT_FOUND,
    NOT_SUPPORTED,
    CallFailed,
    call,
    driver_is_at_least,
    member,
)

NEEDS_HOPPER = "GPM needs Hopper or newer"
NOT_OFFERED = "the driver offers no GPM on this device"
HOPPER = 9
"""NVML's number of the architecture, and the major compute capability."""
FIRST_SAMPLE = "a rate needs two GPM samples"
MAX_LINKS = 18
REFRESH_S = 0.12
"""The driver's counters are refreshed every 100 ms (nvmlGpmMetricsGet, note on the interval): two
closer samples give blank averages and 0 bytes."""
_METRICS_GET_VERSION = 1
_PERCENT = 0.01
_MIB = float(1 << 20)


class GpmMetric(NamedTuple):
    """One GPM metric: the NVML_GPM_METRIC_* number (ABI), and the factor from GPM's unit (percent,
    MiB/s) to the catalogue's unit."""

    identifier: int
    factor: float


GPM_METRICS = {
    "gpu.graphics_active_ratio": GpmMetric(1, _PERCENT),  # GRAPHICS_UTIL
    "gpu.sm_active_ratio": GpmMetric(2, _PERCENT),  # SM_UTIL
    "gpu.sm_occupancy_ratio": GpmMetric(3, _PERCENT),  # SM_OCCUPANCY
    "gpu.integer_active_ratio": GpmMetric(4, _PERCENT),  # INTEGER_UTIL
    "gpu.tensor_active_ratio": GpmMetric(5, _PERCENT),  # ANY_TENSOR_UTIL
    "gpu.tensor_dfma_active_ratio": GpmMetric(6, _PERCENT),  # DFMA_TENSOR_UTIL
    "gpu.tensor_hmma_active_ratio": GpmMetric(7, _PERCENT),  # HMMA_TENSOR_UTIL
    "gpu.tensor_dmma_active_ratio": GpmMetric(8, _PERCENT),  # DMMA_TENSOR_UTIL
    "gpu.tensor_imma_active_ratio": GpmMetric(9, _PERCENT),  # IMMA_TENSOR_UTIL
    "gpu.dram_active_ratio": GpmMetric(10, _PERCENT),  # DRAM_BW_UTIL
    "gpu.fp64_active_ratio": GpmMetric(11, _PERCENT),  # FP64_UTIL
    "gpu.fp32_active_ratio": GpmMetric(12, _PERCENT),  # FP32_UTIL
    "gpu.fp16_active_ratio": GpmMetric(13, _PERCENT),  # FP16_UTIL
    "gpu.pcie_tx_bytes_per_s": GpmMetric(20, _MIB),  # PCIE_TX_PER_SEC
    "gpu.pcie_rx_bytes_per_s": GpmMetric(21, _MIB),  # PCIE_RX_PER_SEC
    "gpu.nvlink_rx_bytes_per_s": GpmMetric(60, _MIB),  # NVLINK_TOTAL_RX_PER_SEC
    "gpu.nvlink_tx_bytes_per_s": GpmMetric(61, _MIB),  # NVLINK_TOTAL_TX_PER_SEC
    "gpu.c2c_tx_bytes_per_s": GpmMetric(100, _MIB),  # C2C_TOTAL_TX_PER_SEC
    "gpu.c2c_rx_bytes_per_s": GpmMetric(101, _MIB),  # C2C_TOTAL_RX_PER_SEC
}


C2C = ("gpu.c2c_tx_bytes_per_s", "gpu.c2c_rx_bytes_per_s")


BASE = frozenset(range(1, 22))
"""The ids that every driver with GPM knows."""


def gpm_metrics(has_c2c: bool) -> dict[str, GpmMetric]:
    """The metrics that this driver supports on a GPU with or without a chip-to-chip link. Before
    575 the ids ended at 98, and one unknown id can make the whole call fail."""
    return {
        name: metric
        for name, metric in GPM_METRICS.items()
        if name not in C2C or (has_c2c and driver_is_at_least(575))
    }


def link_gpm_metrics(links: int) -> dict[str, GpmMetric]:
    """The metrics of single NVLinks, by metric and link: `gpu.link_rx_bytes_per_s/3`."""
    values = {}
    for link in range(min(links, MAX_LINKS)):
        # NVLINK_L*_RX_PER_SEC
        values[f"gpu.link_rx_bytes_per_s/{link}"] = GpmMetric(62 + 2 * link, _MIB)
        # NVLINK_L*_TX_PER_SEC
        values[f"gpu.link_tx_bytes_per_s/{link}"] = GpmMetric(63 + 2 * link, _MIB)
    return values


class GpmReader:
    """Reads counters of one device, or of its MIG slice `instance`, as averages since the last
    sample.

    The results carry the names in `metrics`, by default the catalogue's names.
    """

    source = "nvml.gpm"

    def __init__(
        self, handle: Any, metrics: dict[str, GpmMetric], instance: int | None = None
    ) -> None:
        self._handle = handle
        self._instance = instance
        self._metrics = metrics
        self._query: Any = None
        self._earlier: Any = None
        self._later: Any = None
        self._earlier_t = float("-inf")
        self._has_earlier = False
        self.waiting: list[str] = []
        """The metrics without a value in the last reading, because it came too soon after the
        previous reading."""
        self._refused: dict[str, CallFailed] = {}
        self._never: CallFailed | None = None
        self._asked = list(metrics)
        self._dropped: dict[str, CallFailed] = {}
        """The metrics that make a whole call fail; the reader does not ask for them again."""
        self._has_searched = False

    def read(self, have: Container[str] = ()) -> tuple[dict[str, float], dict[str, CallFailed]]:
        """Values in catalogue units, unchecked, and failures. Raises CallFailed only for a lost
        device.

        The first call only takes a sample. A call before the driver updates its counters takes no
        sample. After a failed sample the earlier sample remains, so the next average covers a
        longer time.
        """
        self.waiting = []
        if self._never is not None:
            return {}, dict.fromkeys(self._metrics, self._never)
        if self._has_earlier and time.monotonic() - self._earlier_t < REFRESH_S:
            self.waiting = [name for name in self._asked if name not in self._refused]
            return {}, self._refused
        try:
            if self._query is None:
                self._open()
            return self._averages()
        except CallFailed as failure:
            if failure.is_loss:
                raise
            if failure.is_permanent:
                self._never = failure
            self._refused = dict.fromkeys(self._metrics, failure)
            return {}, self._refused

    def _open(self) -> None:
        """Raises CallFailed when the device, the driver or the binding has no GPM."""
        if self._instance is None and not self._is_supported():
            raise CallFailed(
                NOT_SUPPORTED, NEEDS_HOPPER if _is_before_hopper(self._handle) else NOT_OFFERED
            )
        if getattr(pynvml, "c_nvmlGpmMetricsGet_t", None) is None:
            raise CallFailed(FUNCTION_NOT_FOUND, "the installed nvidia-ml-py lacks GPM")
        for which in ("_earlier", "_later"):
            sample = call("nvmlGpmSampleAlloc")
            weakref.finalize(self, _free, sample).atexit = False
            setattr(self, which, sample)
        self._query = self._query_of(self._asked)

    def _query_of(self, names: Iterable[str]) -> Any:
        query = pynvml.c_nvmlGpmMetricsGet_t()
        query.version = _METRICS_GET_VERSION
        identifiers = [self._metrics[name].identifier for name in names]
        query.numMetrics = len(identifiers)
        for slot, identifier in enumerate(identifiers):
            query.metrics[slot].metricId = identifier
        return query

    def _is_supported(self) -> bool:
        """Raises CallFailed where the driver does not say, and a newer driver could."""
        try:
            return bool(call("nvmlGpmQueryDeviceSupport", self._handle).isSupportedDevice)
        except CallFailed as failure:
            if failure.is_loss or not _is_before_hopper(self._handle):
                raise
            return False

    def _averages(self) -> tuple[dict[str, float], dict[str, CallFailed]]:
        if self._instance is None:
            call("nvmlGpmSampleGet", self._handle, self._later)
        else:
            call("nvmlGpmMigSampleGet", self._handle, self._instance, self._later)
        if not self._has_earlier:
            self._keep_later()
            self._refused = dict.fromkeys(self._metrics, CallFailed(-1, FIRST_SAMPLE))
            return {}, self._refused
        try:
            self._ask(self._query)
        except CallFailed as failure:
            if failure.is_loss or self._has_searched:
                raise
            self._leave_out_refused(failure)
            self._ask(self._query)
        self._keep_later()
        return self._split()

    def _ask(self, query: Any) -> None:
        query.sample1, query.sample2 = self._earlier, self._later
        call("nvmlGpmMetricsGet", query)

    def _leave_out_refused(self, failure: CallFailed) -> None:
        """Find the metrics that the driver supports. A driver may refuse a whole call because of
        one id that it lacks. Ask for the base set, then once for each other metric. Raise `failure`
        if the driver refuses all of them."""
        self._has_searched = True
        base = [name for name in self._asked if self._metrics[name].identifier in BASE]
        accepted = set(base) if base and self._refusal(base) is None else set[str]()
        refused: dict[str, CallFailed] = {}
        for name in self._asked:
            if name not in accepted:
                refusal = self._refusal([name])
                if refusal is None:
                    accepted.add(name)
                else:
                    refused[name] = refusal
        if not accepted:
            raise failure
        self._dropped = refused
        self._asked = [name for name in self._asked if name in accepted]
        self._query = self._query_of(self._asked)

    def _refusal(self, names: list[str]) -> CallFailed | None:
        """Return why a whole call for these metrics fails. Raises CallFailed for a lost device."""
        try:
            self._ask(self._query_of(names))
        except CallFailed as failure:
            if failure.is_loss:
                raise
            return failure
        return None

    def _keep_later(self) -> None:
        self._earlier, self._later = self._later, self._earlier
        self._earlier_t = time.monotonic()
        self._has_earlier = True

    def _split(self) -> tuple[dict[str, float], dict[str, CallFailed]]:
        values: dict[str, float] = {}
        failures = dict(self._dropped)
        answers = member(self._query, "metrics")
        for slot, name in enumerate(self._asked):
            answer, metric = answers[slot], self._metrics[name]
            code = member(answer, "nvmlReturn")  # each metric has its own return code
            if code:
                failures[name] = CallFailed(code)
            else:
                values[name] = member(answer, "value") * metric.factor
        self._refused = failures
        return values, failures


def _free(sample: Any) -> None:
    """Give the buffer of a sample back to the driver; do nothing if the driver is gone."""
    with contextlib.suppress(CallFailed):
        call("nvmlGpmSampleFree", sample)


def _is_before_hopper(handle: Any) -> bool:
    """Whether the architecture is known, and older than Hopper: then no driver offers GPM."""
    for function in ("nvmlDeviceGetArchitecture", "nvmlDeviceGetCudaComputeCapability"):
        answer = fact(function, handle)
        if answer is not None:
            return bool((answer[0] if isinstance(answer, list | tuple) else answer) < HOPPER)
    return False
