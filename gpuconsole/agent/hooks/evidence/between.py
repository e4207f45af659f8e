"""What the program does between two forward passes of one step: torch's functions on what the passes return, or lines without torch.

Most programs go on with the model there: a second module, a penalty, the loss. A loop of reinforcement learning runs its environment there. The
segments are the same, so torch's functions are timed between the passes of one step.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from ...clock import now
from ..recorder import BACKWARD, FORWARD, GAP, NO_GRAD, ZERO
from ..watch import recorder

RATIO, LAST_RATIO = "between_torch_ratio", "last_torch_ratio"
"""Facts: the share of the time between two forward passes in which a function of torch runs, and the same after the last pass, where the loss is
made. They are given only if the rest is large. After the only pass of a step, the rest is the program's own work on the outputs: a figure in Python."""
LEAST_S, LEAST_RATIO = 0.0001, 1 / 3
"""Seconds without torch in the median gap, and their share of it. Below, they are the cost of Python between the parts of a model."""


class BetweenPasses:
    """Times the gaps between the forward passes of one step. `begin` and `end` are called by the pass before a gap and by the pass after it."""

    def __init__(self) -> None:
        from torch.overrides import TorchFunctionMode

        between = self
        self.gaps: list[tuple[float, float]] = []
        """For each gap its seconds, and those in functions of torch."""
        self.last_gaps: list[tuple[float, float]] = []
        """The same for the gaps before a backward pass."""
        self.last_work: list[tuple[float, float]] = []
        """For each of these gaps its seconds, and the CPU seconds of its long stretches without torch."""
        self._torch_s = self._work_s = self._busy_s = 0.0
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
                    between._torch_s += now() - begun
                    between._busy_s = time.thread_time()

        self._mode = Times()

    def begin(self) -> None:
        """A pass ends, and is still the present segment. Where the program has entered a mode, nothing is timed: the program would leave ours in its
        place."""
        if recorder.stack[-1] == FORWARD and (self._entered or not depth()):
            self._torch_s, self._work_s, self._segments = 0.0, 0.0, len(recorder.codes)
            if not self._entered:
                self._entered = True
                self._mode.__enter__()
            self._busy_s = time.thread_time()

    def _stretch_ends(self) -> None:
        """A function of torch, or the pass after the gap, begins. CPU time: a thread without a core does not work. Short stretches are the cost of Python
        between two functions of torch."""
        busy_s = time.thread_time()
        if busy_s - self._busy_s >= LEAST_S:
            self._work_s += busy_s - self._busy_s
        self._busy_s = busy_s

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
        timed = recorder.times[begun + 1] - recorder.times[begun], self._torch_s
        if recorder.stack[-1] == BACKWARD:
            self.last_gaps.append(timed)
            if not further:
                self.last_work.append((timed[0], self._work_s))
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
        if (ratio := _torch_ratio(self.gaps)) == 1:
            gap_s, work_s = (sum(column) for column in zip(*self.last_work, strict=True)) if self.last_work else (0.0, 0.0)
            return {LAST_RATIO: max(0.0, 1 - work_s / gap_s)} if work_s > LEAST_RATIO * gap_s else {}
        return {RATIO: ratio, LAST_RATIO: _torch_ratio(self.last_gaps)}


def _torch_ratio(gaps: list[tuple[float, float]]) -> float:
    """The share of the time in functions of torch; 1 where the rest is small."""
    without = [gap_s - torch_s for gap_s, torch_s in gaps]
    if not gaps or statistics.median(without) < LEAST_S:
        return 1.0
    if statistics.median(rest_s / gap_s for rest_s, (gap_s, _) in zip(without, gaps, strict=True)) < LEAST_RATIO:
        return 1.0
    return 1 - sum(without) / sum(gap_s for gap_s, _ in gaps)


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
