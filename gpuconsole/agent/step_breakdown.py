"""The step breakdown: divides the wall time of each step into exclusive phases that sum to it.

The loop calls `mark(phase)` at the end of a phase; the time since the mark before belongs to that
phase. Steps are contiguous: the time between two steps (messages, commands) counts as `other` of
the later step.
On CUDA a mark records an event in the stream, and the events are read some steps later, without
synchronisation. The stream's own timeline then shows the exposed time of each phase: overlap is
already subtracted.

The median has a function here, because `import torch` does not load Python's `statistics`, and a
program may have a `statistics.py` of its own.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, cast

from .clock import ThreadTimes, now
from .protocol import MarkedStep, Message

if TYPE_CHECKING:
    import torch


def median(values: Iterable[float]) -> float:
    """Return the median of one value or more. Raises IndexError without values."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


DATA_WAIT, H2D, FORWARD, BACKWARD, OPTIMIZER, COMM, LOGGING, CHECKPOINT, EVAL, OTHER = range(10)
"""The phases that our own loop marks, as indices of PHASES. Its loss is a part of the forward
pass."""
USUAL_OF = 31
"""Steps whose median duration is the usual one."""
MAX_SKIPPED = 16
"""Most steps without a run-queue reading at the start of a timeline: after a change of knobs the
duration of a step is unknown."""
SAMPLE_SPAN_S = 0.16
"""Mean time between two steps with run-queue readings. At every mark of every step they took 378 µs
a step; a sampled step takes 0.2 ms. The gaps are random, so that they cannot coincide with
`save_every` or `log_every`."""
LOW_RATE_SAMPLE_SPAN_S = 0.32
"""The same at the low rate (see `reporter`)."""
MAX_AHEAD_S = 0.3
"""Seconds of work that may be queued at the end of a step; one step may always be queued. The
launch queue of CUDA takes about 1000 kernels, which may be seconds of work. A command waits for all
of it, and so does each switch between the sides of a trial."""


_new = tuple.__new__
"""Makes a MarkedStep without a Python call: between two steps, with nothing in a cache, that call
takes 3 to 8 µs."""

Moment: TypeAlias = "float | torch.cuda.Event"
"""Seconds on the host clock, or a place in the CUDA stream."""


class StepBreakdown:
    """Times steps on the host clock. `take()` returns the steps since the last call as raw marks;
    the console adds them up.

    `sample_all` reads run-queue time on every step: in trials both sides pay the same for it.
    `low_rate` halves the rate of the readings.
    """

    tag = "markedsteps"

    def __init__(self, times: ThreadTimes) -> None:
        self.times = times
        self.overhead_s = 0.0
        self.sample_all = self.low_rate = False
        self._index = 0
        self._done: list[MarkedStep] = []
        self._ended: list[int] = []
        self._times: list[float] = []
        self._runq: list[float] = []
        self._sampled = False
        self._random = random.Random(0)
        self._next_sample = 0
        self._walls: deque[float] = deque([SAMPLE_SPAN_S], maxlen=USUAL_OF)
        self._mark_cost_s = self._cost_of_marks(sampled=False)
        self._sampled_mark_cost_s = self._cost_of_marks(sampled=True)
        self.restart()

    @property
    def index(self) -> int:
        """The step under way, counted from 0."""
        return self._index

    def restart(self) -> None:
        """Begin a new timeline.

        What happened before (a probe, a pause, a change) belongs to no step, and steps may take
        longer from now on.
        """
        self._next_sample = min(self._next_sample, self._index + MAX_SKIPPED)
        self._begin(now())

    def moment(self) -> Moment:
        """This moment, for a later mark."""
        return now()

    def mark(self, phase: int, at: Moment | None = None) -> None:
        """Assign the time since the last mark to `phase`; only the time up to `at` where `at` is
        not None."""
        self._ended.append(phase)
        self._times.append(now() if at is None else cast("float", at))
        if self._sampled:
            self._runq.append(self.times.runq_s())

    def end(self, samples: int, tokens: int, loss: float | None, arm: int, kind: int) -> None:
        """End the step. `arm`: side of a trial; `kind`: COUNTS, SETTLING or PROBE of `protocol`."""
        t = now()
        self._ended.append(OTHER)
        self._times.append(t)
        if self._sampled:
            self._runq.append(self.times.runq_s())
            # of many steps: otherwise bursts of contention would be sampled more often
            usual = median(self._walls)
            every = max(
                1,
                round(
                    (LOW_RATE_SAMPLE_SPAN_S if self.low_rate else SAMPLE_SPAN_S) / max(usual, 1e-6)
                ),
            )
            self._next_sample = self._index + self._random.randint(1, 2 * every - 1)
        self.overhead_s += len(self._ended) * (
            self._sampled_mark_cost_s if self._sampled else self._mark_cost_s
        )
        # JSON has no NaN
        sent = repr(loss) if loss is not None and not math.isfinite(loss) else loss
        fields = (
            self._index,
            self._start,
            self._ended,
            self._times,
            self._runq,
            samples,
            tokens,
            sent,
            arm,
            kind,
        )
        self._done.append(_new(MarkedStep, fields))
        self._index += 1
        self._begin(t)

    def take(self) -> list[MarkedStep]:
        """The steps that have ended since the last call."""
        done, self._done = self._done, []
        self._walls.extend(step.times[-1] - step.start for step in done[-USUAL_OF:])
        return done

    def fields(self, sending_s: float) -> Message:
        """The steps since the last call, and cumulative figures of the process. `sending_s`:
        overhead that this account does not know."""
        return {
            "steps": self.take(),
            "cpu_s": self.times.cpu_s(),
            "runq_s": self.times.runq_s(),
            "overhead_s": self.overhead_s + sending_s,
        }

    def finish(self) -> None:
        """Wait for times that are not known yet (CUDA only)."""

    def _begin(self, start: float) -> None:
        self._start = start
        self._ended, self._times, self._runq = [], [], []
        self._sampled = (
            self.sample_all or self._index >= self._next_sample
        ) and self.times.available
        if self._sampled:
            self._runq.append(self.times.runq_s())

    def _cost_of_marks(self, sampled: bool) -> float:
        """Seconds of one mark: the mean of 200 on this thread."""
        self._sampled = sampled
        start = now()
        for _ in range(200):
            self.mark(OTHER)
        return (now() - start) / 200


