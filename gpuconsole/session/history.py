"""What recorded events say of a model server and its GPUs over hours, in windows of ten seconds:
memory grows with the time, not with the events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from gpuconsole.model.machine import Process
from gpuconsole.session.server_signals import MOVES, STILL_SGLANG_S
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
SILENT_S = 30.0
"""A longer time without a reading of the server is named."""
PAUSE_S = 1.5
MIN_STILL_S = 5.0
"""Times in which requests run and no total of MOVES grows: the shortest that is kept, and the
shortest that is a standstill."""
USUAL_S = 1800.0
MIN_MOVES = 12
STILL_ALONE_S = 30.0
RARE_PAUSE = 0.02
STILL_RISE = 3.0
"""An engine that counts its tokens at the end of a request has pauses all the time. A standstill is
three times as long as all but 2 % of the pauses in the 30 minutes before; where a recording has
just begun, it is longer than half a minute."""
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
        self._offset = 0.0
        self._known_until = 0.0
        """The end of the files before this one. Two watchers of one server overlap."""
        self._read: float | None = None
        self._outage: MachineEvent | None = None
        self._still: list[float] = []
        """The begin and the end of the present pause; empty while the engine works."""
        self._pauses: list[tuple[float, float]] = []
        self._moves: defaultdict[int, int] = defaultdict(int)
        """How often a reading showed that the engine works, by window."""
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
            case Devices():
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
        found = []
        sglang = (self._facts or {}).get("engine") == "sglang"
        shortest = STILL_SGLANG_S if sglang else MIN_STILL_S
        pauses = [*self._pauses, *([(self._still[0], self._still[1])] if self._still else [])]
        for begun, ended in pauses:
            if ended - begun >= max(shortest, self._usual_pause_s(begun)):
                words = "requests ran, and no token and no end of a request came"
                found.append(MachineEvent(begun, "standstill", words, ended))
        return found

    def _usual_pause_s(self, t: float) -> float:
        """A pause that begins at `t` is a standstill if it is longer."""
        long = sorted(
            ended - begun for begun, ended in self._pauses if t - USUAL_S <= begun and ended < t
        )
        last = int(t // WINDOW_S)
        first = last - int(USUAL_S // WINDOW_S)
        moves = sum(self._moves.get(window, 0) for window in range(first, last))
        if moves + len(long) < MIN_MOVES:
            return STILL_ALONE_S
        rare = int(RARE_PAUSE * (moves + len(long)))
        return STILL_RISE * long[-rare - 1] if len(long) > rare else 0.0

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
        if self._read is not None and t - self._read > SILENT_S:
            self.silences.append((self._read, t))
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
        self._watch_progress(before, (t, event), gained)
        first, last = int(before[0] // WINDOW_S), int(t // WINDOW_S)
        # readings that are far apart: nobody knows when it came
        windows = range(first + 1, last + 1) or range(last, last + 1)
        for name, amount in gained.items():
            for window in windows:
                self._gained[name][window] += amount / len(windows)

    def _watch_progress(
        self,
        before: tuple[float, ServerState],
        after: tuple[float, ServerState],
        gained: Mapping[str, float],
    ) -> None:
        """Note whether the engine worked between two readings, where it had requests to work on."""
        runs = all(state.gauges.get("requests_running", 0.0) >= 1 for _, state in (before, after))
        counted = [name for name in MOVES if name in gained]
        if not runs or not counted:
            self._end_pause()
        elif any(gained[name] > 0 for name in counted):
            self._end_pause()
            self._moves[int(after[0] // WINDOW_S)] += 1
        elif self._still:
            self._still[1] = after[0]
        else:
            self._still = [before[0], after[0]]

    def _end_pause(self) -> None:
        if self._still and self._still[1] - self._still[0] > PAUSE_S:
            self._pauses.append((self._still[0], self._still[1]))
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
