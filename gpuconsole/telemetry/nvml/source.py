"""All NVIDIA GPUs of this machine as one source."""

from __future__ import annotations

import threading
import time
from functools import partial

from gpuconsole.model.machine import Device, Link
from gpuconsole.telemetry.nvml.calls import SlowCalls
from gpuconsole.telemetry.nvml.gpu import links_between
from gpuconsole.telemetry.nvml.library import CallFailed, NoNvml, call, cuda_version, meter, start
from gpuconsole.telemetry.nvml.processes import ProcessDetails
from gpuconsole.telemetry.nvml.turns import take_turns
from gpuconsole.telemetry.nvml.watched import CHECK_S, MAX_TURN_S, WatchedGpu
from gpuconsole.telemetry.nvml.xid import XidWatch
from gpuconsole.telemetry.source import DriverGone, Readings, Reasons
from gpuconsole.wire.events import DeviceLost, Processes, SourceState, Topology

PROCESSES_S = 2.0


class NvmlSource:
    """GPUs in NVML's order, each followed by its MIG slices. A GPU that cannot be opened is listed
    with the reason.

    The GPUs take turns in one thread. A GPU whose turn is too long goes on by itself: a round ends
    without it, and a later round has its readings.
    """

    name = "nvml"

    def __init__(self, interval_s: float = 1.0, brief: bool = False) -> None:
        """`brief`: ask each GPU only for what one line of it needs, and for no errors and links.
        Raises NoNvml with a one-line reason when there is no GPU."""
        self.count, self.driver = start()
        self.cuda = cuda_version()
        if self.count == 0:
            raise NoNvml("the NVIDIA driver reports no GPU")
        meter.suspects_driver = False
        self._slow_calls = SlowCalls(meter, interval_s)
        self._brief = brief
        self._xids = None if brief else XidWatch()
        self._gpus = [
            WatchedGpu(index, self._slow_calls, self._xids, interval_s, brief)
            for index in range(self.count)
        ]
        take_turns([gpu.open for gpu in self._gpus], MAX_TURN_S)
        self._told_lost: set[str] = set()
        self._details = ProcessDetails()
        self._nvlinks_sent: list[int | None] | None = None
        self._links: list[Link] | None = None
        """Links that a thread has found and no round has sent yet."""
        self._processes_t = float("-inf")
        self._checked_t = time.monotonic()

    def devices(self) -> list[Device]:
        """The devices that are known now. What a GPU is that answers later comes in an event
        DeviceKnown."""
        for gpu in self._gpus:
            gpu.is_told = not gpu.is_reading
        return [device for gpu in self._gpus for device in gpu.devices]

    def prime(self) -> None:
        take_turns([gpu.prime for gpu in self._gpus if not gpu.is_reading], MAX_TURN_S)

    def read(self, t: float) -> Readings:
        """One sample for each GPU that answers, one DeviceLost for each lost GPU, and sometimes
        topology, processes and XID errors.

        Raises DriverGone when the driver has been unloaded or replaced, or the number of GPUs has
        changed.
        """
        self._slow_calls.begin_round()
        xids = self._xids.read(t) if self._xids is not None else []
        lists_processes = t - self._processes_t >= PROCESSES_S
        readings = self._collect()  # of turns that ended after their round
        self._take_turns(t, lists_processes)
        readings += self._collect()
        readings += xids
        if lists_processes:
            self._processes_t = t
            readings.append(self._processes(t))
        if not self._brief:
            self._find_links()
        if self._links is not None:
            readings.append(Topology(t, self._links))
            self._links = None
        losses = [loss for gpu in self._gpus for loss in gpu.losses]
        readings += [
            DeviceLost(t=t, device=device, reason=reason)
            for device, reason in losses
            if device not in self._told_lost
        ]
        self._told_lost.update(device for device, _ in losses)
        self._check_driver()
        return readings

    def _collect(self) -> Readings:
        return [reading for gpu in self._gpus for reading in gpu.collect()]

    def _take_turns(self, t: float, lists_processes: bool) -> None:
        """Begin the turns of all GPUs that have ended their last one. The slow GPUs begin first,
        each in a thread of its own that nothing waits for."""
        together = []
        for gpu in self._gpus:
            if gpu.is_reading:
                continue
            gpu.lists_processes |= lists_processes
            if gpu.is_slow:
                threading.Thread(target=gpu.turn, args=(t,), name=gpu.id, daemon=True).start()
            else:
                together.append(partial(gpu.turn, t))
        take_turns(together, MAX_TURN_S)

    def unavailable(self) -> Reasons:
        return {device: why for gpu in self._gpus for device, why in gpu.reasons.items()}

    def slow(self) -> str:
        """A description of calls that are too slow for every round; empty when there are none."""
        return self._slow_calls.words()

    def under_way(self) -> str:
        """A description of the driver call that has not returned yet."""
        for device in ("", *(gpu.id for gpu in self._gpus)):
            name, _ = meter.under_way(device)
            if name:
                return f"{name} of {device}" if device else name
        return ""

    def slow_devices(self) -> list[SourceState]:
        """Return the state of each GPU that is not read as the others are."""
        now = time.monotonic()
        return [state for gpu in self._gpus if (state := gpu.state(now)) is not None]

    def _processes(self, t: float) -> Processes:
        """The processes of all GPUs. Those of a slow GPU are those of its last list."""
        processes, reasons = [], {}
        for gpu in self._gpus:
            if (why := gpu.loss or gpu.processes_missing) is not None:
                reasons[gpu.id] = str(why)
            if gpu.loss is None:
                processes += gpu.processes
        return Processes(t, self._details.complete(processes), reasons)

    def _find_links(self) -> None:
        """Look for the links between the GPUs again when another number of NVLinks is active: links
        become active after the driver."""
        gpus = [
            gpu.gpu
            for gpu in self._gpus
            if gpu.gpu is not None and not gpu.is_slow and not gpu.is_reading
        ]
        nvlinks = [gpu.nvlinks for gpu in gpus]
        if nvlinks == self._nvlinks_sent:
            return
        self._nvlinks_sent = nvlinks

        def find() -> None:
            self._links = links_between(gpus)

        take_turns([find], MAX_TURN_S)

    def _check_driver(self) -> None:
        """Check the driver; raises DriverGone. The check runs at once after a suspicious failure,
        otherwise at intervals."""
        gone = next((gpu.gone for gpu in self._gpus if gpu.gone), "")
        if gone:
            raise DriverGone(gone)
        now = time.monotonic()
        if not meter.suspects_driver and now - self._checked_t < CHECK_S:
            return
        self._checked_t = now
        try:
            count = int(call("nvmlDeviceGetCount"))
        except CallFailed as failure:
            raise DriverGone(str(failure)) from None
        finally:
            meter.suspects_driver = False
        if count != self.count:
            raise DriverGone(f"the number of GPUs went from {self.count} to {count}")
