"""Whether two optimizer steps belong to one iteration of the program's loop: read from the call stacks, and from the loops in the byte code.

Only for programs with several optimizers. The first frame in which two call stacks differ shows how the program came from one call to the other:
forward through the lines of an iteration, or over the start of the loop.
"""

from __future__ import annotations

import dis
from bisect import bisect_right
from itertools import permutations
from types import CodeType, FrameType
from typing import NamedTuple

from ..watch import OWN

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
    found: Stack = []
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith((OWN, "<gpuconsole")):
            found.append((id(frame), code, frame.f_lasti))
        frame = frame.f_back
    return found[::-1]


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
        self._known: dict[tuple[int, int, int], bool] = {}

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
        known = self._known.get(key)
        if known is not None:
            return known
        flow = self._flow(code)
        before, after = flow.instruction(before), flow.instruction(after)
        around_before, around_after = flow.around(before), flow.around(after)
        left, entered = ([loop for loop in one if loop not in other] for one, other in permutations((around_before, around_after)))
        inner = {(id(code), loop) for loop in left + entered}
        if inner - self._inner and ((left and entered) or len(inner) == len(around_before + around_after) or turns > MOST_TURNS):
            found = False  # loops one after the other, or no loop around both
        else:
            found = flow.reaches(before, after, [loop for loop in around_after if (id(code), loop) not in self._inner])
            if found and inner - self._inner:
                self._inner |= inner
                self._known.clear()
        self._known[key] = found
        return found

    def _flow(self, code: CodeType) -> Flow:
        found = self._flows.get(id(code))
        if found is None:
            found = self._flows[id(code)] = Flow(code)  # it keeps the code, so the identity stays valid
        return found


iterations = Iterations()
