"""From the raw segments of a user's job to steps with phases: a pure fold.

The agent records what the training thread did; the meaning of a stretch follows from what stands
before and after it. The codes are those of `agent.hooks.recorder`; tests/test_architecture.py
compares both lists.
"""

from __future__ import annotations

import array
import base64
import binascii
import itertools
import math
import struct
from collections import defaultdict, deque
from typing import NamedTuple

import msgspec

from gpuconsole.model.run import COUNTS, PHASES, SETTLING, Step
from gpuconsole.model.stacks import StackSample
from gpuconsole.session.communication import (
    COLLECTIVES,
    COLLECTIVES_STEPS,
    OUTSIDE,
    OUTSIDE_CALLS,
    OUTSIDE_STEPS,
    Exchanges,
)
from gpuconsole.session.counters import EVAL_S, EVAL_WITH_GRADIENTS_S, GENERATED, GENERATED_STEPS
from gpuconsole.session.places import MIN_REST_SHARE, after_step_ratio, between_passes, torch_ratio
from gpuconsole.wire.events import JobKnown, Segments, Stacks, Steps

(
    DATA, FORWARD, NO_GRAD, BACKWARD, OPTIMIZER, ZERO, SAVE, LOG, COMM, GAP, OWN, COMPILED, WHOLE,
    UNMARKED, EVAL, TRAINED, TRAINED_EVAL, EVALUATED,
) = range(18)  # fmt: skip
LOADER = 24
HEAD = struct.Struct("<IdIIdBBHI")
RUN_QUEUE, STREAM, LOSS = 1, 2, 4

(
    P_DATA,
    P_H2D,
    P_FORWARD,
    P_BACKWARD,
    P_OPTIMIZER,
    P_COMM,
    P_LOGGING,
    P_CHECKPOINT,
    P_EVAL,
    P_OTHER,
    P_LOSS,
    P_GENERATION,
) = range(len(PHASES))
FIXED = {
    DATA: P_DATA,
    FORWARD: P_FORWARD,
    NO_GRAD: P_FORWARD,
    BACKWARD: P_BACKWARD,
    OPTIMIZER: P_OPTIMIZER,
    ZERO: P_OPTIMIZER,
    SAVE: P_CHECKPOINT,
    LOG: P_LOGGING,
    COMM: P_COMM,
    WHOLE: P_FORWARD,
}
"""The phase of a segment that needs no neighbours."""
AFTER_PASS = 400
MIN_SAMPLES_AFTER_PASS = 30
"""Most different stacks after a pass, and least samples, by which its time is divided between
functions of torch and the rest; and the same for the time between two steps."""
RARE = (P_LOGGING, P_CHECKPOINT, P_EVAL)
ALWAYS_MARKED = {SAVE, LOG, COMM}
"""Segments that a counted step has, too: the time of the others is in its segment UNMARKED (see
`agent.hooks.recorder`)."""
MARKED_STEPS = 32
"""Marked steps by which the time of counted steps is divided."""
MIN_GENERATED = 4
"""From this number of passes per step on, passes without gradients of the trained model are
generation. Fewer passes make labels for the step, or choose one action."""
RECENT = 32
"""Steps by which a pass without gradients is judged: one in most steps is a teacher's or a
policy's, not an evaluation."""
STREAM_STEPS = 16
"""Steps on the stream's timeline by which the time of other steps is divided."""
ALIKE = 1.5
"""The time of a step is divided as in those of these steps whose length differs by less than this
factor, where there are some. Workers that deliver their batches at the same time make long and
short steps."""
BACKWARD_STEPS = 200
"""Steps whose mean backward pass the waits for exchanges are compared with."""
MAX_EXPOSED = 0.98
PASSES = {FORWARD, NO_GRAD, COMPILED, WHOLE}
LATER = {DATA, FORWARD, BACKWARD, OPTIMIZER, COMPILED, WHOLE, UNMARKED}
"""Segments that come after the lines below the previous optimizer step."""
MARKS = {DATA, FORWARD, NO_GRAD, BACKWARD, OPTIMIZER, ZERO, COMPILED, WHOLE, UNMARKED}
"""Segments by which a gap is named."""


