"""The step account: every step's wall time split into exclusive phases that sum to it.

The loop calls `mark(phase)` when a phase ends; the time since the previous mark belongs to that phase. Steps are
contiguous: what lies between two steps (sending, looking for commands) counts as `other` of the next one.
On CUDA a mark records an event into the stream instead, and the events are read some steps later without any
synchronisation: the stream's own timeline then shows each phase as it was exposed, overlap already taken off.
"""

from __future__ import annotations

import random
import statistics
from collections import deque
from typing import TYPE_CHECKING, TypeAlias

from gpuconsole.model.run import PHASES, Step
from gpuconsole.workloads.clock import ThreadTimes, now

if TYPE_CHECKING:
    import torch

DATA_WAIT, H2D, FORWARD, BACKWARD, OPTIMIZER, COMM, LOGGING, CHECKPOINT, EVAL, OTHER = range(len(PHASES))
SAMPLE_EVERY = 16
"""Run-queue time is read on one step in this many, on average: at every mark of every step it cost +378 µs a step.
The gaps are drawn at random, so that no `save_every` or `log_every` can fall into step with them."""
SAMPLE_SPAN_S = 0.16
"""Of slow steps more are sampled, one in this many seconds or each: 0.3 % of their time at most, and no job goes half a minute unseen."""


Moment: TypeAlias = "float | torch.cuda.Event"
"""Seconds on the host clock, or a place in the CUDA stream."""


class StepAccount:
    """Times steps on the host clock. `take()` hands over the steps done since the last call.

    `sample_all` reads run-queue time on every step; trials want that, at the same cost for both sides.
    """

    def __init__(self, times: ThreadTimes) -> None:
        self.times = times
        self.overhead_s = 0.0
        self._steps: list[Step] = []
        self._index = 0
        self._phases = [0.0] * len(PHASES)
        self._runq = [0.0] * len(PHASES)
        self._sampled = False
        self._last_runq = 0.0
        self._chance = random.Random(0)
        self._next_sample = 0
        self._walls: deque[float] = deque(maxlen=31)
        self.sample_all = False
        self._marks = 0
        self._mark_cost_s = 0.0
        self._sampled_mark_cost_s = 0.0
        self._calibrate()
        self.restart()

    @property
    def index(self) -> int:
        """The step under way, counted from 0."""
        return self._index

    def restart(self) -> None:
        """Begin a new timeline here: what went before (a probe, a pause, a switch) belongs to no step."""
        self._clear()
        self._start = self._last = now()
        self._begin_sampling()

    def moment(self) -> Moment:
        """This moment, for a mark that is made later."""
        return now()

    def mark(self, phase: int, at: Moment | None = None) -> None:
        """The time since the last mark was spent in `phase`; up to the earlier moment `at`, where given."""
        t = at if isinstance(at, float) else now()
        self._phases[phase] += t - self._last
        self._last = t
        self._marks += 1
        if self._sampled:
            runq = self.times.runq_s()
            self._runq[phase] += runq - self._last_runq
            self._last_runq = runq

    def end(self, samples: int, tokens: int, loss: float | None, arm: int, kind: int) -> None:
        """The step is over."""
        self.mark(OTHER)
        runq = tuple(self._runq) if self._sampled else None
        wall = self._last - self._start
        self._walls.append(wall)
        if self._sampled:
            usual = statistics.median(self._walls)  # not this step's own: in a burst of contention more would be sampled than outside
            every = max(1, min(SAMPLE_EVERY, round(SAMPLE_SPAN_S / max(usual, 1e-6))))
            self._next_sample = self._index + self._chance.randint(1, 2 * every - 1)
        self._steps.append(Step(self._index, self._last, wall, samples, tokens, tuple(self._phases), runq, loss, arm, kind))
        self.overhead_s += self._marks * (self._sampled_mark_cost_s if self._sampled else self._mark_cost_s)
        self._index += 1
        self._clear()
        self._start = self._last
        self._begin_sampling()

    def take(self) -> list[Step]:
        steps, self._steps = self._steps, []
        return steps

    def finish(self) -> None:
        """Wait for figures that are still under way (CUDA only)."""

    def _begin_sampling(self) -> None:
        due = self.sample_all or self._index >= self._next_sample
        self._sampled = due and self.times.available
        if self._sampled:
            self._last_runq = self.times.runq_s()

    def _clear(self) -> None:
        self._phases = [0.0] * len(PHASES)
        self._runq = [0.0] * len(PHASES)
        self._marks = 0

    def _calibrate(self) -> None:
        """What one mark costs, plain and sampled: the mean of 200, on this thread, now."""
        self._last = now()
        for sampled in (False, True):
            self._sampled, self._last_runq = sampled, 0.0
            start = now()
            for _ in range(200):
                self.mark(OTHER)
            cost = (now() - start) / 200
            if sampled:
                self._sampled_mark_cost_s = cost
            else:
                self._mark_cost_s = cost
        self._sampled = False


class _Pending:
    """A step whose CUDA events have not all been reached yet."""

    __slots__ = ("events", "step")

    def __init__(self, step: Step, events: list[tuple[int, torch.cuda.Event]]) -> None:
        self.step = step
        self.events = events


class CudaStepAccount(StepAccount):
    """Times steps on the CUDA stream's timeline. `events[0]` of a step is the last one of the step before."""

    def __init__(self, times: ThreadTimes) -> None:
        import torch

        self._event_type = torch.cuda.Event
        self._free: list[torch.cuda.Event] = []
        self._pending: deque[_Pending] = deque()
        self._events: list[tuple[int, torch.cuda.Event]] = []
        super().__init__(times)

    def restart(self) -> None:
        self.finish()
        super().restart()
        self._events = [(OTHER, self._record())]

    def moment(self) -> Moment:
        return self._record()

    def mark(self, phase: int, at: Moment | None = None) -> None:
        super().mark(phase)
        self._events.append((phase, self._record() if at is None or isinstance(at, float) else at))

    def end(self, samples: int, tokens: int, loss: float | None, arm: int, kind: int) -> None:
        super().end(samples, tokens, loss, arm, kind)
        self._pending.append(_Pending(self._steps.pop(), self._events))
        self._events = [self._events[-1]]
        while self._pending and self._pending[0].events[-1][1].query():
            self._resolve(self._pending.popleft())

    def finish(self) -> None:
        while self._pending:
            self._pending[0].events[-1][1].synchronize()
            self._resolve(self._pending.popleft())

    def _record(self) -> torch.cuda.Event:
        event = self._free.pop() if self._free else self._event_type(enable_timing=True)
        event.record()
        return event

    def _resolve(self, pending: _Pending) -> None:
        phases = [0.0] * len(PHASES)
        for (_, before), (phase, after) in zip(pending.events, pending.events[1:], strict=False):
            phases[phase] += before.elapsed_time(after) * 1e-3
        step = pending.step
        self._steps.append(
            Step(step.index, step.t, sum(phases), step.samples, step.tokens, tuple(phases), step.runq, step.loss, step.arm, step.kind)
        )
        self._free.extend(event for _, event in pending.events[:-1])
