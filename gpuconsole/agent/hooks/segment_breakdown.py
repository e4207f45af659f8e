"""The step breakdown of a user's job: segments on the clock of the host, and in sampled steps on
the timeline of the CUDA stream.

On a CPU a sampled step has run-queue readings. On a GPU a mark of a sampled step records an event,
because events cost more than stamps. The events are read when the stream has passed them, some
steps later (see `stream`).
"""

from __future__ import annotations

import random
from collections import deque

from ..clock import ThreadTimes, now
from ..protocol import Message
from ..step_breakdown import LOW_RATE_SAMPLE_SPAN_S, SAMPLE_SPAN_S, USUAL_OF, median
from . import described, passes
from .calls import compiled
from .data import iterators
from .evidence.collectives import flight_recorder
from .evidence.communication import exchanges
from .guard import switch
from .optimizer import steppers
from .recorder import GAP, StepRecorder, pack
from .sampler import sampler
from .stream import StreamClock
from .watch import recorder, watch

MARKED_EACH_S = 0.04
"""Seconds from one marked step to the next, on average. Steps that take longer than two thirds of
this are all marked. Of shorter steps most are only counted, because Python calls the agent ten
times in a marked step of a plain loop, and once in a counted one."""
MARKED_OF = 16
"""Of the shortest steps, one in so many is marked."""
STREAM_BELOW_S = 0.0025
MARKED_OF_STREAM = 4
"""On a GPU all steps that take longer are marked, and one in so many of the shorter ones: the host
often has time to spare."""
MARKED_AT_FIRST = 32
"""Steps in a row that are marked at the start, and after a change: the console divides the counted
steps that follow like these."""
MAX_SPANS = 4
"""A step that is to be sampled later than so many of the usual distances is chosen anew."""


class SegmentBreakdown:
    """The step breakdown of a user's job: raw segments. The console decides which phase a segment
    belongs to."""

    tag = "segments"

    def __init__(self, times: ThreadTimes) -> None:
        self.times = times
        self.low_rate = False
        self.stream: StreamClock | None = None
        if described.device().startswith("cuda"):
            self.stream = switch.attempt("stream.made", StreamClock, described.device())
        else:
            recorder.read = times.runq_s if times.available else None
        self._mark_s = _cost_of_a_mark()
        self._marks = 0

    @property
    def index(self) -> int:
        return recorder.index

    def fields(self, sending_s: float) -> Message:
        steps = recorder.take()
        self._marks += sum(len(step[2]) for step in steps)
        return {
            "packed": pack(steps),
            "exchanges": exchanges.take(),
            "collectives": flight_recorder.take(),
            "cpu_s": self.times.cpu_s(),
            "runq_s": self.times.runq_s(),
            "overhead_s": self._marks * self._mark_s + recorder.own_s + sampler.cpu_s + sending_s,
        }

    def finish(self) -> None:
        """Wait for the events of finished steps; on a CPU nothing is pending."""
        if self.stream is not None:
            recorder.done, _ = self.stream.settle(recorder.done, wait=True)

    def give_up(self) -> None:
        """Take the times of the host for steps whose events are not passed yet."""
        if self.stream is not None:
            settled, rest = self.stream.settle(recorder.done)
            recorder.done = settled + [(*step[:6], None, *step[7:9], None) for step in rest]

    def restart(self) -> None:
        """The agent's own work has segments of its own."""


class StepSampler:
    """Chooses the steps with run-queue readings: one in SAMPLE_SPAN_S seconds on average, at random
    distances.

    The distances are counted in steps. With distances in seconds, the step after a long step would
    be chosen most often, and a long step, such as the one with the rollouts of reinforcement
    learning, hardly ever.
    """

    def __init__(self) -> None:
        self._random = random.Random(0)
        self._step_s: deque[float] = deque(maxlen=USUAL_OF)
        self._last: tuple[int, float] | None = None
        self._next = 0

    @property
    def usual_s(self) -> float:
        """The median time of a step lately, in seconds; 0: not known."""
        return median(self._step_s) if self._step_s else 0.0

    def next(self, index: int, start: float, low_rate: bool) -> int:
        """The step to sample next: `index`, which begins at `start`, or a later one. Call it from
        time to time."""
        if self._last is not None and index > self._last[0]:
            self._step_s.append((start - self._last[1]) / (index - self._last[0]))
        self._last = index, start
        usual = self.usual_s or SAMPLE_SPAN_S
        every = max(
            1, round((LOW_RATE_SAMPLE_SPAN_S if low_rate else SAMPLE_SPAN_S) / max(usual, 1e-6))
        )
        if self._next > index + MAX_SPANS * every:  # a step takes longer than before
            self._next = index
        while self._next < index:
            self._next += self._random.randint(1, 2 * every - 1)
        return self._next


class CountedSteps:
    """Decides whether steps may be only counted, and how many of them."""

    def __init__(self) -> None:
        self._from = 0
        """The first step that may be."""

    def every(self, usual_s: float, busy: bool) -> int:
        """One step in so many is to be marked, where a step takes `usual_s`; 0: each. `busy`: a
        trial, a change or a probe is under way."""
        unusual = (
            steppers.several
            or not steppers.plain
            or compiled.used
            or iterators.short_epochs
            or recorder.varied
        )
        recorder.varied = False
        if busy or unusual or passes.state.counting is not None or watch.keep_inputs:
            self._from = recorder.index + MARKED_AT_FIRST
        # before Python 3.12 all borders of a step are seen
        if recorder.index < self._from or not usual_s or recorder.marks is None:
            return 0
        if recorder.on_stream:
            return MARKED_OF_STREAM if usual_s < STREAM_BELOW_S else 0
        every = min(MARKED_OF, round(MARKED_EACH_S / usual_s))
        return every if every > 1 else 0


def _cost_of_a_mark() -> float:
    """Seconds of one mark with the call around it: the mean of 200."""
    other = StepRecorder()
    start = now()
    for _ in range(100):
        other.enter(GAP)
        other.leave()
    return 2 * (now() - start) / 200  # a hook's own call takes about as long as the mark
