"""Side work of a training: logging, checkpoints and evaluation, over all steady steps of a run.

A window of some seconds is too short for work that is rare and large: with a checkpoint of 10 s
every 40 s, the share in a window of 30 s changes between 0 and 33 %.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable

from gpuconsole.model.run import PHASES, Step

SIDE_WORK = ("logging", "checkpoint", "eval")
"""The phases of a step that are side work."""
DISTANCES = 50
"""Distances between two steps with the same side work that are kept: the usual distance may
change."""


class _Kind:
    """One kind of side work. Times are seconds of steady steps, from the first one on."""

    def __init__(self, place: int) -> None:
        self._place = place
        self._events = 0
        self._s = self._first_s = self._first_end_s = self._last_end_s = 0.0
        self._last_index = 0
        self._distances: deque[int] = deque(maxlen=DISTANCES)
        self.delay_s = 0.0
        """The run-queue delay in this work, on sampled steps."""

    def add(self, step: Step, end_s: float) -> None:
        """Add a step that ends at `end_s`."""
        seconds = step.phases[self._place]
        if seconds <= 0:
            return
        if not self._events:
            self._first_s, self._first_end_s = seconds, end_s
        elif step.index > self._last_index:
            # a process that has started again counts its steps from 0
            self._distances.append(step.index - self._last_index)
        self._events += 1
        self._s += seconds
        self._last_end_s, self._last_index = end_s, step.index
        if step.runq is not None:
            self.delay_s += step.runq[self._place]

    def ratio(self, now_s: float) -> float:
        """Return the share of the time up to `now_s`. From the second event on, the share is that
        of whole periods, from the end of the first event to the end of the last one, so that the
        share does not fall while the next event is not yet due. If the next event is late, the time
        since then counts too.

        Two events soon after each other, as an evaluation on two sets, are no period: the share is
        at most that of N + 1 events, where N have come. Events at equal distances never have more.
        """
        if self._events < 2:
            return self._s / now_s if now_s > 0 else 0.0
        periods_s = self._last_end_s - self._first_end_s
        late_s = now_s - self._last_end_s - periods_s / (self._events - 1)
        most = self._s / now_s * (self._events + 1) / self._events
        return min(most, (self._s - self._first_s) / (periods_s + max(0.0, late_s)))

    @property
    def every(self) -> int | None:
        """Return the usual number of steps from one event to the next; None before the second
        event."""
        return int(statistics.median(self._distances)) if self._distances else None


class SideWork:
    """The side work in the steady steps of the leading process."""

    def __init__(self) -> None:
        self.steps = 0
        self._s = self._sampled_s = self._delay_s = 0.0
        self._kinds = {name: _Kind(PHASES.index(name)) for name in SIDE_WORK}

    def add(self, steps: Iterable[Step]) -> None:
        for step in steps:
            self.steps += 1
            self._s += step.wall_s
            if step.runq is not None:
                self._sampled_s += step.wall_s
                self._delay_s += sum(step.runq)
            for kind in self._kinds.values():
                kind.add(step, self._s)

    def ratios(self, contention_free: bool) -> dict[str, float]:
        """Return the share of each kind in the time of the steps. `contention_free`: without
        run-queue delay, as in `account.contention_free_shares`."""
        shares = {name: kind.ratio(self._s) for name, kind in self._kinds.items()}
        if not contention_free or self._delay_s >= self._sampled_s:
            return shares
        left = 1 - self._delay_s / self._sampled_s
        delays = {name: kind.delay_s / self._sampled_s for name, kind in self._kinds.items()}
        return {
            name: min(1.0, max(0.0, share - delays[name]) / left) for name, share in shares.items()
        }

    def every(self) -> dict[str, int]:
        """Return the usual number of steps between two steps with the same kind of side work. A
        kind that has come less than twice is missing."""
        return {
            name: every for name, kind in self._kinds.items() if (every := kind.every) is not None
        }
