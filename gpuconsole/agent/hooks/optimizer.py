"""Optimizer steps, and where a step of the program ends: at the end of the rarest optimizer's step, if there was a backward pass before it."""

from __future__ import annotations

import sys
import weakref
from typing import Any

from . import calls, passes, tracing
from .calls import spanned
from .guard import entry, wrappers_without_level
from .recorder import BACKWARD, OPTIMIZER, OWN, ZERO, get_ident
from .watch import recorder, watch

LOOK_AT = (0, 2)
"""Steps at whose end all objects are looked at for root modules."""
HELD = 12
"""Optimizer steps after which it is decided which optimizer ends a step. Until then each of them ends a step for the time being, and none is
sent. A critic that steps five times for each step of the generator is known after 12."""

ALONE = 3
"""The same, where the program has made only one optimizer: slow steps are then sent soon."""


class Steppers:
    """Which optimizers step, and which one ends a step. `anchor`: the optimizer whose step ends a step, once `decided`."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.stepped: dict[int, int] = {}
        """How often each optimizer has stepped, in the order of their first steps."""
        self.anchor = 0
        self.decided = False
        self.held: list[int] = []
        """The optimizer at the end of each step that is not decided yet."""
        self.blind = 0
        """Steps in a row with a backward pass and no forward pass of a known class."""

    def count(self, key: int) -> None:
        """An optimizer has stepped. One that is new, or another one that takes over, may become the anchor later."""
        new = key not in self.stepped
        self.stepped[key] = self.stepped.get(key, 0) + 1
        if self.decided and key != self.anchor and (new or self.stepped[key] % HELD == 0):
            self.anchor = self._rarest()

    def decide(self) -> None:
        """Choose the anchor, and join the steps that are held."""
        if self.decided:
            return
        self.decided = True
        if self.stepped:
            self.anchor = self._rarest()
        if len(self.stepped) > 1:
            recorder.merge([key in (self.anchor, 0) for key in self.held])
        self.held = []

    def ends_step(self, key: int) -> bool:
        """Whether a step of this optimizer ends a step of the program."""
        return not self.decided or (key == self.anchor and bool(recorder.backwards or recorder.passes))

    def _rarest(self) -> int:
        """The optimizer that steps clearly less often than the most frequent one; else the one that was the last to step first."""
        most = max(self.stepped.values())
        used = {key: count for key, count in self.stepped.items() if count * 16 >= most}
        least = min(used.values())
        return [key for key, count in used.items() if count * 2 < least * 3][-1]


steppers = Steppers()


@wrappers_without_level
def on_optimizer(module: Any) -> None:
    """torch's official hooks of all optimizers; `zero_grad`; and where optimizers are made."""
    module.register_optimizer_step_pre_hook(before_step)
    module.register_optimizer_step_post_hook(after_step)
    module.Optimizer.zero_grad = spanned(ZERO, module.Optimizer.zero_grad)
    passes.state.end_in_backward = end_in_backward
    calls.compiled.end_step = end_compiled
    plain = module.Optimizer.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **kwargs)
        if not tracing.is_compiling():
            note_made(self)

    __init__.__doc__, __init__.__wrapped__ = plain.__doc__, plain  # type: ignore[attr-defined]
    module.Optimizer.__init__ = __init__


@entry("optimizer.made")
def note_made(optimizer: Any) -> None:
    watch.optimizers.append(weakref.ref(optimizer))
    watch.note_made("optimizer", optimizer)


def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    if not tracing.is_compiling():
        _before(optimizer)


def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    if not tracing.is_compiling():
        _after(optimizer)


@entry("optimizer.before")
def _before(optimizer: Any) -> None:
    if not recorder.thread:
        from .guard import switch

        if switch.failed or recorder.index:
            return
        recorder.begin([BACKWARD] if _in_backward() else [])  # the first optimizer step of this process: it trains
    if recorder.thread == get_ident():
        recorder.enter(OPTIMIZER)


@entry("optimizer.after")
def _after(optimizer: Any) -> None:
    stack = recorder.stack
    if stack[-1] != OPTIMIZER or recorder.thread != get_ident():
        return
    key = id(optimizer)
    if key == steppers.anchor and recorder.passes and len(stack) == 2 and steppers.decided and recorder.index > LOOK_AT[-1]:
        steppers.stepped[key] += 1  # the usual step: there is nothing to find out
        watch.micro_batches = recorder.backwards or 1
        recorder.cut(leaves=True)
        recorder.work()
        return
    recorder.leave()
    if BACKWARD in stack:  # one optimizer for each parameter, stepped within backward
        passes.state.inner = True
        return
    steppers.count(key)
    if recorder.index in LOOK_AT or steppers.blind == 4:
        _look()
    if steppers.ends_step(key):
        end_step(key)


def end_in_backward() -> None:
    """The end of a backward pass in which optimizers have stepped."""
    passes.state.inner = False
    if recorder.index in LOOK_AT:
        _look()
    end_step(0)


def end_compiled() -> None:
    """The end of a compiled function in which optimizers have stepped."""
    if not recorder.thread:
        recorder.begin([])
    end_step(0)


def end_step(key: int) -> None:
    """End the step, then let the agent work. `key`: the optimizer that ended it; 0: none in particular."""
    steppers.blind = 0 if recorder.passes or not recorder.backwards else steppers.blind + 1
    watch.micro_batches = recorder.backwards or 1
    recorder.cut()
    if not steppers.decided:
        steppers.held.append(key)
        if len(steppers.held) >= (HELD if len(watch.alive(watch.optimizers)) > 1 else ALONE):
            steppers.decide()
    recorder.work()


def _look() -> None:
    recorder.enter(OWN)
    try:
        passes.find_roots()
    finally:
        recorder.leave()


def _in_backward() -> bool:
    """Whether a backward pass is under way that began before the account."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == "_engine_run_backward":
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


HOOKS = {"torch.optim.optimizer": on_optimizer}