class RawStep(NamedTuple):
    """One step as it was sent. `codes` and `ends` have one entry for each segment; times are
    seconds on CLOCK_MONOTONIC.

    `runq`: run-queue seconds of the training thread, at the start and at each end; None where they
    were not read. `on_stream`: the times are those of the CUDA stream, not of the host.
    """

    index: int  # type: ignore[assignment]  # hides the method tuple.index
    start: float
    codes: list[int]
    ends: list[float]
    samples: int
    tokens: int
    loss: float | None
    arm: int
    kind: int
    runq: list[float] | None = None
    on_stream: bool = False


def unpack(packed: str) -> list[RawStep]:
    """The steps of a message. Raises ValueError where the text is damaged."""
    try:
        data, at, steps = base64.b64decode(packed, validate=True), 0, []
        while at < len(data):
            index, start, samples, tokens, loss, arm, kind, flags, n = HEAD.unpack_from(data, at)
            at += HEAD.size
            codes, ends = (
                list(data[at : at + n]),
                array.array("d", data[at + n : at + 9 * n]).tolist(),
            )
            if len(ends) != n or not n:
                raise ValueError("a step without its segments")
            at += 9 * n
            runq = None
            if flags & RUN_QUEUE:
                runq = array.array("d", data[at : at + 8 * (n + 1)]).tolist()
                at += 8 * (n + 1)
            # agents of earlier versions set no flag LOSS: they send NaN where there is no loss
            steps.append(
                RawStep(
                    index,
                    start,
                    codes,
                    ends,
                    samples,
                    tokens,
                    loss if flags & LOSS or not math.isnan(loss) else None,
                    arm,
                    kind,
                    runq,
                    bool(flags & STREAM),
                )
            )
    except (binascii.Error, struct.error) as error:
        raise ValueError(str(error)) from None
    return steps


