"""All NVIDIA GPUs of this machine as one source."""

from __future__ import annotations

import threading
import time
from functools import partial

from gpuconsole.model.machine import NO_GPU, Device, Link
from gpuconsole.telemetry.nvml.calls import SlowCalls
from gpuconsole.telemetry.nvml.gpu import Gpu, LinkEnds, link_ends, links_between
from gpuconsole.telemetry.nvml.library import CallFailed, NoNvml, call, cuda_version, meter, start
from gpuconsole.telemetry.nvml.processes import ProcessDetails
from gpuconsole.telemetry.nvml.turns import take_turns
from gpuconsole.telemetry.nvml.watched import CHECK_S, MAX_WAIT_S, WatchedGpu
from gpuconsole.telemetry.nvml.xid import XidWatch
from gpuconsole.telemetry.source import DriverGone, Readings, Reasons
from gpuconsole.wire.readings import DeviceLost, Processes, SourceState, Topology

PROCESSES_S = 2.0
NOT_LISTED = "the processes have not been listed yet"


class NvmlSource:
    """GPUs in NVML's order, each followed by its MIG slices. A GPU that cannot be opened is listed
    with the reason.

    The GPUs take turns in one thread. A GPU whose turn is too long goes on by itself: a round ends
    without it, and a later round has its readings.
    """

    name = "nvml"

    def __init__(
        self, interval_s: float = 1.0, brief: bool = False, vital_first: bool = False
    ) -> None:
        """`brief`: ask each GPU only for what one line of it needs, and for no errors and links.
        `vital_first`: send what one looks for before the first round. Raises NoNvml with a one-line
        reason when there is no GPU."""
        self.count, self.driver = start()
        self.cuda = cuda_version()
        if self.count == 0:
            raise NoNvml(NO_GPU)
        meter.suspects_driver = False
        self._slow_calls = SlowCalls(meter, interval_s)
        self._brief, self._vital_first = brief, vital_first
        self._xids = None if brief else XidWatch()
        self._gpus = [
            WatchedGpu(index, self._slow_calls, self._xids, interval_s, brief)
            for index in range(self.count)
        ]
        take_turns([gpu.open for gpu in self._gpus], MAX_WAIT_S)
        for gpu in self._gpus:
            gpu.is_told = not gpu.is_reading
        self._told_lost: set[str] = set()
        self._details = ProcessDetails()
        self._nvlinks: dict[str, int | None] = {}
        """The active NVLinks of each GPU when the links were looked for."""
        self._ends: dict[str, LinkEnds] = {}
        self._ends_found = False
        """Whether `_ends` is new."""
        self._links: list[Link] = []
        self._links_found = False
        """Whether `_links` is new."""
        self._finder: threading.Thread | None = None
        self._collecting = threading.Lock()
        self._processes_t = float("-inf")
        self._checked_t = time.monotonic()

    def devices(self) -> list[Device]:
        """The devices that are known now. What a GPU is that answers later comes in an event
        DeviceKnown."""
        return [device for gpu in self._gpus for device in gpu.devices]

    def prime(self) -> Readings:
        t = time.monotonic()
        first_t = t if self._vital_first else None
        waiting = [gpu for gpu in self._gpus if not gpu.is_reading]
        take_turns([partial(gpu.prime, first_t) for gpu in waiting], MAX_WAIT_S)
        readings = self.collect()
        if self._vital_first:  # the list itself comes with the first round
            readings.append(Processes(t, [], {gpu.id: NOT_LISTED for gpu in self._gpus}))
        return readings

    def read(self, t: float) -> Readings:
        """One sample for each GPU that answers, one DeviceLost for each lost GPU, and sometimes
        topology, processes and XID errors.

        Raises DriverGone when the driver has been unloaded or replaced, or the number of GPUs has
        changed.
        """
        self._slow_calls.begin_round()
        xids = self._xids.read(t) if self._xids is not None else []
        lists_processes = t - self._processes_t >= PROCESSES_S
        readings = self.collect()  # of turns that ended after their round
        self._take_turns(t, lists_processes)
        readings += self.collect()
        readings += xids
        if lists_processes:
            self._processes_t = t
            readings.append(self._processes(t))
        if not self._brief:
            self._find_links()
        if self._links_found:
            self._links_found = False
            readings.append(Topology(t, self._links))
        losses = [loss for gpu in self._gpus for loss in gpu.losses]
        readings += [
            DeviceLost(t=t, device=device, reason=reason)
            for device, reason in losses
            if device not in self._told_lost
        ]
        self._told_lost.update(device for device, _ in losses)
        self._check_driver()
        return readings

    def collect(self) -> Readings:
        """Return the readings of the turns that have ended since. Two threads may ask: that of the
        rounds, and one that sends the readings of late GPUs."""
        with self._collecting:
            return [reading for gpu in self._gpus for reading in gpu.collect()]

    def _take_turns(self, t: float, lists_processes: bool) -> None:
        """Begin the turns of all GPUs that have ended their last one. The GPUs that were late begin
        first, each in a thread of its own that nothing waits for."""
        together = []
        for gpu in self._gpus:
            if gpu.is_reading:
                continue
            gpu.lists_processes |= lists_processes
            if gpu.is_slow or gpu.is_late:
                threading.Thread(target=gpu.turn, args=(t,), name=gpu.id, daemon=True).start()
            else:
                together.append(partial(gpu.turn, t))
        take_turns(together, MAX_WAIT_S)

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

    @property
    def alive(self) -> int:
        """The number of GPUs that are not lost."""
        return sum(gpu.loss is None for gpu in self._gpus)

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
        """Ask a GPU where its NVLinks lead when the number of active ones has changed: links become
        active after the driver. The links of a GPU that does not answer come when it has answered.
        Those of a GPU that is not read now stay as they are."""
        gpus = {
            gpu.id: gpu.gpu
            for gpu in self._gpus
            if gpu.gpu is not None and not gpu.is_slow and not gpu.is_reading
        }
        changed = [gpu for name, gpu in gpus.items() if self._nvlinks.get(name, -1) != gpu.nvlinks]
        is_same = not changed and not self._ends_found
        if is_same or (self._finder is not None and self._finder.is_alive()):
            return
        self._nvlinks |= {gpu.device.id: gpu.nvlinks for gpu in changed}

        def ask(gpu: Gpu) -> None:
            meter.begin_turn("links")
            self._ends[gpu.device.id] = link_ends(gpu)
            self._ends_found = True

        def find() -> None:
            take_turns([partial(ask, gpu) for gpu in changed], MAX_WAIT_S)
            meter.begin_turn("links")
            self._ends_found = False
            known = {name: gpu for name, gpu in gpus.items() if name in self._ends}
            kept = [link for link in self._links if not {link.a, link.b} <= known.keys()]
            self._links = links_between(list(known.values()), self._ends) + kept
            self._links_found = True

        self._finder = threading.Thread(target=find, name="links", daemon=True)
        self._finder.start()
        self._finder.join(MAX_WAIT_S)

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
