"""What recorded events say of a model server and its GPUs over hours, in windows of ten seconds:
memory grows with the time, not with the events."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping

from gpuconsole.model.machine import Process
from gpuconsole.session.server_signals import CACHE, MOVES, has_work, moved, standstill_limit_s
from gpuconsole.wire.events import (
    AnyEvent,
    DeviceKnown,
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
SILENT_S = 30.0
"""A longer time without a reading of the server is named."""
USUAL_S, STILL_RISE, STILL_ALONE_S = 1800.0, 3.0, 30.0
"""An engine that does not report its KV cache counts the tokens of a request only when the request
ends, so the count often pauses. For such an engine, a standstill lasts half a minute or more, and
three times as long as the pauses of the last 30 minutes."""
KEPT_METRICS = {
    "gpu.sm_clock_hz", "gpu.thermal_time_ratio", "gpu.power_cap_time_ratio",
    "host.run_queue_delay_ratio", "host.memory_pressure_ratio", "host.io_pressure_ratio",
}  # fmt: skip
"""The metrics of the machine that are kept: memory grows with their number."""

Series = dict[int, float]
"""Values by window."""


class MachineEvent:
    """Something that happened: a restart of the server, an outage, an error of a device, a new
    process. It began at `t` and ended at `ended`."""

    def __init__(self, t: float, name: str, words: str, ended: float | None = None) -> None:
        self.t, self.name, self.words = t, name, words
        self.ended = t if ended is None else ended


class History:
    """Built by `add`, in the order of the events. All times are Unix seconds."""

    def __init__(self) -> None:
        self.begun: float | None = None
        self.ended = 0.0
        self.events: list[MachineEvent] = []
        self.processes_known = False
        self.silences: list[tuple[float, float]] = []
        """The times without a reading of the server, longer than SILENT_S."""
        self.size = 0
        """How many values and happenings it holds: memory grows with this number."""
        self._offset = 0.0
        self._known_until = 0.0
        """The end of the files before this one. Two watchers of one server overlap."""
        self._read: float | None = None
        self._outage: MachineEvent | None = None
        self._still: list[float] = []
        """The begin and the end of the present pause; empty while the engine works."""
        self._pauses: list[tuple[float, float]] = []
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
                self._begin_file(event)
            return
        t = event.t + self._offset
        if isinstance(event, Devices):
            self._gpus = {device.id for device in event.devices if device.is_gpu}
        if isinstance(event, DeviceKnown):
            self._gpus |= {device.id for device in event.devices}
        if t < self._known_until:
            return
        if self._outage is not None:
            self._outage.ended = max(self._outage.ended, t)
        match event:
            case Sample():
                self._sample(t, event)
            case ServerState():
                self._server(t, event)
            case Processes():
                self._own_processes(t, event)
            case ServerKnown():
                self._known(t, event)
            case Devices() | DeviceKnown():
                pass
            case Requests() if event.down or self._outage is not None:
                self._answers(t, event)
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

    @property
    def counts_progress(self) -> bool:
        """Whether the recording can tell a standstill: the running requests, and a total that grows
        while the engine works."""
        return "requests_running" in self._sums and any(name in self._gained for name in MOVES)

    def standstills(self) -> list[MachineEvent]:
        """The times in which requests ran, and neither a token nor the end of a request came."""
        engine = str((self._facts or {}).get("engine", ""))
        found: list[MachineEvent] = []
        longest = deque[tuple[float, float]]()
        """The ends and lengths of the usual pauses lately, each longer than those after it."""
        pauses = [*self._pauses, *([(self._still[0], self._still[1])] if self._still else [])]
        for begun, ended in pauses:
            limit_s = standstill_limit_s(engine)
            if CACHE not in self._sums:
                while longest and longest[0][0] <= begun - USUAL_S:
                    longest.popleft()
                usual_s = longest[0][1] if longest else 0.0
                limit_s = max(limit_s, STILL_ALONE_S, STILL_RISE * usual_s)
            if ended - begun >= limit_s:
                words = "requests ran, and no token and no end of a request came"
                found.append(MachineEvent(begun, "standstill", words, ended))
                continue
            while longest and longest[-1][1] <= ended - begun:
                longest.pop()
            longest.append((ended, ended - begun))
        return found

    # --- how it is built --------------------------------------------------------------------------

    def _begin_file(self, hello: Hello) -> None:
        self._offset = hello.wall_time - hello.t
        self._known_until = self.ended
        if self._state is not None and hello.wall_time - self._state[0] > GAP_S:
            self._state = None
            self._end_pause()
        if hello.wall_time - self.ended > GAP_S:
            self._outage = None

    def _happens(self, t: float, name: str, words: str, ended: float | None = None) -> None:
        self.events.append(MachineEvent(t, name, words, ended))
        self.size += 1

    def _answers(self, t: float, event: Requests) -> None:
        """An outage begins, lasts or ends."""
        if not event.down:
            self._outage = None
        elif self._outage is None:
            begun = max(event.down_since + self._offset, self._known_until)
            self._happens(
                min(begun, t) if event.down_since else t,
                "down",
                f"the server did not answer: {event.down}",
                t,
            )
            self._outage = self.events[-1]

    def _value(self, t: float, name: str, value: float) -> None:
        series, window = self._sums[name], int(t // WINDOW_S)
        self.size += window not in series
        entry = series[window]
        entry[0] += value
        entry[1] += 1

    def _sample(self, t: float, event: Sample) -> None:
        for name, value in event.values.items():
            if name in KEPT_METRICS:
                self._value(t, f"{name} {event.device}" if name.startswith("gpu.") else name, value)

    def _server(self, t: float, event: ServerState) -> None:
        for name, value in event.gauges.items():
            self._value(t, name, value)
        if self._read is not None and t - self._read > SILENT_S:
            self.silences.append((self._read, t))
            self.size += 1
        self._read, self._outage = t, None
        before, self._state = self._state, (t, event)
        if before is None:
            return
        totals, earlier = event.totals, before[1].totals
        if event.restarted_since(before[1]):
            self._happens(before[0], "restart", "the server restarted: its counters began again", t)
            self._end_pause()
            return
        if t - before[0] > GAP_S:
            self._end_pause()
            return
        gained = {name: value - earlier[name] for name, value in totals.items() if name in earlier}
        again = event.began_again(before[1])
        gained = {name: amount for name, amount in gained.items() if name not in again}
        self._watch_progress(before, (t, event))
        first, last = int(before[0] // WINDOW_S), int(t // WINDOW_S)
        # readings that are far apart: nobody knows when it came
        windows = range(first + 1, last + 1) or range(last, last + 1)
        for name, amount in gained.items():
            self.size += sum(window not in self._gained[name] for window in windows)
            for window in windows:
                self._gained[name][window] += amount / len(windows)

    def _watch_progress(
        self, before: tuple[float, ServerState], after: tuple[float, ServerState]
    ) -> None:
        """Note whether the engine worked between two readings, where it had requests to work on."""
        (begun, then), (ended, now) = (
            (t, state.totals | state.gauges) for t, state in (before, after)
        )
        if not has_work(then) or not has_work(now) or moved(then, now):
            self._end_pause()
        else:
            self._still = [self._still[0] if self._still else begun, ended]

    def _end_pause(self) -> None:
        if self._still:
            self._pauses.append((self._still[0], self._still[1]))
            self.size += 1
        self._still = []

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
