"""What a step of the program is, where that is not plain: with several optimizers, and without an optimizer.

Several optimizers: whether two optimizer steps belong to one iteration of the program's loop is read from the call stacks, and from the
loops in the byte code. The first frame in which two call stacks differ shows how the program came from one call to the other: forward
through the lines of an iteration, or over the start of the loop.

No optimizer (`p -= lr * p.grad`, or a class that is none of torch's optimizers): such a program zeroes its gradients, or changes its
weights, between two backward passes of different steps. Backward passes that add to the same gradients are one step. The end of a step is
known at the next backward pass only: it is where the next batch or forward pass began.
"""

from __future__ import annotations

import ctypes
import dis
import gc
import sys
import weakref
from bisect import bisect_right
from itertools import permutations
from types import CodeType, FrameType
from typing import Any, NamedTuple

from ...clock import now
from ..recorder import BACKWARD, COMPILED, DATA, EVAL, FORWARD, GAP, LOADER, OPTIMIZER, WHOLE, WITHOUT_GRADIENTS, Mark
from ..watch import OWN, recorder, watch

# --- several optimizers --------------------------------------------------------------------------------------

Stack = list[tuple[int, CodeType, int]]
"""Identity of the frame, its code, the offset of the instruction that runs. The outermost frame first."""
MOST_TURNS = 16
"""An inner loop with so many optimizer steps is a loop over batches, not a part of one iteration."""
JUMPS = {*dis.hasjrel, *dis.hasjabs}
NO_WAY_ON = (
    "JUMP_FORWARD", "JUMP_ABSOLUTE", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT",
    "RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE",
)  # fmt: skip
"""Instructions after which the next one does not run."""


class Loop(NamedTuple):
    """The offsets of its first and its last instruction."""

    start: int
    end: int


def stack_of(frame: FrameType | None) -> Stack:
    """The call stack without the agent's own frames. Frames are not kept: that would keep the variables of the program alive."""
    stack: Stack = []
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith((OWN, "<gpuconsole")):
            stack.append((id(frame), code, frame.f_lasti))
        frame = frame.f_back
    return stack[::-1]


class Flow:
    """The ways through the instructions of a function, without exceptions. `following`: the offsets of those that may run next. `loops`: the
    innermost first."""

    def __init__(self, code: CodeType) -> None:
        self.code = code
        self.following: dict[int, list[int]] = {}
        instructions = list(dis.get_instructions(code))
        backward = list[Loop]()
        for instruction, later in zip(instructions, [*instructions[1:], None], strict=True):
            ways = [] if later is None or instruction.opname in NO_WAY_ON else [later.offset]
            if instruction.opcode in JUMPS:
                ways.append(instruction.argval)
                if instruction.argval <= instruction.offset:
                    backward.append(Loop(instruction.argval, instruction.offset))
            self.following[instruction.offset] = ways
        self._offsets = list(self.following)
        loops = list[Loop]()
        for loop in sorted(backward):
            for other in list(loops):  # `continue` in a while loop makes two jumps that overlap
                if other.start == loop.start or other.start < loop.start <= other.end < loop.end:
                    loops.remove(other)
                    loop = Loop(other.start, max(loop.end, other.end))
            loops.append(loop)
        self.loops = sorted(loops, key=lambda loop: loop.end - loop.start)

    def instruction(self, at: int) -> int:
        """The instruction that runs at an offset: while it calls a function, the offset may be within its inline cache."""
        return self._offsets[bisect_right(self._offsets, at) - 1]

    def around(self, at: int) -> list[Loop]:
        """The loops around an instruction."""
        return [loop for loop in self.loops if loop.start <= at <= loop.end]

    def reaches(self, before: int, after: int, closed: list[Loop]) -> bool:
        """Whether a way leads from `before` to `after` that does not begin one of the loops `closed` again."""
        seen, waiting = set[int](), [before]
        while waiting:
            at = waiting.pop()
            for to in self.following[at]:
                again = to <= at and next(loop for loop in self.loops if loop.start <= to and at <= loop.end) in closed
                if to not in seen and not again:
                    seen.add(to)
                    waiting.append(to)
        return after in seen


