"""One GPU: all its metrics, each as a value or as the reason why there is none."""

from __future__ import annotations

from typing import Any

from gpuconsole.model.device import Device
from gpuconsole.model.metrics import CATALOGUE
from gpuconsole.telemetry.nvml.calls import CALLS, GARBAGE, Call, ask, is_plausible
from gpuconsole.telemetry.nvml.facts import count_nvlinks, describe, is_mig_on
from gpuconsole.telemetry.nvml.gpm import GPM_METRICS, GpmReader
from gpuconsole.telemetry.nvml.library import NOT_SUPPORTED, CallFailed

GPU_METRICS = tuple(name for name in CATALOGUE if name.startswith("gpu."))
_NVLINK_METRICS = ("gpu.nvlink_rx_bytes_per_s", "gpu.nvlink_tx_bytes_per_s")
_NO_NVLINK = "no active NVLink on this device"
_MIG = "not supported while MIG mode is on"


class Gpu:
    """Reads one device. After a loss it stays lost: only a reset of the GPU brings it back, and that ends our handle."""

    def __init__(self, index: int, handle: Any) -> None:
        nvlinks = count_nvlinks(handle)
        self.device: Device = describe(index, handle, nvlinks)
        self.reasons: dict[str, str] = {}
        self.loss: str | None = None
        self._handle = handle
        self._has_nvlink = nvlinks != 0  # unknown counts as yes: then GPM says
        self._mig = is_mig_on(handle)
        self._gpm: GpmReader | None = None
        self._no_gpm: str | None = None
        self._never: dict[str, str] = {}

    def prime(self) -> None:
        """Take the first GPM sample. What goes wrong here is reported by the first read."""
        try:
            self._read_gpm()
        except CallFailed as failure:
            self._lose(failure)

    def read(self) -> dict[str, float]:
        """All values that can be had now, in catalogue units; `reasons` then holds the other metrics."""
        if self.loss is not None:
            return {}
        self.reasons = {}
        values: dict[str, float] = {}
        try:
            self._accept(self._read_gpm(), values)
            for question in CALLS:
                self._read_call(question, values)
        except CallFailed as failure:
            self._lose(failure)
            return {}
        self._derive(values)
        return values

    def _read_gpm(self) -> dict[str, float]:
        """GPM's metrics, unchecked. Raises CallFailed for a loss only."""
        if self._no_gpm is not None:
            self.reasons.update(dict.fromkeys(GPM_METRICS, self._no_gpm))
            return {}
        try:
            self._gpm = self._gpm or GpmReader(self._handle)
            found, reasons = self._gpm.read()
        except CallFailed as failure:
            reason = self._refusal(failure)
            if failure.is_permanent:
                self._no_gpm = reason
            found, reasons = {}, dict.fromkeys(GPM_METRICS, reason)
        if not self._has_nvlink:  # the counters read 0 there, which would look like a link that is idle
            reasons.update(dict.fromkeys(_NVLINK_METRICS, _NO_NVLINK))
        self.reasons.update(reasons)
        return {name: value for name, value in found.items() if name not in reasons}

    def _read_call(self, question: Call, values: dict[str, float]) -> None:
        """The metrics of one call, unless GPM has delivered them. Raises CallFailed for a loss only."""
        wanted = [name for name in question.metrics if name not in values]
        known = {name: self._never[name] for name in wanted if name in self._never}
        self.reasons.update(known)
        if len(known) == len(wanted):
            return
        try:
            self._accept(ask(question, self._handle), values)
        except CallFailed as failure:
            reasons = dict.fromkeys(wanted, self._refusal(failure))
            self.reasons.update(reasons)
            if failure.is_permanent:
                self._never.update(reasons)

    def _derive(self, values: dict[str, float]) -> None:
        name, source = "gpu.hbm_bytes_per_s", "gpu.dram_active_ratio"
        peak = self.device.peaks.memory_bytes_per_s
        if source not in values:
            self.reasons[name] = self.reasons[source]
        elif peak is None:
            self.reasons[name] = "no datasheet bandwidth is known for this device"
        else:
            values[name] = values[source] * peak

    def _accept(self, found: dict[str, float], values: dict[str, float]) -> None:
        for name, value in found.items():
            if not is_plausible(name, value):
                self.reasons[name] = GARBAGE
                continue
            # Counters read a moment apart can add up to a hair over the whole.
            values[name] = min(value, 1.0) if name.endswith("_ratio") else value
            self.reasons.pop(name, None)

    def _refusal(self, failure: CallFailed) -> str:
        """The failure in words. Re-raises a loss."""
        if failure.is_loss:
            raise failure
        return _MIG if self._mig and failure.code == NOT_SUPPORTED else str(failure)

    def _lose(self, failure: CallFailed) -> None:
        self.loss = str(failure)
        self.reasons = dict.fromkeys(GPU_METRICS, self.loss)
