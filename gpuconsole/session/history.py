"""What recorded events say of a model server and its GPUs over hours, in windows of ten seconds:
memory grows with the time, not with the events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from gpuconsole.model.machine import Process
from gpuconsole.wire.events import (
    AnyEvent,
    DeviceLost,
    Devices,
    Hello,
    Processes,
    Requests,
    Sample,
    ServerKnown,
    ServerState,
    Xid,
)

WINDOW_S = 10.0
GAP_S = 60.0
"""Readings that are further apart: what came between is not known, and belongs to no window."""
KEPT_METRICS = {
    "gpu.sm_clock_hz", "gpu.thermal_time_ratio", "gpu.power_cap_time_ratio",
    "host.run_queue_delay_ratio", "host.memory_pressure_ratio", "host.io_pressure_ratio",
}  # fmt: skip
"""The metrics of the machine that are kept: memory grows with their number."""

Series = dict[int, float]
"""Values by window."""


class MachineEvent:
    """Something that happened at a time: a restart of the server, an error of a device, a new
    process."""

    def __init__(self, t: float, name: str, words: str) -> None:
        self.t, self.name, self.words = t, name, words


class History:
    """Built by `add`, in the order of the events. All times are Unix seconds."""

    def __init__(self) -> None:
        self.begun: float | None = None
        self.ended = 0.0
        self.events: list[MachineEvent] = []
        self.processes_known = False
        self._offset = 0.0
        self._sums: defaultdict[str, defaultdict[int, list[float]]] = defaultdict(
            lambda: defaultdict(lambda: [0.0, 0.0])
        )
        self._gained: defaultdict[str, defaultdict[int, float]] = defaultdict(
            lambda: defaultdict(float)
        )
        self._state: tuple[float, ServerState] | None = None
        self._processes: dict[tuple[int, str, float], Process] | None = None
        self._facts: dict[str, object] | None = None
        self._gpus: set[str] = set()

    def add(self, event: AnyEvent) -> None:
        if isinstance(event, Hello):
            if event.role == "recording":
                self._offset = event.wall_time - event.t
                self._state = (
                    None
                    if self._state is None or event.wall_time - self._state[0] > GAP_S
                    else self._state
                )
            return
        t = event.t + self._offset
        match event:
            case Sample():
                self._sample(t, event)
            case ServerState():
                self._server(t, event)
            case Processes():
                self._own_processes(t, event)
            case ServerKnown():
                self._known(t, event)
            case Devices():
                self._gpus = {device.id for device in event.devices if device.is_gpu}
            case Requests() if event.down:
                self._happens(t, "down", f"the server did not answer: {event.down}")
            case Xid():
                meaning = f" ({event.meaning})" if event.meaning else ""
                self._happens(
                    t,
                    "xid",
                    f"the driver reported error Xid {event.code}{meaning} of {event.device}",
                )
            case DeviceLost():
                self._happens(t, "lost", f"{event.device} was lost: {event.reason}")
            case _:
                return
        self.begun = t if self.begun is None else self.begun
        self.ended = max(self.ended, t)

    # --- what it holds ----------------------------------------------------------------------------

    @property
    def names(self) -> set[str]:
        return {*self._sums, *self._gained}

    def mean(self, name: str) -> Series:
        """The mean of a gauge in each window."""
        return {
            window: total / count
            for window, (total, count) in self._sums.get(name, {}).items()
            if count
        }

    def rate(self, name: str) -> Series:
        """The increase per second of a total in each window."""
        return {window: amount / WINDOW_S for window, amount in self._gained.get(name, {}).items()}

    def per(self, total: str, count: str, least: float = 1.0) -> Series:
        """The increase of one total over that of another in each window in which the other
        increased by `least`."""
        counts: Mapping[int, float] = self._gained.get(count, {})
        return {
            window: amount / counts[window]
            for window, amount in self._gained.get(total, {}).items()
            if counts.get(window, 0) >= least
        }

    # --- how it is built --------------------------------------------------------------------------

    def _happens(self, t: float, name: str, words: str) -> None:
        self.events.append(MachineEvent(t, name, words))

    def _value(self, t: float, name: str, value: float) -> None:
        entry = self._sums[name][int(t // WINDOW_S)]
        entry[0] += value
        entry[1] += 1

    def _sample(self, t: float, event: Sample) -> None:
        for name, value in event.values.items():
            if name in KEPT_METRICS:
                self._value(t, f"{name} {event.device}" if name.startswith("gpu.") else name, value)

    def _server(self, t: float, event: ServerState) -> None:
        for name, value in event.gauges.items():
            self._value(t, name, value)
        before, self._state = self._state, (t, event)
        if before is None or t - before[0] > GAP_S:
            return
        totals, earlier = event.totals, before[1].totals
        if event.restarted_since(before[1]):
            self._happens(t, "restart", "the server restarted: its counters began again")
            return
        window, again = int(t // WINDOW_S), event.began_again(before[1])
        for name, value in totals.items():
            if name in earlier and name not in again:
                self._gained[name][window] += value - earlier[name]

    def _own_processes(self, t: float, event: Processes) -> None:
        now = {
            (process.pid, process.device, process.started): process
            for process in event.processes
            if process.device in self._gpus
        }
        self.processes_known = self.processes_known or bool(self._gpus)
        for key, process in now.items():
            if self._processes is not None and key not in self._processes:
                whose = f" of {process.user}" if process.user else ""
                self._happens(
                    t,
                    "process",
                    (
                        f"a process began on {process.device}: {process.name or 'pid'}"
                        f" {process.pid}{whose}"
                    ),
                )
        self._processes = now

    def _known(self, t: float, event: ServerKnown) -> None:
        now: dict[str, object] = {name: fact.value for name, fact in event.facts.known().items()}
        before, self._facts = self._facts, now
        for name, value in now.items() if before is not None else ():
            if before is not None and name in before and before[name] != value:
                self._happens(
                    t, "setting", f"the server reports another {name}: {before[name]} -> {value}"
                )