class SegmentFold:
    """Makes steps of the segments of one process, in order. `on_device`: the model is on a GPU."""

    def __init__(self) -> None:
        self.on_device = False
        self.torch_ratio = 1.0
        """The share of the time from a forward pass to the next pass that functions of torch take,
        by the samples of the stack; 1 where the rest is short: it is the Python between two
        functions."""
        self.after_step_ratio = 0.0
        """In a program without a DataLoader: the share of the time between an optimizer step and
        the next pass that belongs to the lines after the step. The other lines make the next batch.
        0: not known."""
        self._stacks: deque[StackSample] = deque(maxlen=2 * AFTER_PASS)
        """The samples that separate the lines after a step from the lines that make a batch."""
        self._loss_samples: deque[StackSample] = deque(maxlen=AFTER_PASS)
        self._loaders: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])
        """For each loader: batches that met a pass with gradients, and batches that met only passes
        without."""
        self._waiting: int | None = None
        self._touched = self._graded = self._has_data = False
        self._stream_steps: deque[list[float]] = deque(maxlen=STREAM_STEPS)
        self._marked_steps: deque[list[float]] = deque(maxlen=MARKED_STEPS)
        """Of the last marked steps, the seconds by phase that a counted step does not mark."""
        self._whole = False
        """Whether the last pass with gradients was a framework's training step with its loss."""
        self._passes = self._backwards = 0
        """Passes with gradients, and backward passes, of the steps with all segments."""
        self._modelled = False
        """Whether the last call of the model was seen, and no backward pass has followed it yet."""
        self.generated = self.generated_steps = 0
        """Passes of generation, and the steps that have some."""
        self._last: int | None = None
        """The last mark of the step before."""
        self._exchanges = Exchanges()
        self._collectives_s = self._steps = 0.0
        self.eval_s = self.eval_with_gradients_s = 0.0
        """Seconds of evaluation, and of its passes that recorded gradients."""
        self._outside_s, self._outside_calls, self._outside_steps = 0.0, 0, 0
        """Seconds and number of the collectives that exchange no gradients, and the steps that have
        some."""
        self._backward_s: deque[float] = deque(maxlen=BACKWARD_STEPS)
        self._passed_without: deque[bool] = deque(maxlen=RECENT)
        """For each of the last steps, whether it had a pass without gradients."""

    def learn(self, event: JobKnown | Stacks) -> None:
        """Take from what the agent says of the program what the phases depend on."""
        if isinstance(event, JobKnown):
            self.on_device = event.facts.device.startswith("cuda")
            return
        self._stacks.extend(event.samples)
        if not self._has_data:
            self.after_step_ratio = after_step_ratio(self._stacks, MIN_SAMPLES_AFTER_PASS)
        self._loss_samples.extend(sample for sample in event.samples if sample.part == "loss")
        after = between_passes(
            self._loss_samples,
            self._stacks,
            self._passes / self._backwards if self._backwards else 1.0,
        )
        ratio = (
            torch_ratio(after)
            if sum(sample.weight for sample in after) >= MIN_SAMPLES_AFTER_PASS
            else 1.0
        )
        self.torch_ratio = ratio if ratio <= 1 - MIN_REST_SHARE else 1.0

    def add(self, event: Segments) -> Steps:
        """The same message with steps. Raises ValueError where it is damaged."""
        self._exchanges.add(event.exchanges)
        steps = [self.step(raw) for raw in unpack(event.packed)]
        self._backward_s.extend(step.phases[P_BACKWARD] for step in steps if step.kind == COUNTS)
        self._collectives_s += sum(step.phases[P_COMM] for step in steps)
        self._steps += len(steps)
        return Steps(
            event.t,
            [self._without_waits(step) for step in steps],
            event.cpu_s,
            event.runq_s,
            event.overhead_s,
            event.memory_bytes,
            event.dropped,
            event.rank,
            {
                **event.counters,
                COLLECTIVES: self._collectives_s,
                COLLECTIVES_STEPS: self._steps,
                EVAL_S: self.eval_s,
                EVAL_WITH_GRADIENTS_S: self.eval_with_gradients_s,
                GENERATED: float(self.generated),
                GENERATED_STEPS: float(self.generated_steps),
                OUTSIDE: self._outside_s,
                OUTSIDE_CALLS: float(self._outside_calls),
                OUTSIDE_STEPS: float(self._outside_steps),
            },
            event.exchanges,
            event.collectives,
        )

    def _without_waits(self, step: Step) -> Step:
        """The step with the wait for its exchanges of gradients as `comm`. DistributedDataParallel
        waits within the backward pass, and times only some exchanges. So each step gives the share
        of its backward pass that the wait had lately: the mean wait in a step over the mean
        backward pass. On a GPU that is the mean of the steps on the stream's timeline: the host's
        times of its first steps are short, because the host runs ahead until the queue of the GPU
        is full."""
        on_stream = [phases[P_BACKWARD] for phases in self._stream_steps] if self.on_device else []
        backward_s = on_stream or self._backward_s
        total_s = sum(backward_s)
        if not total_s or not self._exchanges:
            return step
        share = min(MAX_EXPOSED, self._exchanges.exposed_s() * len(backward_s) / total_s)
        return msgspec.structs.replace(
            step,
            phases=_moved(step.phases, share),
            runq=None if step.runq is None else _moved(step.runq, share),
        )

    def step(self, raw: RawStep) -> Step:
        """One step with its phases. The agent's own time belongs to no phase and is not in the wall
        time."""
        phases, delays = [0.0] * len(PHASES), [0.0] * len(PHASES)
        trained = {
            place: code
            for place, code in enumerate(raw.codes)
            if code in (TRAINED, TRAINED_EVAL, EVALUATED)
        }
        in_eval_mode = {place for place, code in trained.items() if code == EVALUATED}
        codes, with_gradients = _passes_by_use(
            self._unwrapped([NO_GRAD if code in trained.values() else code for code in raw.codes])
        )
        self._learn(codes)
        evaluated = self._evaluated(codes, with_gradients | in_eval_mode)
        generated = self._generation(codes, raw, trained, evaluated)
        self._passes += codes.count(FORWARD)
        self._backwards += codes.count(BACKWARD)
        saving = _before_saves(codes)
        fed = self._fed(codes)
        after_step, moved = self._after_step(codes, raw)
        before, after = self._neighbours(codes)
        # a log record splits the remaining time of a framework's training step
        after_whole = _next_but(WHOLE, codes, after)
        unseen = _before_backward(codes)
        begun, own, outside_before = raw.start, 0.0, self._outside_calls
        inside: int | None = None
        unmarked_s, before_saves_s, marked_s = 0.0, 0.0, [0.0] * len(PHASES)
        for i, (code, end) in enumerate(zip(codes, raw.ends, strict=True)):
            seconds, begun = end - begun, end
            if code == OWN:
                own += seconds
                continue
            if code == UNMARKED:
                unmarked_s += seconds
                before_saves_s += seconds if codes[i + 1 : i + 2] == [SAVE] else 0.0
                continue
            if code == COMM and not self._exchanges_gradients(codes, i, before[i], after[i]):
                self._outside_s += seconds
                self._outside_calls += 1
            if code == GAP and i in saving:
                phase = P_CHECKPOINT
            elif i in evaluated and code not in (SAVE, LOG):
                phase = P_EVAL
                self.eval_s += seconds
                self.eval_with_gradients_s += seconds if i in with_gradients else 0.0
            elif i in generated:
                phase = (
                    P_GENERATION
                    if generated[i] == 1 or code != GAP
                    else self._phase(code, before[i], after[i], fed[i])
                )
            elif code == WHOLE and inside == FORWARD and after_whole[i] not in PASSES:
                phase = P_LOSS  # in a framework's training step, after the model's call
            else:
                phase = self._phase(code, before[i], BACKWARD if i in unseen else after[i], fed[i])
            if code in (WHOLE, FORWARD):
                self._whole = code == WHOLE
            if code in MARKS and (code != WHOLE or inside is None):
                inside = code if code == FORWARD and i and codes[i - 1] == WHOLE else None
            if code in (FORWARD, COMPILED, BACKWARD):
                self._modelled = code != BACKWARD
            shares = {phase: 1.0}
            if generated.get(i, 1.0) < 1 and phase != P_GENERATION:
                shares = {phase: 1 - generated[i], P_GENERATION: generated[i]}
            if code == GAP and phase == P_FORWARD and before[i] == FORWARD and not self.on_device:
                shares = self._after_pass(after[i])
            elif i in after_step and phase in (P_DATA, P_FORWARD):
                shares = {phase: 1 - moved, P_OTHER: moved}
            for phase, share in shares.items():
                phases[phase] += share * seconds
                if code not in ALWAYS_MARKED and phase not in RARE:
                    marked_s[phase] += share * seconds
                if raw.runq is not None:
                    delays[phase] += share * (raw.runq[i + 1] - raw.runq[i])
        self._outside_steps += self._outside_calls > outside_before
        wall = raw.ends[-1] - raw.start - own
        if UNMARKED in codes:
            phases = [
                sum(pair)
                for pair in zip(phases, self._divided(unmarked_s, before_saves_s), strict=True)
            ]
            self._last = OPTIMIZER  # a counted step ends after the optimizer, as the others do
        elif raw.index and not raw.on_stream:
            self._marked_steps.append(marked_s)
        if self.on_device:
            phases = self._on_device(phases, wall, raw.on_stream)
        # the account of the first step began in its middle
        kind = SETTLING if raw.index == 0 else raw.kind
        return Step(
            raw.index,
            raw.ends[-1],
            wall,
            raw.samples,
            raw.tokens,
            tuple(phases),
            tuple(delays) if raw.runq else None,
            raw.loss,
            raw.arm,
            kind,
        )

    def _exchanges_gradients(
        self, codes: list[int], place: int, before: int | None, after: int | None
    ) -> bool:
        """Whether a collective may exchange gradients, or belongs to a pass: it lies within the
        pass; or between the backward pass and the optimizer, where DistributedDataParallel does not
        exchange them."""
        around = {
            codes[place - 1] if place else None,
            codes[place + 1] if place + 1 < len(codes) else None,
        }
        if len(around) == 1 and around <= {FORWARD, NO_GRAD, BACKWARD, COMPILED, OPTIMIZER}:
            return True
        return before == BACKWARD and after == OPTIMIZER and not self._exchanges

    def _divided(self, unmarked_s: float, before_saves_s: float) -> list[float]:
        """The unmarked time of a counted step by phase, in the proportions of the last MARKED_STEPS
        marked steps; of those with about as much of it, where there are some. Which steps are
        marked is random. Where each of them has less, what exceeds the mean is `other`: passes are
        regular, and what a program does now and then stands between them. As far as the time lies
        directly before a save, it is checkpoint: the lines that lead up to a save."""
        alike = [
            step
            for step in self._marked_steps
            if unmarked_s / ALIKE < sum(step) < unmarked_s * ALIKE
        ]
        measured = [sum(column) for column in zip(*(alike or self._marked_steps), strict=True)] or [
            0.0
        ] * len(PHASES)
        total_s = sum(measured)
        divided_s = unmarked_s
        if not alike and unmarked_s > ALIKE * max(map(sum, self._marked_steps), default=0.0):
            divided_s = total_s / max(1, len(self._marked_steps))
        divided = [divided_s * seconds / total_s if total_s else 0.0 for seconds in measured]
        exceeding_s = unmarked_s - sum(divided)
        leads_to_save_s = min(max(0.0, exceeding_s), before_saves_s)
        divided[P_CHECKPOINT] += leads_to_save_s
        divided[P_OTHER] += exceeding_s - leads_to_save_s
        return divided

    def _on_device(self, phases: list[float], wall: float, on_stream: bool) -> list[float]:
        """The phases of a step on a GPU. The host runs ahead of the device, so only steps on the
        stream's timeline show where the time goes: other steps divide their time in the same
        proportions as the last STREAM_STEPS of those, and as those of about the same length where
        there are some. Saving, logging and evaluation are rare: their times are those of the
        host."""
        if on_stream:
            self._stream_steps.append(
                [0.0 if phase in RARE else seconds for phase, seconds in enumerate(phases)]
            )
            return phases
        divided = wall - sum(phases[phase] for phase in RARE)
        alike = [
            step for step in self._stream_steps if divided / ALIKE < sum(step) < divided * ALIKE
        ]
        measured = [sum(column) for column in zip(*(alike or self._stream_steps), strict=True)]
        kept = {phase: phases[phase] for phase in RARE}
        if measured and not alike and phases[P_DATA] > divided / 2:
            # No measured step has waited so long for data. The host has measured the wait; at its
            # start the GPU still does the work of a step.
            work = (sum(measured) - measured[P_DATA]) / len(self._stream_steps)
            kept[P_DATA] = max(0.0, phases[P_DATA] - work)
            divided, measured[P_DATA] = divided - kept[P_DATA], 0.0
        total = sum(measured)
        if not total:
            return phases
        return [
            kept.get(phase, divided * seconds / total) for phase, seconds in enumerate(measured)
        ]

    def _phase(self, code: int, before: int | None, after: int | None, fed: bool) -> int:
        if code >= LOADER:
            return P_DATA
        if code == COMPILED:
            return P_OPTIMIZER if before == BACKWARD else P_FORWARD
        if code != GAP:
            return FIXED[code]
        if after == BACKWARD:
            if self._whole:
                return P_OTHER
            # the model is called in a way that is not seen
            return P_LOSS if self._modelled else P_FORWARD
        if after == OPTIMIZER and before == BACKWARD:
            return P_OPTIMIZER  # clipping, unscaling
        if (before == FORWARD and after in (ZERO, FORWARD, NO_GRAD)) or (
            before == NO_GRAD and after == ZERO
        ):
            return P_FORWARD
        if before == NO_GRAD and after == FORWARD and self._has_data:
            # a teacher's output; without a loader, an environment may run in these lines
            return P_FORWARD
        if not self._has_data and (after in PASSES or (before == OPTIMIZER and after == ZERO)):
            return P_DATA  # no loader: the lines up to the pass, also those before zero_grad
        if fed and self.on_device:
            return P_H2D
        return P_OTHER

    def _after_step(self, codes: list[int], raw: RawStep) -> tuple[set[int], float]:
        """Return the gaps in which the lines after the last optimizer step run, and the share of
        these gaps that these lines take. Without a loader, the lines that make the next batch run
        in the same gaps."""
        if self._has_data or not self.after_step_ratio or self._last != OPTIMIZER:
            return set(), 0.0
        first, first_s, rest_s, begun = set[int](), 0.0, 0.0, raw.start
        for i, (code, end) in enumerate(zip(codes, raw.ends, strict=True)):
            if code in LATER or code >= LOADER:
                break
            if code == GAP and not rest_s and MARKS.isdisjoint(codes[:i]):
                first.add(i)
                first_s += end - begun
            elif code == GAP:
                rest_s += end - begun
            begun = end
        return first, min(
            1.0, self.after_step_ratio * (first_s + rest_s) / first_s
        ) if first_s else 0.0

    def _after_pass(self, after: int | None) -> dict[int, float]:
        """The phases of the time between a forward pass and the next mark, with their shares.
        Without a loader, the lines between two passes make the input of the next one: an
        environment. On a GPU the times are not known: a GPU works after functions of torch have
        returned."""
        if self.torch_ratio >= 1:
            return {P_FORWARD: 1.0}
        makes_input = not self._has_data and after in (FORWARD, NO_GRAD)
        return {
            P_FORWARD: self.torch_ratio,
            P_DATA if makes_input else P_OTHER: 1 - self.torch_ratio,
        }

    def _unwrapped(self, codes: list[int]) -> list[int]:
        """Of an optimizer step that holds its own passes (a closure), only what follows a backward
        pass is the optimizer's; the rest is a gap."""
        codes, before = list(codes), None
        for i, code in enumerate(codes):
            following = codes[i + 1] if i + 1 < len(codes) else None
            holds = following in (FORWARD, WHOLE, NO_GRAD, DATA) or (
                following is not None and following >= LOADER
            )
            if code == OPTIMIZER and (
                before not in (BACKWARD, OPTIMIZER, GAP, None) or (holds and before != BACKWARD)
            ):
                codes[i] = GAP
            before = before if code == OWN else code
        return codes

    def _generation(
        self, codes: list[int], raw: RawStep, trained: dict[int, int], evaluated: set[int]
    ) -> dict[int, float]:
        """Return the segments of generation, and the share of each segment that belongs to
        generation. Generation is passes without gradients of the trained model, if a step has many
        of them. The time between two such passes belongs to generation if it is shorter than the
        passes; otherwise an environment runs there. After the last pass, the mean time between two
        passes belongs to generation too. Passes in eval mode count only if most steps have passes
        without gradients; otherwise they may be an evaluation."""
        often = 2 * sum(self._passed_without) > len(self._passed_without)
        passes = [
            place
            for place, code in trained.items()
            if place not in evaluated and (often or code == TRAINED)
        ]
        if len(passes) < MIN_GENERATED:
            return {}
        self.generated += len(passes)
        self.generated_steps += 1
        gaps = [
            before + 1
            for before, after in itertools.pairwise(passes)
            if after == before + 2 and codes[before + 1] == GAP
        ]
        seconds = [ended - begun for begun, ended in itertools.pairwise([raw.start, *raw.ends])]
        gaps_s, last = sum(seconds[place] for place in gaps), passes[-1] + 1
        shares = dict.fromkeys(passes, 1.0)
        if gaps and gaps_s <= sum(seconds[place] for place in passes):
            shares |= dict.fromkeys(gaps, 1.0)
            if codes[last : last + 1] == [GAP] and seconds[last] > 0:
                shares[last] = min(1.0, gaps_s / len(gaps) / seconds[last])
        return shares

    def _learn(self, codes: list[int]) -> None:
        """Count for each loader whether its batches meet passes with gradients."""
        for code in codes:
            if code >= LOADER:
                self._has_data = True
                if self._touched and self._waiting is not None:
                    self._loaders[self._waiting][not self._graded] += 1
                if self._touched:
                    self._touched = self._graded = False
                self._waiting = code
            elif code == DATA:
                self._has_data = True
            elif code == NO_GRAD:
                self._touched = True
            elif code in (FORWARD, WHOLE, BACKWARD, UNMARKED):
                self._touched = self._graded = True

    def _evaluated(self, codes: list[int], in_eval_mode: set[int]) -> set[int]:
        """Segments of evaluation: batches that met only passes without gradients, and all between
        such passes; and evaluation loaders. Passes in eval mode (`in_eval_mode`: with gradients
        that nobody uses, or of the trained model on whole batches) are an evaluation where most
        steps have no such pass. What lies between two of them belongs to the evaluation."""
        evaluated, batch, touched, graded = set(), list[int](), False, False
        self._passed_without.append(NO_GRAD in codes)
        rare = 2 * sum(self._passed_without) <= len(self._passed_without)
        # without batches that are seen, an environment may run between passes
        ends = (OPTIMIZER, ZERO) if self._has_data and rare else ()
        tests = {loader for loader, (train, test) in self._loaders.items() if test > train}
        for i, code in enumerate(codes):
            data = code == DATA or code >= LOADER
            if data or (touched and code in ends):
                if touched and not graded:
                    evaluated.update(batch)
                batch, touched, graded = [], False, False
            batch.append(i)
            if code == NO_GRAD:
                touched = True
            elif code in (FORWARD, WHOLE, BACKWARD, UNMARKED):
                graded = True
            if code in tests:
                evaluated.add(i)
        if touched and not graded:
            evaluated.update(batch)
        return evaluated | _from_first_to_last(codes, in_eval_mode) if rare else evaluated

    def _fed(self, codes: list[int]) -> list[bool]:
        """For each segment, whether it lies between a batch and the pass that uses it. Many
        programs zero the gradients there."""
        marks = [DATA if code >= LOADER else code for code in codes]
        fed, ahead = [False] * len(marks), False
        for i in range(len(marks) - 1, -1, -1):
            fed[i] = ahead
            ahead = marks[i] in PASSES or (ahead and marks[i] in (GAP, ZERO, OWN))
        last = self._last
        for i, mark in enumerate(marks):
            fed[i] = fed[i] and last == DATA
            last = mark if mark in MARKS and mark != ZERO else last
        return fed

    def _neighbours(self, codes: list[int]) -> tuple[list[int | None], list[int | None]]:
        """For each segment the last mark before it, and the next mark after it. Loaders count as
        DATA."""
        marks = [DATA if code >= LOADER else code if code in MARKS else None for code in codes]
        before: list[int | None] = []
        last = self._last
        for mark in marks:
            before.append(last)
            last = mark if mark is not None else last
        self._last = last
        after: list[int | None] = [None] * len(marks)
        following: int | None = None
        for i in range(len(marks) - 1, -1, -1):
            after[i] = following
            following = marks[i] if marks[i] is not None else following
        return before, after