class Iterations:
    """`on`: whether the program has several optimizers; then `batch` is where the first batch since the last optimizer step was made."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """As in a process that has not trained yet."""
        self.on = self.sees_batches = False
        self.batch: Stack | None = None
        self._flows: dict[int, Flow] = {}
        self._inner: set[tuple[int, Loop]] = set()
        """Loops that run within an iteration, such as the steps of a critic before that of the generator."""
        self._answers: dict[tuple[int, int, int], bool] = {}

    def batch_begins(self, frame: FrameType) -> None:
        """A batch is made."""
        self.sees_batches = True
        if self.batch is None:
            self.batch = stack_of(frame)

    def same(self, before: Stack, batch: Stack | None, after: Stack, turns: float, repeats: bool) -> bool:
        """Whether the optimizer steps at `before` and `after` belong to one iteration. `batch`: where a batch was made between them. `turns`: steps
        of the first optimizer for each step of the second. `repeats`: whether one call that runs again on the same batch is one iteration."""
        if batch is not None:
            return self._onward(before, batch, turns, False) and self._onward(batch, after, turns, True)
        return self._onward(before, after, turns, repeats)

    def _onward(self, before: Stack, after: Stack, turns: float, repeats: bool) -> bool:
        """Whether the program came from `before` to `after` without a new iteration. `repeats`: the answer where one call leads to both."""
        common = list[tuple[CodeType, int]]()
        for (frame, code, at), (frame_after, code_after, at_after) in zip(before, after, strict=False):
            if frame != frame_after or code is not code_after:
                break
            if at != at_after:
                return self._within(code, at, at_after, turns)
            common.append((code, at))
        if repeats:
            return True
        for code, at in reversed(common):
            around = self._flow(code).around(at)
            if around:
                return (id(code), around[0]) in self._inner
        return False

    def _within(self, code: CodeType, before: int, after: int, turns: float) -> bool:
        """The same for two instructions of one function."""
        key = id(code), before, after
        answer = self._answers.get(key)
        if answer is not None:
            return answer
        flow = self._flow(code)
        before, after = flow.instruction(before), flow.instruction(after)
        around_before, around_after = flow.around(before), flow.around(after)
        left, entered = (
            [loop for loop in around if loop not in around_other] for around, around_other in permutations((around_before, around_after))
        )
        inner = {(id(code), loop) for loop in left + entered}
        if inner - self._inner and ((left and entered) or len(inner) == len(around_before + around_after) or turns > MOST_TURNS):
            answer = False  # loops one after the other, or no loop around both
        else:
            answer = flow.reaches(before, after, [loop for loop in around_after if (id(code), loop) not in self._inner])
            if answer and inner - self._inner:
                self._inner |= inner
                self._answers.clear()
        self._answers[key] = answer
        return answer

    def _flow(self, code: CodeType) -> Flow:
        flow = self._flows.get(id(code))
        if flow is None:
            flow = self._flows[id(code)] = Flow(code)  # it keeps the code, so the identity stays valid
        return flow


iterations = Iterations()


# --- no optimizer --------------------------------------------------------------------------------------------

MOST_BACKWARDS = 64
"""Backward passes without an update after which the program counts as one that does not train. Once it has trained, other weights are tracked."""
LONGEST_STEP = 1024
"""Backward passes without an update that are no step: their segments are dropped."""
ELSEWHERE = 8
"""Backward passes in a row that give the tracked weights no gradient, after which other weights are tracked. More than the five steps that a critic
makes between two of a generator."""
TRACKED = 4
"""Weights that are looked at before each backward pass."""
READ, VALUE_BYTES = 2, 64
"""Of so many of the tracked weights, if they are on the CPU, so many bytes are compared: an update through `.data` may change no version."""
FREE_LOOKS = 8
"""Looks at all objects after the first one, which need not be rare."""
LOOK_SHARE = 0.01
"""The share of time that further looks may take."""
NEXT_STEP = (DATA, FORWARD, *WITHOUT_GRADIENTS, EVAL, COMPILED, WHOLE)
"""Segments that belong to the next step, as do those of a DataLoader. What comes before them updates the weights."""


class OwnUpdates:
    """`on`: whether the account was begun by a backward pass of a program without an optimizer. `confirmed`: whether an update was seen."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """As in a process that has not trained yet."""
        self.on = self.confirmed = self.over = False
        self._tracked: list[weakref.ref[Any]] = []
        self._copies: list[Any] = []
        """The tracked weights as they were at the start; empty once an update was seen."""
        self._choosing = False
        """Whether all weights with gradients are tracked, until some of them change."""
        self._stale = False
        """Whether other weights, or new copies, are due after the next backward pass."""
        self._before: list[tuple[Any, ...]] = []
        """The states before the last backward pass."""
        self._seen: list[tuple[Any, ...]] = []
        """The states after the last backward pass."""
        self._end: Mark | None = None
        """The end of the last backward pass."""
        self._backwards = self._elsewhere = 0
        self._tries = 0
        """Backward passes after which the account might have begun."""
        self._looks, self._looked_t, self._look_s = 0, 0.0, 0.0

    def may_begin(self) -> bool:
        """Whether a backward pass that has just ended may be the first of a program without an optimizer. Where the first passes
        show no weights, the 2nd, 4th, 8th and so on of the next ones are looked at."""
        if self.over or recorder.index or watch.optimizers:
            return False
        self._tries += 1
        return self._tries & (self._tries - 1) == 0

    def begin(self) -> None:
        """Begin the account after the first backward pass that leaves gradients."""
        weights = [] if capturing() else with_gradients()
        if not weights:
            self.over = self._tries >= MOST_BACKWARDS
            return
        self._track(weights)
        self.on = True
        recorder.begin([BACKWARD])
        recorder.leave()
        self._stale = False
        self.backward_ended()

    def _track(self, weights: list[Any]) -> None:
        """Track the smallest of the weights, and keep copies of them."""
        watch.weights = [weakref.ref(weight) for weight in weights]
        smallest = sorted(weights, key=lambda weight: weight.numel())[:TRACKED]
        self._tracked = [weakref.ref(weight) for weight in smallest]
        self._copies = [weight.detach().clone() for weight in smallest]

    def backward_ended(self) -> None:
        """Remember where the backward pass has ended, and what the gradients are."""
        states = self._states()
        self._elsewhere = self._elsewhere + 1 if states == self._before else 0
        tracked = self._tracked
        if self._choosing:
            self._choose(states)
        self._end = recorder.mark()
        self._backwards += 1
        if not self.confirmed:
            if self._backwards > MOST_BACKWARDS:
                self.give_up()
            elif self._stale and not capturing():
                self._stale = False
                self._track(with_gradients())
        else:
            self._stale |= self._elsewhere >= ELSEWHERE or self._backwards % MOST_BACKWARDS == 0
            if self._stale and self._may_look():
                self._look()
        if self._backwards >= LONGEST_STEP:
            self._drop()
        self._seen = states if self._tracked is tracked else self._states()

    def backward_begins(self) -> bool:
        """Whether a step has ended since the last backward pass; it is split off then. Gradients that are zeroed are no update: a program may look at
        gradients only."""
        self._before = self._states()
        if self._end is None or self._before == self._seen or not (self.confirmed or self._updated()):
            return False
        if self._choosing:
            self._choose(self._before)
        self._stale |= () in self._before
        self._split(self._end)
        return True

    def _updated(self) -> bool:
        """Whether the weights have changed since the start. Where they do not exist any more, they were no weights, or the program makes new tensors:
        the account may begin again."""
        import torch

        weights = watch.alive(self._tracked)
        if len(weights) < len(self._tracked):
            self.give_up()
            self.over = self._tries >= MOST_BACKWARDS
            return False
        if any(kind(weight) != kind(copy) for weight, copy in zip(weights, self._copies, strict=True)):
            self._stale = True  # the program has moved or cast its model
            return False
        if capturing():
            return False
        return not all(torch.equal(weight, copy) for weight, copy in zip(weights, self._copies, strict=True))

    def _may_look(self) -> bool:
        return self._looks < FREE_LOOKS or now() - self._looked_t >= self._look_s / LOOK_SHARE

    def _look(self) -> None:
        """Track all weights with gradients until some of them change: the program trains others than before, a second model perhaps."""
        begun = now()
        self._tracked = [weakref.ref(weight) for weight in with_gradients()]
        self._looked_t = now()
        self._look_s, self._looks = self._looked_t - begun, self._looks + 1
        self._choosing, self._stale, self._elsewhere = bool(self._tracked), False, 0

    def _choose(self, states: list[tuple[Any, ...]]) -> None:
        """Track the smallest of the weights that have changed since they were seen, or whose gradients have."""
        changed = [ref for ref, seen, state in zip(self._tracked, self._seen, states, strict=True) if state and state != seen]
        if not changed:
            return
        watch.weights = changed
        smallest = sorted(watch.alive(changed), key=lambda weight: weight.numel())[:TRACKED]
        self._tracked, self._choosing = [weakref.ref(weight) for weight in smallest], False
        self._before = self._states()

    def optimizer_made(self) -> None:
        """The program has an optimizer, which shows the steps from now on."""
        if self.on and not self.confirmed:
            self.give_up()
        elif self.on:
            self.backward_begins()
        self.on, self.over = False, True

    def close(self) -> None:
        """The process ends: the last update has been made, unless an exception came before it."""
        if not (self.on and self.confirmed):
            return
        if hasattr(sys, "last_value"):
            self.backward_begins()
        elif self._end is not None:
            self._split(self._end)

    def give_up(self) -> None:
        """The program does not train in a way that is seen. What it did so far belongs to no step, not to those of a later optimizer either."""
        self.on, self.over, self._copies = False, True, []
        self._drop()
        recorder.off()

    def _drop(self) -> None:
        """Forget the step under way. The next one begins now."""
        recorder.codes, recorder.times, recorder.start = [], [], now()
        recorder.samples = recorder.tokens = recorder.passes = recorder.backwards = 0
        recorder.loss = None
        self._end, self._backwards = None, 0

    def _split(self, end: Mark) -> None:
        """End the step where the next one began: the lines after the last backward pass of the step are its update."""
        codes, first = recorder.codes, end.segments
        following = (i for i in range(first, len(codes)) if codes[i] >= LOADER or codes[i] in NEXT_STEP)
        last = next(following, first)
        for i in range(first, last):
            if codes[i] == GAP:
                codes[i] = OPTIMIZER
        recorder.split(end._replace(segments=last))
        recorder.passes = recorder.backwards = 0
        watch.micro_batches = self._backwards
        self.confirmed, self._backwards, self._end, self._copies = True, 0, None, []

    def _states(self) -> list[tuple[Any, ...]]:
        """The versions and the places of the tracked weights and their gradients, and some bytes of the smallest weights; empty for a
        weight that does not exist any more."""
        import torch

        strided, plain = torch.strided, (torch.nn.Parameter, torch.Tensor)
        states: list[tuple[Any, ...]] = []
        for ref in self._tracked:
            weight = ref()
            if weight is None:
                states.append(())
                continue
            gradient = weight.grad
            read = weight.is_cpu and len(states) < READ and type(weight) in plain and weight.layout == strided and weight.is_contiguous()
            state: tuple[Any, ...] = weight._version, some_bytes(weight) if read else b""
            if gradient is not None:  # a sparse gradient has no address
                state += (gradient.data_ptr() if gradient.layout == strided else 0, gradient._version)
            states.append(state)
        return states


def some_bytes(weight: Any) -> bytes:
    """The first bytes of a weight on the CPU, read without an operator: a dispatch mode of the program would see an operator."""
    storage, size = weight.untyped_storage(), weight.element_size()
    offset, length = weight.storage_offset() * size, min(VALUE_BYTES, weight.numel() * size)
    if storage.nbytes() < offset + length:  # a program may free a storage
        return b""
    return ctypes.string_at(storage.data_ptr() + offset, length)


def kind(tensor: Any) -> tuple[Any, ...]:
    return tensor.device, tensor.dtype, tensor.shape


def capturing() -> bool:
    """Whether the program captures a CUDA graph. A wait for the device would break the capture."""
    import torch

    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def with_gradients() -> list[Any]:
    """All weights that have a gradient: parameters of modules if there are any, else other tensors. One look at all objects (60 ms)."""
    import torch

    everything = gc.get_objects()
    kinds = {kind for kind in set(map(type, everything)) if issubclass(kind, torch.Tensor)}
    tensors = [
        tensor for tensor in everything if type(tensor) in kinds and tensor.requires_grad and tensor.is_leaf and tensor.grad is not None
    ]
    return [tensor for tensor in tensors if isinstance(tensor, torch.nn.Parameter)] or tensors


own_updates = OwnUpdates()
