"""Side work of a training: logging, checkpoints and evaluation, over all steady steps of a run.

A window of some seconds is too short for work that is rare and large: with a checkpoint of 10 s
every 40 s, the share in a window of 30 s changes between 0 and 33 %.
"""

from __future__ import annotations

import statistics
from collections import defaultdict, deque
from collections.abc import Sequence

from gpuconsole.model.run import PHASES, Step
from gpuconsole.session.figures.totals import Totals

SIDE_WORK = ("logging", "checkpoint", "eval")
"""The phases of a step that are side work."""
PLACES = {name: PHASES.index(name) for name in SIDE_WORK}
DISTANCES = 50
"""Distances between two steps with the same side work that are kept: the usual distance may
change."""


class _Kind:
    """One kind of side work. Times are seconds of steady steps, from the first one on."""

    def __init__(self) -> None:
        self._events = 0
        self._s = self._first_s = self._first_end_s = self._last_end_s = 0.0
        self._last_index = 0
        self._distances: deque[int] = deque(maxlen=DISTANCES)

    def add(self, seconds: float, index: int, end_s: float) -> None:
        """Add the work in the step `index`, which ends at `end_s`."""
        if not self._events:
            self._first_s, self._first_end_s = seconds, end_s
        elif index > self._last_index:
            # a process that has started again counts its steps from 0
            self._distances.append(index - self._last_index)
        self._events += 1
        self._s += seconds
        self._last_end_s, self._last_index = end_s, index

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
    """The side work in steps of the leading process, beside the sums over these steps."""

    def __init__(self, steps: Sequence[Step] = ()) -> None:
        self.totals = Totals()
        self._kinds: defaultdict[str, _Kind] = defaultdict(_Kind)
        self.add(steps)

    def add(self, steps: Sequence[Step]) -> None:
        end_s = self.totals.wall_s
        for step in steps:
            end_s += step.wall_s
            for name, place in PLACES.items():
                if step.phases[place] > 0:
                    self._kinds[name].add(step.phases[place], step.index, end_s)
        self.totals.add(steps)

    def ratios(self, contention_free: bool) -> dict[str, float]:
        """Return the share of each kind in the time of the steps. `contention_free`: without
        run-queue delay, as in `Totals.contention_free_shares`."""
        totals = self.totals
        shares = dict.fromkeys(SIDE_WORK, 0.0)
        shares |= {name: kind.ratio(totals.wall_s) for name, kind in self._kinds.items()}
        waited = totals.runq_ratio
        if not contention_free or waited is None or waited >= 1:
            return shares
        delays = dict(zip(PHASES, totals.delays_s, strict=True))
        return {
            name: min(1.0, max(0.0, share - delays[name] / totals.sampled_s) / (1 - waited))
            for name, share in shares.items()
        }

    def every(self) -> dict[str, int]:
        """Return the usual number of steps between two steps with the same kind of side work. A
        kind that has come less than twice is missing."""
        return {
            name: every for name, kind in self._kinds.items() if (every := kind.every) is not None
        }
