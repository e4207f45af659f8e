"""The segments of the step under way, and their packed form.

A segment is a stretch of the training thread's time with one code: what the thread did. The
recorder does not judge; the console makes phases of the segments (session/segments.py). Segments of
a step are contiguous: the step's start, then for each segment its code and its end.

A step is marked or counted. A counted step has its start and its end, and what is rare: its time is
one segment UNMARKED, which the console divides as in the marked steps, which are chosen at random.
"""

from __future__ import annotations

import array
import base64
import itertools
import random
import struct
import threading
from collections.abc import Callable, Container
from typing import Any, NamedTuple

from ..clock import now

(
    DATA, FORWARD, NO_GRAD, BACKWARD, OPTIMIZER, ZERO, SAVE, LOG, COMM, GAP, OWN, COMPILED, WHOLE,
    UNMARKED, EVAL, TRAINED, TRAINED_EVAL, EVALUATED,
) = range(18)  # fmt: skip
"""Codes: a batch that is made without a DataLoader, which this agent does not mark; a pass of a
root module with gradients, and without; backward; optimizer step; zero_grad; saving; logging; a
collective; anything else; the agent's own work; a function under torch.compile; a framework's
training step with its loss; the time of a counted step; a pass with gradients in eval mode, as of
an evaluation without `torch.no_grad`; a pass without gradients of a module that has passes with
gradients too, the same in eval mode, and the same in eval mode on a batch about as large as those
of the training: an agent that asks a policy for its next action passes a few rows."""
WITHOUT_GRADIENTS = frozenset((NO_GRAD, TRAINED, TRAINED_EVAL, EVALUATED))
LOADER = 24
LOADERS = 8
"""Code LOADER + n: a batch from the DataLoader number n (of the last LOADERS)."""
MAY_HOLD_FORWARD = frozenset((GAP, OPTIMIZER, WHOLE, SAVE, LOG))
"""A pass is a segment only directly within these: a closure runs in the optimizer's step; a
function that saves may evaluate first."""
PASSES_OF_A_STEP = frozenset((FORWARD, BACKWARD))
LAST = frozenset((FORWARD, BACKWARD, OPTIMIZER, COMPILED, WHOLE, *range(LOADER, LOADER + LOADERS)))
"""The codes by which the time after them is named. A pass without gradients says nothing about
it."""
HEAD = struct.Struct("<IdIIdBBHI")
"""Of a packed step: index, start, samples, tokens, loss, arm, kind, flags, number of segments. Then
the codes (a byte each) and the ends (8 bytes each, seconds on CLOCK_MONOTONIC); with RUN_QUEUE also
the run-queue seconds at the start and at each end. STREAM: the times are those of the CUDA stream.
LOSS: the step has a loss, which may be NaN."""
RUN_QUEUE, STREAM, LOSS = 1, 2, 4
MAX_SEGMENTS = 100_000
MAX_READINGS = 20_000
"""Of one step. A program that has stopped training, and serves its model, makes segments for ever.
So the segments of a step with more are folded, and a step with more readings has none."""
LOSS_EVERY_S = 0.04
"""Seconds between two steps whose loss is read on a CPU, outside a trial. One reading takes 10 µs
of a step; the console shows a loss each 0.25 s."""

RawStep = tuple[int, float, list[int], list[float], int, int, Any, int, int, "list[float] | None"]
"""index, start, codes, ends, samples, tokens, loss, arm, kind, readings (see `read`); an empty
list: the times are those of the stream."""

get_ident = threading.get_ident


class StepMark(NamedTuple):
    """A moment of a step: how many segments it has, its samples, tokens and loss, and its forward
    and backward passes."""

    segments: int
    samples: int
    tokens: int
    loss: Any
    passes: int