def _next_but(left_out: int, codes: list[int], after: list[int | None]) -> list[int | None]:
    """Return for each segment the next mark with another code than `left_out`."""
    following: list[int | None] = list(after)
    for i in range(len(codes) - 1, -1, -1):
        if following[i] == left_out:
            place = codes.index(left_out, i + 1)
            following[i] = following[place]
    return following


def _moved(seconds: tuple[float, ...], share: float) -> tuple[float, ...]:
    """Seconds by phase, with this share of the backward pass in `comm`."""
    moved = list(seconds)
    moved[P_BACKWARD], moved[P_COMM] = (
        (1 - share) * seconds[P_BACKWARD],
        seconds[P_COMM] + share * seconds[P_BACKWARD],
    )
    return tuple(moved)


def _passes_by_use(codes: list[int]) -> tuple[list[int], set[int]]:
    """Give each pass in eval mode the code of its use: FORWARD where a backward pass follows before
    another pass or batch, else NO_GRAD, because nobody uses its gradients. Returns the codes of the
    step, and the places of the passes whose gradients nobody uses."""
    codes, unused, used = list(codes), set[int](), False
    for i in range(len(codes) - 1, -1, -1):
        code = codes[i]
        if code == EVAL:
            codes[i] = FORWARD if used else NO_GRAD
            if not used:
                unused.add(i)
        elif code == BACKWARD:
            used = True
        elif code in MARKS - {ZERO} or code >= LOADER:
            used = False
    return codes, unused


