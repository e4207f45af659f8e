"""Reads one GPU and its MIG slices. The GPU is opened when it answers. A slow GPU is asked for
little. Another process opens a lost GPU again when the GPU works again.

All calls about a GPU are made in its turns (`turns.py`), so that a call that hangs holds up this
GPU alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection
from typing import Any

from gpuconsole.model.machine import Device, Process
from gpuconsole.model.metrics import LINK_METRICS
from gpuconsole.model.peaks import peaks_of
from gpuconsole.telemetry.nvml.calls import VITAL_CALLS, CallReader, SlowCalls, is_plausible
from gpuconsole.telemetry.nvml.facts import UNKNOWN_NAME, fact, is_mig_on
from gpuconsole.telemetry.nvml.gpu import (
    GPU_METRICS,
    Gpu,
    MigSlice,
    mig_layout,
    mig_slices,
)
from gpuconsole.telemetry.nvml.library import CallFailed, call, meter
from gpuconsole.telemetry.nvml.processes import processes_of
from gpuconsole.telemetry.nvml.xid import XidWatch
from gpuconsole.telemetry.source import DriverGone, Readings, Reasons
from gpuconsole.wire.readings import DeviceKnown, Sample, SourceState

MAX_WAIT_S = 0.25
"""The others do not wait longer for the turn of a GPU. A turn of a healthy GPU takes 1 to 60 ms (20
ms for each call that observes the PCIe bus)."""
MAX_TURN_S = 2.0
"""A GPU whose turn takes longer is slow: it is asked for its vital metrics only. A turn has 20 to
80 calls, so each of them may take 25 ms, as on a machine that is busy."""
MAX_VITAL_CALL_S = 0.02
"""A slow GPU is asked for everything again when none of its vital calls takes longer."""
LATE_S = 1.0
"""Seconds after which a call that has not returned is reported."""
CHECK_S = 5.0
MIN_AGAIN_S, MAX_AGAIN_S, MAX_LOOK_S = 10.0, 20.0, 600.0
"""Seconds until the next attempt to ask a slow GPU for everything, or to find a lost GPU. The first
attempt comes at once, the second after MIN_AGAIN_S. The time doubles with each attempt that fails,
up to MAX_AGAIN_S for a slow GPU and MAX_LOOK_S for a lost one."""
MAX_LIST_AGE_S = 10.0
"""The list of the processes of a slow GPU has its age from here on."""
_VITAL = {metric for call in VITAL_CALLS for metric in call.metrics}
_OPENING = "the driver has not opened this GPU yet"


class WatchedGpu:
    """Reads one GPU. Each turn may run in another thread. `NvmlSource` calls all other methods."""

    def __init__(
        self,
        index: int,
        slow_calls: SlowCalls,
        xids: XidWatch | None,
        interval_s: float,
        brief: bool = False,
    ) -> None:
        """`xids`: None where nobody asks for errors. `brief`: see `Gpu`."""
        self.id = f"gpu:{index}"
        self.devices: list[Device] = [Device(id=self.id, name=UNKNOWN_NAME)]
        self.gpu: Gpu | None = None
        self.slices: list[MigSlice] = []
        self.processes: list[Process] = []
        self.processes_missing: CallFailed | str | None = _OPENING
        self.is_told = False
        """Whether the console knows `devices`."""
        self.gone = ""
        """Why the driver's library must be loaded again."""
        self.is_slow, self.is_late = False, False
        """Whether the GPU is asked for its vital metrics only; whether its last turn took so long
        that the others did not wait for it."""
        self.lists_processes = True
        """Whether the next turn lists the processes."""
        self._index, self._xids, self._slow_calls = index, xids, slow_calls
        self._interval_s, self._brief = interval_s, brief
        self._handle: Any = None
        self._vital: CallReader | None = None
        self._refused: CallFailed | None = None
        self._why_slow = ""
        self._reasons: Reasons = {}
        self._began = 0.0
        self._took_s = 0.0
        self._readings: Readings = []
        self._again_t, self._again_s = 0.0, 0.0
        self._worked, self._is_named = False, False
        self._checked_t = time.monotonic()
        self._mig: dict[str, tuple[object, ...]] = {}
        self._listed, self._listed_t = False, 0.0

    # --- what the other threads may ask ---------------------------------------------------------

    @property
    def is_reading(self) -> bool:
        return self._began > 0.0

    @property
    def loss(self) -> str | None:
        """Why the GPU is lost; None while it is not."""
        if self._refused is not None:
            return str(self._refused) if self._refused.is_loss else None
        return self.gpu.loss if self.gpu is not None else None

    @property
    def losses(self) -> list[tuple[str, str]]:
        """The lost devices: the GPU and its slices."""
        why = self.loss
        return [] if why is None else [(device.id, why) for device in self.devices]

    @property
    def reasons(self) -> Reasons:
        """The missing metrics of each device after the last turn."""
        return self._reasons

    def state(self, now: float) -> SourceState | None:
        """Return why the GPU is not read as the others are; None while it is."""
        began = self._began
        name, since = meter.under_way(self.id)
        call_s = now - since if name else 0.0
        is_stuck = began > 0 and (call_s >= LATE_S or now - began >= 2 * MAX_TURN_S)
        if not is_stuck and not self._why_slow:
            return None
        under_way = f"{name} has not returned for {call_s:.0f} s" if call_s >= LATE_S else ""
        return SourceState(
            now,
            self.id,
            max(self._interval_s, self._took_s),
            now - began if is_stuck else 0.0,
            under_way or self._why_slow or name,
        )

    def collect(self) -> Readings:
        """Return the readings of the turns that have ended since."""
        if self.is_reading:
            return []
        readings, self._readings = self._readings, []
        if not self.is_told:
            self.is_told = True
            readings.insert(0, DeviceKnown(time.monotonic(), self.devices))
        return readings

    # --- turns ------------------------------------------------------------------------------------

    def open(self) -> None:
        """Take the first turn: get the handle, the name and the facts. A slow GPU is opened in its
        later turns."""
        self._begin(math.inf)
        try:
            self._connect()
            # without persistence mode, the first call of a GPU takes seconds, and only this one
            self._begin(MAX_TURN_S)
            self._open()
        finally:
            self._end()

    def prime(self, first_t: float | None = None) -> None:
        """Take the first of the two readings that rates need. `first_t`: the time of a sample
        that has the vital readings; None if there is no such sample."""
        self._begin(MAX_TURN_S)
        try:
            if self.gpu is not None and not self.is_slow:
                if first_t is not None and (values := self.gpu.read_first()):
                    self._readings.append(Sample(first_t, self.id, values, self.gpu.substitutes))
                self.gpu.prime()
                for mig_slice in self.slices:
                    mig_slice.read()
                self._note_reasons()  # the GPU may be lost
        finally:
            self._end()

    def turn(self, t: float) -> None:
        """Read the GPU. Time `t` is that of the sample."""
        self._begin(math.inf if self.is_slow else MAX_TURN_S)
        try:
            self._work(t)
        except DriverGone as gone:
            self.gone = str(gone)
        finally:
            self._end()

    def _begin(self, limit_s: float) -> None:
        self._began = time.monotonic()
        meter.begin_turn(self.id, limit_s)

    def _end(self) -> None:
        """Judge how long the turn took. Then another turn may begin."""
        now = time.monotonic()
        self._took_s = now - self._began
        self.is_late = self._took_s > MAX_WAIT_S
        longest_s, name = meter.longest(self.id)
        if self._took_s > MAX_TURN_S:
            if not self.is_slow:
                self._slow_calls.forget(self.id)
                self._again_t = now + self._again_s
                self._wait_longer(MAX_AGAIN_S)
            newly, self.is_slow = not self.is_slow, True
            self._why_slow = f"{name} takes {_duration(longest_s)}"
            if newly and self.loss is None:
                self._keep_vital()
        elif not self.is_slow:
            self._why_slow = ""
            if self.gpu is not None and now >= self._again_t + MIN_AGAIN_S:
                self._again_s = 0.0
        elif longest_s > MAX_VITAL_CALL_S:
            self._why_slow = f"{name} takes {_duration(longest_s)}"
        elif now >= self._again_t:
            self.is_slow = False
        self._began = 0.0

    def _wait_longer(self, most_s: float) -> None:
        self._again_s = min(max(MIN_AGAIN_S, 2 * self._again_s), most_s)

    def _work(self, t: float) -> None:
        if self.loss is not None or self._handle is None:
            self._look_for_returned()
        elif self.is_slow:
            if not self._is_named:
                self._ask_name()
            self._read_vital(t)
        else:
            if self.gpu is None:
                self._open()
            if self.gpu is not None:
                self._check_slices()
                self._read(t)

    def _connect(self) -> None:
        try:
            self._handle = call("nvmlDeviceGetHandleByIndex", self._index)
        except CallFailed as failure:
            self._refused = failure
            self.processes_missing = None
            self._reasons = {self.id: dict.fromkeys(GPU_METRICS, str(failure))}
            return
        self._vital = CallReader(self._handle, VITAL_CALLS)
        self._ask_name()

    def _ask_name(self) -> None:
        """Ask for name and UUID, until a turn has had the time for both."""
        name = str(fact("nvmlDeviceGetName", self._handle) or UNKNOWN_NAME)
        uuid = str(fact("nvmlDeviceGetUUID", self._handle) or "")
        self._is_named = not meter.is_over()
        self._set_devices([Device(id=self.id, name=name, uuid=uuid, peaks=peaks_of(name))])

    def _set_devices(self, devices: list[Device]) -> None:
        """Set what the GPU and its slices are; `collect` tells it."""
        self.devices, self.is_told = devices, False

    def _open(self) -> None:
        """Read the facts, which takes some 30 calls. They are read again if the turn is over its
        limit before all of them are known."""
        if self._handle is None:
            return
        brief = self._brief and not is_mig_on(self._handle)
        gpu = Gpu(
            self.id, self._handle, self._slow_calls.may_ask, self.devices[0] if brief else None
        )
        slices, mig = ([], {}) if brief else (mig_slices(gpu), mig_layout([gpu]))
        if meter.is_over():
            return
        self.gpu, self.slices, self._mig = gpu, slices, mig
        self._set_devices([gpu.device, *(mig_slice.device for mig_slice in slices)])
        self._note_reasons()

    def _read(self, t: float) -> None:
        gpu = self.gpu
        assert gpu is not None
        if self._xids is not None:
            self._xids.register(self.id, gpu.handle)
        values = gpu.read()
        if gpu.loss is None and self.lists_processes:
            self._list_processes(gpu)
        if gpu.loss is None:
            self._add_counts(gpu, values)
            self._readings.append(Sample(t, self.id, values, gpu.substitutes))
            links, gpu.links = gpu.links, []
            for number, (of_link, reasons) in enumerate(links):
                device = f"{self.id}/link:{number}"
                self._reasons = {**self._reasons, device: reasons}  # another thread may read it
                self._readings.append(Sample(t, device, of_link))
        for mig_slice in self.slices:
            if of_slice := mig_slice.read():
                self._readings.append(Sample(t, mig_slice.device.id, of_slice))
        self._note_reasons()

    def _note_reasons(self) -> None:
        assert self.gpu is not None
        of_links = {
            device: reasons for device, reasons in self._reasons.items() if "/link:" in device
        }
        self._reasons = (
            of_links
            | {self.id: dict(self.gpu.reasons)}
            | {mig_slice.device.id: dict(mig_slice.reasons) for mig_slice in self.slices}
        )

    def _read_vital(self, t: float) -> None:
        """Read what one looks for on a slow GPU. The other values become n/a: they are not asked
        for."""
        assert self._vital is not None
        try:
            values, failures = self._vital.read(())
        except CallFailed as failure:
            if self.gpu is not None:
                self.gpu.note(failure)
                self._note_reasons()
            else:
                self._refused = failure
            return
        values = {name: value for name, value in values.items() if is_plausible(name, value)}
        self._miss_all_but(values, {name: str(failure) for name, failure in failures.items()})
        if not self._listed:
            self.processes_missing = self._why_not_asked
        elif (age_s := time.monotonic() - self._listed_t) > MAX_LIST_AGE_S:
            self.processes_missing = f"listed {age_s:.0f} s ago, because the driver is slow"
        self._readings.append(Sample(t, self.id, values))

    @property
    def _why_not_asked(self) -> str:
        return f"not asked for, because the driver is slow: {self._why_slow}"

    def _miss_all_but(self, known: Collection[str], failures: dict[str, str]) -> None:
        """Set the reasons of a slow GPU, its slices and its links, but for the `known` metrics."""
        why = self._why_not_asked
        missing = dict.fromkeys(GPU_METRICS, why) | failures
        self._reasons = {
            device: dict.fromkeys(
                (metric.name for metric in LINK_METRICS) if "/link:" in device else GPU_METRICS, why
            )
            for device in self._reasons
        } | {self.id: {name: why for name, why in missing.items() if name not in known}}

    def _keep_vital(self) -> None:
        """Withdraw the other values of a GPU at the end of the turn in which it has become slow.
        Its next turn may take long, and nothing would say that they are old."""
        self._readings = [
            Sample(
                reading.t,
                self.id,
                {name: reading.values[name] for name in reading.values.keys() & _VITAL},
            )
            for reading in self._readings
            if isinstance(reading, Sample) and reading.device == self.id
        ]
        self._miss_all_but(_VITAL, {})

    def _list_processes(self, gpu: Gpu) -> None:
        slices = {
            mig_slice.instance: mig_slice.device.id
            for mig_slice in self.slices
            if mig_slice.instance is not None
        }
        total = 0 if gpu.device.is_unified else gpu.device.memory_bytes
        missing: CallFailed | None
        try:
            processes, missing = processes_of(self.id, gpu.handle, slices, total)
        except CallFailed as loss:
            processes, missing = [], loss
        if meter.is_over():
            return  # the last list is better than a part of a list
        self.processes, self.processes_missing = processes, missing
        self._listed_t = time.monotonic()
        if isinstance(self.processes_missing, CallFailed):
            gpu.note(self.processes_missing, "gpu.processes")
        self._listed, self.lists_processes = True, False

    def _add_counts(self, gpu: Gpu, values: dict[str, float]) -> None:
        """Add the metrics that count the driver's reports: errors and processes."""
        if self._xids is not None:
            refusal = self._xids.refusals.get(self.id)
            if refusal is None:
                values["gpu.xid_errors"] = float(self._xids.counts[self.id])
                gpu.reasons.pop("gpu.xid_errors", None)
            else:
                gpu.refuse("gpu.xid_errors", refusal)
        if self._listed and self.processes_missing is None:
            values["gpu.processes"] = float(len(self.processes))
            gpu.reasons.pop("gpu.processes", None)
            gpu.add_processes(self.processes, values)

    # --- changes ----------------------------------------------------------------------------------

    def _check_slices(self) -> None:
        """Raise DriverGone where the MIG slices have changed."""
        now = time.monotonic()
        if self.gpu is None or now - self._checked_t < CHECK_S:
            return
        self._checked_t = now
        layout = self._mig if self._brief else mig_layout([self.gpu])
        if layout != self._mig and not meter.is_over() and self.gpu.loss is None:
            raise DriverGone("the MIG slices have changed")

    def _look_for_returned(self) -> None:
        """Raise DriverGone when a GPU that was lost, or had no handle, works again twice in a row:
        its old handle stays invalid after a reset."""
        now = time.monotonic()
        if now - self._checked_t < CHECK_S or now < self._again_t:
            return
        self._checked_t = now
        works = self._works()
        if works and self._worked:
            raise DriverGone(f"{self.id} answers again")
        self._worked = works

    def _works(self) -> bool:
        """Return whether the GPU gives a new handle, and no call through it says that the GPU is
        lost. Where one does, the next look is twice as late."""
        handle = fact("nvmlDeviceGetHandleByIndex", self._index)
        if handle is None:
            return False
        gpu = Gpu(self.id, handle, self._slow_calls.may_ask)
        gpu.prime()
        values = gpu.read()
        try:
            processes_of(self.id, handle, {})
        except CallFailed:
            values = {}
        if not values:
            self._wait_longer(MAX_LOOK_S)
            self._again_t = time.monotonic() + self._again_s
        return bool(values)


def _duration(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
