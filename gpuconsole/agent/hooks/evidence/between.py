"""What the program does between two forward passes of one step: torch's functions on what the passes return, or lines without torch.

Most programs go on with the model there: a second module, a penalty, the loss. A loop of reinforcement learning runs its environment there. The
segments are the same, so torch's functions are timed between the passes of one step.
"""

from __future__ import annotations

import statistics
import time
from typing import Any, NamedTuple

from ...clock import now
from ..recorder import BACKWARD, FORWARD, GAP, NO_GRAD, ZERO
from ..watch import recorder

RATIO, LAST_RATIO = "between_torch_ratio", "last_torch_ratio"
"""Facts: the share of the time between two forward passes in which a function of torch runs, and the same after the last pass, where the loss is
made. They are given only if the rest is large. If a step has one pass, the rest is Python code that works on the outputs, such as a metric."""
LEAST_S, LEAST_RATIO = 0.0002, 1 / 3
"""Seconds of one stretch without torch, and the share of such stretches in a gap. Shorter stretches are the cost of Python between two functions of torch.
In a PPO loop, torch.distributions has stretches of 8 µs. They add up to 0.3 ms in the gap between policy and value."""


class Gap(NamedTuple):
    """The seconds of a gap, those in functions of torch, those of its long stretches without torch, and the CPU seconds of the latter. A thread without a
    core does not work."""

    whole_s: float
    torch_s: float
    rest_s: float
    work_s: float


class BetweenPasses:
    """Times the gaps between the forward passes of one step. `begin` and `end` are called by the pass before a gap and by the pass after it."""

    def __init__(self) -> None:
        from torch.overrides import TorchFunctionMode

        between = self
        self.gaps: list[Gap] = []
        """Those between two passes."""
        self.last_gaps: list[Gap] = []
        """Those before a backward pass."""
        self.last_work: list[Gap] = []
        """Those of the latter that hold nothing else."""
        self._torch_s = self._rest_s = self._work_s = self._left = self._left_busy_s = 0.0
        self._segments: int | None = None
        """The number of segments at the begin of the gap under way."""
        self._entered = False
        """Whether the mode is in the stack of modes, or will be: torch takes a mode away while the mode handles a function, and puts the mode back after."""

        class Times(TorchFunctionMode):
            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                between._stretch_ends()
                begun = now()
                try:
                    return func(*args, **(kwargs or {}))
                finally:
                    between._stretch_begins()
                    between._torch_s += between._left - begun

        self._mode = Times()

    def begin(self) -> None:
        """A pass ends, and is still the present segment. Where the program has entered a mode, nothing is timed: the program would leave ours in its
        place."""
        if recorder.stack[-1] == FORWARD and (self._entered or not depth()):
            self._torch_s = self._rest_s = self._work_s = 0.0
            self._segments = len(recorder.codes)
            if not self._entered:
                self._entered = True
                self._mode.__enter__()
            self._stretch_begins()

    def _stretch_begins(self) -> None:
        """A function of torch, or the pass before the gap, ends."""
        self._left, self._left_busy_s = now(), time.thread_time()

    def _stretch_ends(self) -> None:
        """A function of torch, or the pass after the gap, begins."""
        if (rest_s := now() - self._left) >= LEAST_S:
            self._rest_s += rest_s
            self._work_s += time.thread_time() - self._left_busy_s

    def end(self) -> None:
        """A pass has begun. A gap with other segments in it, such as a batch or an optimizer step, is not counted; gradients may be zeroed in it."""
        begun, self._segments = self._segments, None
        if begun is None:
            return
        self._stretch_ends()
        self.stop()
        gap, *further = recorder.codes[begun + 1 :]
        if recorder.codes[begun] != FORWARD or gap != GAP or not {*further} <= {ZERO, GAP}:
            return
        timed = Gap(recorder.times[begun + 1] - recorder.times[begun], self._torch_s, self._rest_s, self._work_s)
        if recorder.stack[-1] == BACKWARD:
            self.last_gaps.append(timed)
            if not further:
                self.last_work.append(timed)
        elif recorder.stack[-1] in (FORWARD, NO_GRAD) and not further:
            self.gaps.append(timed)

    def stop(self) -> bool:
        """Whether the mode is out of the stack of modes. While the mode handles a function, such as `Tensor.backward`, the mode is not in
        the stack; torch puts the mode back after the function."""
        if self._entered and remove(self._mode):
            self._entered = False
        return not self._entered

    def facts(self) -> dict[str, float]:
        """RATIO where much of the time is spent without torch, and then LAST_RATIO; LAST_RATIO alone where only the last gap has much work without torch;
        else nothing."""
        if (ratio := _torch_ratio(self.gaps)) < 1:
            return {RATIO: ratio, LAST_RATIO: _torch_ratio(self.last_gaps)}
        gap_s, work_s = sum(gap.whole_s for gap in self.last_work), sum(gap.work_s for gap in self.last_work)
        return {LAST_RATIO: max(0.0, 1 - work_s / gap_s)} if work_s > LEAST_RATIO * gap_s else {}


def _torch_ratio(gaps: list[Gap]) -> float:
    """The share of the gaps that the program spends in functions of torch. 1 where the rest is short in most gaps."""
    if not gaps or statistics.median(gap.rest_s / gap.whole_s for gap in gaps) < LEAST_RATIO:
        return 1.0
    return sum(gap.torch_s for gap in gaps) / sum(gap.whole_s for gap in gaps)


def depth() -> int:
    """The number of modes that are entered."""
    import torch

    return int(torch._C._len_torch_function_stack())


def remove(mode: Any) -> bool:
    """Take `mode` from the stack of modes. The program may have entered modes of its own since: they stay. Returns whether it was there."""
    import torch

    above, was_there = [], False
    while depth() and not was_there:
        top = torch._C._pop_torch_function_stack()
        was_there = top is mode
        if not was_there:
            above.append(top)
    for other in reversed(above):
        torch._C._push_on_torch_function_stack(other)
    return was_there