def _from_first_to_last(codes: list[int], passes: set[int]) -> set[int]:
    """The passes of an evaluation, and all between them but saving, logging and passes of
    training."""
    evaluated, since = set[int](), list[int]()
    inside = False
    for i, code in enumerate(codes):
        if i in passes:
            evaluated.update((*since, i))
            since, inside = [], True
        elif code in (FORWARD, WHOLE, COMPILED, BACKWARD, OPTIMIZER, UNMARKED):
            since, inside = [], False
        elif inside:
            since.append(i)
    return evaluated


def _before_backward(codes: list[int]) -> set[int]:
    """Gaps before a zero_grad that no pass separates from a backward pass: the model is called
    there, in a way that is not seen."""
    gaps, ahead, zeroed = set(), False, False
    for i in range(len(codes) - 1, -1, -1):
        if codes[i] == BACKWARD:
            ahead, zeroed = True, False
        elif codes[i] == ZERO:
            zeroed = ahead
        elif codes[i] in MARKS or codes[i] >= LOADER:
            ahead = zeroed = False
        elif codes[i] == GAP and zeroed:
            gaps.add(i)
    return gaps


def _before_saves(codes: list[int]) -> set[int]:
    """Gaps that lead up to a save, or lie between two saves: what is saved is gathered there."""
    gaps, ahead = set(), False
    for i in range(len(codes) - 1, -1, -1):
        if codes[i] == SAVE:
            ahead = True
        elif codes[i] in MARKS or codes[i] >= LOADER:
            ahead = False
        elif codes[i] == GAP and ahead:
            gaps.add(i)
    return gaps
