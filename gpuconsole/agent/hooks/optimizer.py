"""Optimizer steps, and where a step of the program ends.

A step ends with the step of its optimizer. Where several optimizers step in turn, as in a GAN, it
ends where one of them steps again.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any

from ..forks import in_forked_children
from . import calls, passes, tracing
from .borders.border import Border, NotedCall
from .guard import switch
from .memory import memory
from .recorder import BACKWARD, COMPILED, OPTIMIZER, StepMark, get_ident
from .watch import recorder, watch

MAX_GONE_OPTIMIZERS = 32
"""Optimizers that are gone, of which the identities are kept."""
IN_TURN = 16
"""Optimizer steps in a row of one optimizer after which the others that the program has made count
as unused."""


class Steppers:
    """Which optimizers step, and where a step of the program ends."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """As in a process that has not trained yet."""
        self.inside = False
        """Whether an optimizer steps now."""
        self.events = 0
        """Optimizer steps so far."""
        self.plain = True
        """Whether each step of the program ends as an optimizer returns, and no optimizer steps
        within another one: only then may steps be counted."""
        self._last: deque[int] = deque(maxlen=IN_TURN)
        """The last optimizers that have stepped, by identity."""
        self._stepped: set[int] = set()
        """The optimizers that have stepped in the step under way."""
        self._open: StepMark | None = None
        """The end of the last optimizer step, where the step of the program goes on until one of
        them steps again."""

    @property
    def several(self) -> bool:
        """Whether several optimizers may step in turn."""
        return len(watch.optimizers) > 1 and (len(self._last) < IN_TURN or len(set(self._last)) > 1)

    @property
    def are_through(self) -> bool:
        """Whether all optimizers that step in turn have stepped in the step under way."""
        return self._stepped >= set(self._last)

    def made(self) -> None:
        """The program has made another optimizer: it may step in turn with those before."""
        self._last.clear()

    def begins(self, key: int) -> None:
        """The optimizer `key` is about to step: where it has stepped in the step under way, that
        step ended with the last optimizer that stepped."""
        if self._open is not None and (key in self._stepped or not self.several):
            recorder.split(self._open)
            self._open = None
            self._stepped.clear()

    def has_stepped(self, key: int) -> bool:
        """An optimizer has stepped; 0: none in particular. Returns whether the step of the program
        ends here."""
        self.events += 1
        self._last.append(key)
        if not key or (self._open is None and not self.several):
            self._open = None
            self._stepped.clear()
            return True
        self._stepped.add(key)
        self._open = recorder.mark()
        return False

    def close(self) -> None:
        """The process ends: the last step is not continued."""
        if self._open is not None:
            recorder.split(self._open)
            self._open = None

    def begin_anew(self) -> None:
        """Forget the iteration under way: an exception of the program has interrupted the agent's
        code."""
        if recorder.thread in (0, get_ident()):
            self.inside, self._open = False, None
            self._stepped.clear()


steppers = Steppers()
in_forked_children(steppers.reset)
switch.begin_anew.append(steppers.begin_anew)


def optimizer_made(frame: FrameType, result: Any) -> None:
    """The program has made an optimizer."""
    if tracing.is_compiling():
        return
    optimizer = frame.f_locals["self"]
    watch.note_made("optimizer", optimizer)
    _add(optimizer)


def _add(optimizer: Any) -> None:
    watch.add(watch.optimizers, optimizer)
    if len(watch.keys) > MAX_GONE_OPTIMIZERS + 2 * len(watch.optimizers):
        watch.keys = set(map(id, watch.alive(watch.optimizers)))
    watch.keys.add(id(optimizer))
    steppers.made()
    if steppers.several:  # which optimizer ends a step is seen in marked steps only
        recorder.every = 0
        if recorder.thread == get_ident():
            recorder.mark_rest()


def optimizer_seen(optimizer: Any) -> None:
    """An optimizer is about to step: it may have been made before the agent began."""
    if id(optimizer) not in watch.keys:
        _add(optimizer)


class OptimizerStep:
    """The step of an optimizer that is under way on the training thread."""

    def __init__(self) -> None:
        self.optimizer = 0
        """The identity of the optimizer."""
        self.within_backward = False
        """Whether it steps within a backward pass: the step of the program ends with that pass."""


present = OptimizerStep()
step_ends: list[Callable[[bool], None]] = []
"""Called as a step of the program ends, with whether it was marked."""


def begin_optimizer_step(frame: FrameType) -> bool:
    """An optimizer begins to step: `frame` is that of torch's wrapper around the `step` of each
    class. Returns whether there is a segment to end."""
    optimizer = frame.f_locals["args"][0]
    return begin_step(optimizer)


def begin_step(optimizer: Any) -> bool:
    """The same, where the optimizer is known."""
    if tracing.is_compiling():
        return False
    if not recorder.thread:
        if recorder.index:
            return False
        if _graph_task() != -1:
            passes.state.inner = True
            return False
        recorder.begin([])  # the first optimizer step of this process: it trains
        memory.first_update(optimizer)
    if steppers.inside:
        steppers.plain = False
        return False
    optimizer_seen(optimizer)
    if passes.state.counting is not None:
        passes.state.counting.stepped(optimizer)
    steppers.inside = True
    present.optimizer, present.within_backward = id(optimizer), BACKWARD in recorder.stack
    if present.within_backward:
        passes.state.inner, steppers.plain = True, False
        recorder.enter(OPTIMIZER)
        return True
    if recorder.counted:
        return True
    steppers.begins(id(optimizer))
    recorder.enter(OPTIMIZER)
    return True


def elsewhere() -> None:
    """An optimizer steps on another thread: on a GPU torch computes gradients, and calls their
    hooks, in threads of its own."""
    if _graph_task() != -1:
        passes.state.inner, steppers.plain = True, False


def end_optimizer_step(failed: bool) -> None:
    """The optimizer has stepped."""
    steppers.inside = False
    if not recorder.thread:
        return
    if recorder.counted and not present.within_backward:
        if not failed:
            end_counted()
        return
    recorder.leave()
    if failed or present.within_backward:
        return
    if COMPILED in recorder.stack:
        calls.compiled.stepped = True
    elif steppers.has_stepped(present.optimizer):
        end_step()
    else:
        recorder.work()


def end_seen(frame: FrameType) -> None:
    """An optimizer has stepped in a step that is only counted, where the begin of the call was not
    seen: see `begin_optimizer_step`."""
    optimizer = frame.f_locals["args"][0]
    if id(optimizer) in watch.keys:
        end_counted()
        return
    _add(optimizer)
    if recorder.counted:
        end_counted()
    elif steppers.has_stepped(id(optimizer)):
        end_step()


def end_counted() -> None:
    """The optimizer has stepped in a step that is only counted, and ends it."""
    steppers.events += 1
    for note in step_ends:
        note(False)
    recorder.cut_counted()


def begin_scaled(frame: FrameType) -> bool:
    """A gradient scaler leaves out the step of the optimizer where a gradient is not finite: the
    step of the program ends all the same."""
    if tracing.is_compiling():
        return False
    if not (recorder.thread or recorder.index):
        recorder.begin([])  # the first step of this process may be left out
    if not recorder.thread or steppers.inside:
        return False
    scaled.events = steppers.events
    scaled.optimizer = id(frame.f_locals["optimizer"])
    scaled.begun = not recorder.counted
    if scaled.begun:
        steppers.begins(scaled.optimizer)
        recorder.enter(OPTIMIZER)
    return True


class ScaledStep:
    """The call of a gradient scaler that is under way."""

    def __init__(self) -> None:
        self.events = self.optimizer = 0
        """Optimizer steps before it, and the identity of its optimizer."""
        self.begun = False
        """Whether it has a segment."""


scaled = ScaledStep()


def end_scaled(failed: bool) -> None:
    """The gradient scaler has done its step."""
    if not recorder.thread:
        return
    if scaled.begun:
        recorder.leave()
    if failed or steppers.events != scaled.events:
        return
    if recorder.counted:
        end_counted()
    elif steppers.has_stepped(scaled.optimizer):
        end_step()


def end_whole() -> None:
    """End a step that no call of an optimizer ends: of a compiled function, of a CUDA graph, of a
    backward pass in which optimizers have stepped."""
    steppers.plain = False
    if not recorder.thread:
        recorder.begin([])
    if steppers.has_stepped(0):
        end_step()


def end_step() -> None:
    """End the step, then let the agent work."""
    if not recorder.partial:
        watch.micro_batches = recorder.backwards or 1
    watch.most_micro_batches = max(watch.most_micro_batches, recorder.backwards)
    passes.state.sized = False
    for note in step_ends:
        note(True)
    recorder.cut()
    recorder.work()


def _graph_task() -> int:
    """The number of the backward pass that this thread works for; -1: none."""
    return int(sys.modules["torch"]._C._current_graph_task_id())


passes.state.end_in_backward = end_whole
calls.compiled.end_step = end_whole

MODULE = "torch.optim.optimizer"
STEP = Border(
    MODULE,
    "Optimizer.profile_hook_step",
    begin_optimizer_step,
    end_optimizer_step,
    hot=True,
    inner=("wrapper",),
    elsewhere=elsewhere,
)
"""In a step that is only counted, its return is seen."""
BORDERS = (
    STEP,
    Border("torch.amp.grad_scaler", "GradScaler.step", begin_scaled, end_scaled),
    NotedCall(MODULE, "Optimizer.__init__", optimizer_made),
)