class StepRecorder:
    """`stack` holds what is going on, the innermost last. Only the training thread writes.

    The program's own work drives this code out of the caches between two marks, so each line that a
    mark runs and each object that it reads costs three times what a loop over it shows: the usual
    step must touch little.
    """

    __slots__ = (
        "_loss_t",
        "arm",
        "at_end",
        "backwards",
        "caught_up",
        "codes",
        "copy_loss",
        "counted",
        "done",
        "due",
        "ends_only",
        "every",
        "full_at",
        "index",
        "kind",
        "last",
        "late",
        "loss",
        "marks",
        "on_stream",
        "own_s",
        "partial",
        "passes",
        "probes_s",
        "random",
        "read",
        "readings",
        "reads_loss",
        "sample_all",
        "sample_at",
        "samples",
        "settle",
        "stack",
        "start",
        "thread",
        "times",
        "tokens",
        "usual",
        "varied",
    )

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """As in a process that has not trained yet."""
        self.thread = 0
        """The training thread; 0: nothing is recorded. A hook compares it itself: the call of a
        method would double the cost of the comparison."""
        self.counted = False
        """Whether the step under way is only counted."""
        self.partial = False
        """Whether the step under way was counted at its start, and is marked since then: what it
        had before is not known."""
        self.marks: Callable[[bool], None] | None = None
        """Called with whether a step is marked, where that changes."""
        self.usual = 0, 0
        """The samples and tokens of the last marked step: those of a counted step."""
        self.varied = False
        """Whether a marked step lately had other samples than the marked step before: then a
        counted step would have the wrong samples."""
        self.every = 0
        """One step in so many is marked, on average; 0: each."""
        self.full_at = 0
        self.random = random.Random(0)
        self.stack = [GAP]
        """In a counted step, UNMARKED is the outermost."""
        self.codes: list[int] = []
        self.times: list[float] = []
        self.start = 0.0
        self.last = GAP
        """The last segment of LAST that has ended, in whatever step."""
        self.index = 0
        self.done: list[RawStep] = []
        self.samples = self.tokens = 0
        self.loss: Any = None
        self.reads_loss = True
        """Whether the loss of the step under way is read: see LOSS_EVERY_S."""
        self._loss_t = 0.0
        self.arm = self.kind = 0
        self.passes = self.backwards = 0
        """Passes and backward passes of the step under way."""
        self.own_s = self.probes_s = 0.0
        """Seconds of the agent's work between two steps, without probes; and seconds of probes and
        profiler windows."""
        self.read: Callable[[], Any] | None = None
        """What a mark of a sampled step reads: the run-queue seconds of the training thread; on
        CUDA an event in the stream."""
        self.on_stream = False
        self.settle: Callable[..., Any] | None = None
        """On CUDA: divides finished steps into those whose events are known, and the rest."""
        self.caught_up: Callable[[list[Any]], None] | None = None
        """On CUDA: looks at the events of a sampled step, as the host ends the step."""
        self.copy_loss: Callable[[Any, Any], Any] | None = None
        """On CUDA: copies the loss of a sampled step, and adds the loss before."""
        self.sample_all = False
        """Whether every step has readings: in a trial both sides pay the same for them."""
        self.ends_only = False
        """Whether a step has readings at its start and its end only. In a trial on a GPU every step
        has readings: events at each mark would take a part of a short step, and not the same part
        of both sides."""
        self.late = False
        """Whether the readings began within the current step: then only a part of the step has
        readings."""
        self.sample_at = -1
        """The step that has readings, also where `sample_all` is not set."""
        self.sampled(False)
        self.at_end: Callable[[], None] | None = None
        """Called after a step that ends at `due` or later."""
        self.due = 0.0

    def state(self) -> list[Any]:
        """All that the recorder holds."""
        return [getattr(self, name) for name in self.__slots__]

    def begin(self, around: list[int]) -> None:
        """The first step's account begins now, on this thread. `around`: what is going on now."""
        self.stack, self.codes, self.times = [GAP, *around], [], []
        self.start = now()
        self.thread = get_ident()

    @property
    def on(self) -> bool:
        """Whether the account has begun."""
        return self.thread != 0

    def off(self) -> None:
        """Record nothing any longer."""
        self.thread = 0

    def enter(self, code: int) -> None:
        """A segment with `code` begins, within the present one."""
        stack = self.stack
        self.codes.append(stack[-1])
        self.times.append(now())
        stack.append(code)
        if self.readings is not None and not self.ends_only:
            self.readings.append(self.read())  # type: ignore[misc]
            if len(self.readings) > MAX_READINGS:
                self.sampled(False)
        elif len(self.codes) > MAX_SEGMENTS:
            self.fold()

    def fold(self) -> None:
        """Make one segment of all of the step under way with the same code. Their order is lost."""
        seconds: dict[int, float] = {}
        begun = self.start
        for code, ended in zip(self.codes, self.times, strict=True):
            seconds[code] = seconds.get(code, 0.0) + ended - begun
            begun = ended
        self.codes, self.times = (
            list(seconds),
            [self.start + t for t in itertools.accumulate(seconds.values())],
        )

    def leave(self) -> None:
        """The present segment ends; the one around it goes on. The outermost one never ends."""
        code = self.stack.pop() if len(self.stack) > 1 else GAP
        self.codes.append(code)
        self.times.append(now())
        if code in LAST:
            self.last = code
        if self.readings is not None and not self.ends_only:
            self.readings.append(self.read())  # type: ignore[misc]

    def drop(self, codes: Container[int]) -> None:
        """Segments with these codes that are under way are no segments of their own any longer:
        nothing will end them."""
        self.stack[1:] = [code for code in self.stack[1:] if code not in codes]

    def sampled(self, wanted: bool) -> None:
        """Decide whether the step that begins now has readings. With several optimizers, a step may
        have passes already. It then keeps the readings that it has. If it has none, the next step
        is the first with all readings."""
        under_way = not (PASSES_OF_A_STEP.isdisjoint(self.codes) or self.ends_only)
        if wanted and under_way and self.readings is not None:
            return
        self.readings: list[Any] | None = None
        self.late = False
        if wanted and self.read is not None:
            first = self.read()
            count = 1 if self.ends_only else 1 + len(self.codes)
            self.late = under_way
            # the reading may have failed
            self.readings = [first] * count if self.read is not None else None

    def cut(self) -> None:
        """The step ends here, within whatever is going on."""
        end = now()
        self.codes.append(self.stack[-1])
        self.times.append(end)
        self.last = OPTIMIZER
        if self.readings is not None:
            self.readings.append(self.read())  # type: ignore[misc]
            if self.caught_up is not None and not self.ends_only:
                self.caught_up(self.readings)
        if self.partial:
            self.samples, self.tokens = (
                max(self.samples, self.usual[0]),
                max(self.tokens, self.usual[1]),
            )
        self.done.append(
            (
                self.index,
                self.start,
                self.codes,
                self.times,
                self.samples,
                self.tokens,
                self.loss,
                self.arm,
                self.kind,
                None if self.late else self.readings,
            )
        )
        if not self.partial:
            self.varied = self.varied or self.usual[0] not in (0, self.samples)
            self.usual = self.samples, self.tokens
        self._begin_next(end)
        if self.readings is not None or self.index == self.sample_at:
            self.sampled(self.sample_all or self.index == self.sample_at)
        if self.every and len(self.stack) == 1 and self.readings is None and not self._is_marked():
            self.counted, self.stack[0] = True, UNMARKED
            if self.marks is not None:
                self.marks(False)

    def cut_counted(self) -> None:
        """A counted step ends here, with its optimizer step; then the agent may work."""
        end = now()
        self.codes.append(self.stack[-1])
        self.times.append(end)
        self.last = OPTIMIZER
        self.done.append(
            (
                self.index,
                self.start,
                self.codes,
                self.times,
                *self.usual,
                None,
                self.arm,
                self.kind,
                None,
            )
        )
        self._begin_next(end)
        if self._is_marked() or not self.every:
            self.mark_step()
            if self.index == self.sample_at:
                self.sampled(True)
        self.work()

    def _begin_next(self, t: float) -> None:
        self.index += 1
        self.start, self.codes, self.times = t, [], []
        self.samples = self.tokens = self.passes = self.backwards = 0
        self.loss, self.partial = None, False
        self.reads_loss = self.sample_all or t >= self._loss_t
        if self.reads_loss:
            self._loss_t = t + LOSS_EVERY_S

    def _is_marked(self) -> bool:
        """Whether the step that begins now is marked, where most are only counted."""
        if self.index > self.full_at:
            self.full_at = self.index + self.random.randint(0, 2 * self.every - 2)
        return self.index in (self.full_at, self.sample_at)

    def mark_step(self) -> None:
        """The step that has just begun is marked."""
        if self.counted:
            self.codes = [GAP if code == UNMARKED else code for code in self.codes]
            self._mark()

    def mark_rest(self) -> None:
        """The step under way is marked from here on: something happens in it that is not usual."""
        if self.counted:
            self.codes.append(self.stack[-1])
            self.times.append(now())
            self.partial = True
            self._mark()

    def _mark(self) -> None:
        self.counted, self.stack[0] = False, GAP
        if self.marks is not None:
            self.marks(True)

    def work(self) -> None:
        """Let the agent work between two steps, where it is time."""
        if self.start >= self.due and self.at_end is not None:
            self.at_end()

    def join_segments(self, first: int) -> None:
        """Make one segment of those from `first` on, with the code of the last."""
        self.codes[first:], self.times[first:] = self.codes[-1:], self.times[-1:]
        if self.readings is not None and not self.ends_only:
            self.readings[first + 1 :] = self.readings[-1:]

    def mark(self) -> StepMark:
        """This moment, at which `split` can end the step later."""
        return StepMark(
            len(self.codes), self.samples, self.tokens, self.loss, self.passes + self.backwards
        )

    def split(self, mark: StepMark) -> None:
        """End the step at a past moment. What came since then is the step under way."""
        codes, times, readings = self.codes, self.times, self.readings
        samples, tokens, loss = self.samples - mark.samples, self.tokens - mark.tokens, self.loss
        if mark.loss is not None:
            loss = loss - mark.loss if isinstance(loss, float) and loss != mark.loss else None
        first = None if readings is None or self.late else readings[: mark.segments + 1]
        ended_samples, ended_tokens = mark.samples, mark.tokens
        if self.partial:
            ended_samples, ended_tokens = (
                max(ended_samples, self.usual[0]),
                max(ended_tokens, self.usual[1]),
            )
            self.partial = False
        self.done.append(
            (
                self.index,
                self.start,
                codes[: mark.segments],
                times[: mark.segments],
                ended_samples,
                ended_tokens,
                mark.loss,
                self.arm,
                self.kind,
                first,
            )
        )
        self.index += 1
        self.start, self.codes, self.times = (
            times[mark.segments - 1],
            codes[mark.segments :],
            times[mark.segments :],
        )
        self.samples, self.tokens, self.loss = samples, tokens, loss
        if readings is not None:
            # consecutive steps have readings only if all steps have them
            self.readings = readings[mark.segments :] if self.late or self.sample_all else None
        self.late = False

    def take(self) -> list[RawStep]:
        """The steps that have ended since the last call."""
        done, self.done = self.done, []
        if self.settle is not None:
            done, self.done = self.settle(done)
        return done


def pack(steps: list[RawStep]) -> str:
    """Steps as base64 text. As JSON numbers the times would take 22 µs a step, packed they take 1
    µs."""
    parts = []
    for index, start, codes, times, samples, tokens, loss, arm, kind, readings in steps:
        flags = 0 if readings is None else RUN_QUEUE if readings else STREAM
        value = float("nan") if loss is None else float(loss)
        flags |= 0 if loss is None else LOSS
        parts.append(
            HEAD.pack(
                index,
                start,
                samples & 0xFFFFFFFF,
                tokens & 0xFFFFFFFF,
                value,
                arm,
                kind,
                flags,
                len(codes),
            )
        )
        parts.append(bytes(codes))
        parts.append(array.array("d", times).tobytes())
        if readings:
            parts.append(array.array("d", readings).tobytes())
    return base64.b64encode(b"".join(parts)).decode("ascii")
