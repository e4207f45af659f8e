"""The state of the machine, computed from the sampler's events."""

from __future__ import annotations

from collections import deque

from gpuconsole.model.machine.device import Device, Link
from gpuconsole.model.machine.process import Process
from gpuconsole.model.metrics.catalogue import series_key
from gpuconsole.session.readings import USUAL, Readings, parent, reader_of
from gpuconsole.wire.events import (
    DeviceLost,
    Devices,
    Event,
    Hello,
    Processes,
    Sample,
    SamplerEnded,
    SourceState,
    Topology,
    Unavailable,
    Xid,
)

XIDS = 100
CONSOLE = "console"
"""The device name in samples of the console's own process. All other samples come from the sampler."""
NO_SAMPLE = "no sample has come yet"
FromSampler = Sample | Unavailable | Devices | DeviceLost | Topology | Processes | Xid | SourceState


class MachineState:
    """Devices, their readings, and the reasons for missing readings.

    `t0` and the times of events are seconds on CLOCK_MONOTONIC; times without an event are session seconds, which begin at `t0`.
    """

    def __init__(self, interval_s: float, history: bool) -> None:
        self.interval_s = interval_s
        self.t0: float | None = None
        self.devices: list[Device] = []
        self.devices_t = 0.0
        self.driver: str | None = None
        self.no_gpu_reason = ""
        self.cuda = ""
        self.readings = Readings(history)
        self.unavailable: dict[str, dict[str, str]] = {}
        self.lost: dict[str, str] = {}
        self.reasons_version = 0
        """Incremented when `unavailable` or `lost` changes."""
        self.processes: list[Process] = []
        self.processes_missing: dict[str, str] = {}
        self.links: list[Link] = []
        self.xids: deque[Xid] = deque(maxlen=XIDS)
        self.last_xid: dict[str, int] = {}
        self.sources: dict[str, SourceState] = {}
        self.sampler_t: float | None = None
        """The time of the sampler's last event."""
        self.sampler_down = NO_SAMPLE
        """The reason why no sampler reports; empty while a sampler reports."""
        self.sampler_restarts = 0
        self.server_down = ""
        """The reason why the model server does not answer; empty while it answers."""
        self.server_period_s = 0.0
        """The usual time between two reports of the model server; 0 before there are two reports."""
        self._lost_t: dict[str, float] = {}

    def session_time(self, t: float) -> float:
        return t - (self.t0 if self.t0 is not None else t)

    def memory_used(self, device: str) -> tuple[float, float] | None:
        """Used and total bytes of memory on `device`; None if they are not measured."""
        names = ("host.memory_used_bytes", "host.memory_total_bytes") if device == "cpu" else ("gpu.hbm_used_bytes", "gpu.hbm_total_bytes")
        used, total = (self.readings.latest.get(series_key(name, device)) for name in names)
        return (used, total) if used and total else None

    def apply_to_machine(self, event: Event) -> str:
        """Apply an event of the sampler; returns a line for the user, or an empty text. Other events change nothing."""
        if isinstance(event, FromSampler) and not (isinstance(event, Sample) and event.device == CONSOLE):
            self.sampler_t = self.session_time(event.t)
        match event:
            case Hello(role="sampler"):
                self.sources = {}  # the sources of the previous sampler no longer exist
            case Devices():
                self._set_devices(event)
            case Sample():
                self._add_sample(event)
            case Unavailable():
                self.unavailable[event.device] = dict(event.reasons)
                self.reasons_version += 1
                for metric in event.reasons:
                    self.readings.forget(series_key(metric, event.device))
            case DeviceLost():
                self.lost[event.device], self._lost_t[event.device] = event.reason, event.t
                self.reasons_version += 1
                self.readings.forget_gpu(event.device)
                return f"{event.device} is lost: {event.reason}"
            case Topology():
                self.links = event.links
            case Processes():
                self.processes, self.processes_missing = event.processes, event.reasons
            case Xid():
                self.xids.append(event)
                self.last_xid[event.device] = event.code
                return f"{event.device}: XID {event.code}{f', {event.meaning}' if event.meaning else ''}"
            case SourceState():
                self.sources[event.source] = event
            case SamplerEnded():
                self.sampler_down = event.text
                self.sampler_restarts += 1
                return event.text
        return ""

    def _add_sample(self, event: Sample) -> None:
        if event.device != CONSOLE:
            self.sampler_down = ""
        lost_t = max(self._lost_t.get(event.device, float("-inf")), self._lost_t.get(parent(event.device), float("-inf")))
        is_lost = event.device in self.lost or parent(event.device) in self.lost
        if is_lost and (event.t <= lost_t or reader_of(event) != USUAL):
            return  # an old value: from the round in which the device was lost, or from the memory of another reader
        if event.values and self.lost.pop(event.device, None) is not None:
            self.reasons_version += 1
        self.readings.add_sample(event, self.session_time(event.t))
        # Each reader of a device has its own thread, so a value may arrive before the event that withdraws its reason.
        missing = self.unavailable.get(event.device)
        if missing and not missing.keys().isdisjoint(event.values):
            self.unavailable[event.device] = {metric: reason for metric, reason in missing.items() if metric not in event.values}
            self.reasons_version += 1

    def _set_devices(self, event: Devices) -> None:
        """Use a new list of devices. Earlier GPU readings belong to closed handles and are dropped. Another GPU starts a new history."""
        before = {device.id: device.uuid for device in self.devices}
        for device in event.devices:
            if before.get(device.id, device.uuid) != device.uuid:
                self.readings.drop_history(device.id)
        self.devices, self.driver, self.no_gpu_reason = event.devices, event.driver, event.reason
        self.devices_t = self.session_time(event.t)
        self.cuda = event.cuda
        self.lost.clear()
        self._lost_t.clear()
        self.last_xid.clear()
        self.links = []
        self.processes, self.processes_missing = [], {}
        known = {device.id for device in event.devices}
        self.unavailable = {
            device: reasons for device, reasons in self.unavailable.items() if not device.startswith("gpu") or device in known
        }
        self.reasons_version += 1
        self.readings.forget_all("gpu.")