class CudaStepBreakdown(StepBreakdown):
    """Times steps on the timeline of the CUDA stream. The first event of a step is the last event
    of the step before."""

    def __init__(self, times: ThreadTimes) -> None:
        import torch

        # blocking: waiting uses no CPU
        self._make_event = partial(torch.cuda.Event, enable_timing=True, blocking=True)
        self._free: list[torch.cuda.Event] = []
        self._pending: deque[tuple[MarkedStep, list[torch.cuda.Event]]] = deque()
        self._events: list[torch.cuda.Event] = []
        # the device's time for the last step that it has done; not known before the first
        self._step_s = MAX_AHEAD_S
        super().__init__(times)

    def restart(self) -> None:
        self.finish()
        super().restart()
        self._events = [self._record()]

    def moment(self) -> Moment:
        return self._record()

    def mark(self, phase: int, at: Moment | None = None) -> None:
        super().mark(phase)
        self._events.append(self._record() if at is None or isinstance(at, float) else at)

    def end(self, samples: int, tokens: int, loss: float | None, arm: int, kind: int) -> None:
        super().end(samples, tokens, loss, arm, kind)
        self._events.append(self._record())
        self._pending.append((self._done.pop(), self._events))
        self._events = [self._events[-1]]
        while self._pending:
            step, events = self._pending[0]
            last = events[-1]
            if not last.query():
                step_s = max(self._step_s, now() - step.times[-1])
                if len(self._pending) == 1 or len(self._pending) * step_s < MAX_AHEAD_S:
                    break
                # later steps are queued behind this step, so the device does not become idle
                last.synchronize()
            self._resolve()

    def finish(self) -> None:
        while self._pending:
            self._pending[0][1][-1].synchronize()
            self._resolve()

    def _record(self) -> torch.cuda.Event:
        event = self._free.pop() if self._free else self._make_event()
        event.record()
        return event

    def _resolve(self) -> None:
        """Write the stream's times into the oldest step; the stream has passed all its events. The
        step ends when the host ended it."""
        step, events = self._pending.popleft()
        spans = (before.elapsed_time(after) * 1e-3 for before, after in itertools.pairwise(events))
        elapsed = list(itertools.accumulate(spans))
        self._step_s = elapsed[-1]
        start = step.times[-1] - elapsed[-1]
        self._done.append(step._replace(start=start, times=[start + t for t in elapsed]))
        self._free.extend(events[:-1])
