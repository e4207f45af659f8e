"""Optimizer steps, and where a step of the program ends: at the end of the rarest optimizer's step, if there was a backward pass before it."""

from __future__ import annotations

import sys
import weakref
from typing import Any

from . import passes, tracing
from .calls import spanned
from .guard import entry
from .recorder import BACKWARD, OPTIMIZER, OWN, ZERO
from .watch import recorder, watch

LOOK_AT = (0, 2)
"""Steps at whose end all objects are looked at for root modules."""
SEVERAL_UNTIL = 64
"""Steps in which the rarest of several optimizers is looked for."""


class Steppers:
    """How often each optimizer has stepped. `anchor`: the optimizer whose step ends a step; None: any."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.stepped: dict[int, int] = {}
        self.anchor: int | None = None
        self.blind = 0
        """Steps in a row with a backward pass and no forward pass of a known class."""

    def choose(self, last: int) -> None:
        """Choose the anchor: of the optimizers that step clearly less often than the most frequent one, the rarest."""
        counts = sorted((count, key) for key, count in self.stepped.items())
        most = counts[-1][0]
        rare = [key for count, key in counts if count * 16 >= most and count * 1.5 <= most]
        if len(counts) > 1 and recorder.index >= 2:
            self.anchor = rare[0] if rare else (self.anchor if self.anchor in self.stepped else last)


steppers = Steppers()


def on_optimizer(module: Any) -> None:
    """torch's official hooks of all optimizers; `zero_grad`; and where optimizers are made."""
    module.register_optimizer_step_pre_hook(before_step)
    module.register_optimizer_step_post_hook(after_step)
    module.Optimizer.zero_grad = spanned(ZERO, module.Optimizer.zero_grad)
    passes.state.end_in_backward = end_in_backward
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
    if not recorder.on:
        from .guard import switch

        if switch.failed or recorder.index:
            return
        recorder.begin()  # the first optimizer step of this process: it trains
    if recorder.watches():
        recorder.enter(OPTIMIZER)


@entry("optimizer.after")
def _after(optimizer: Any) -> None:
    if not recorder.watches() or recorder.stack[-1] != OPTIMIZER:
        return
    recorder.leave()
    key = id(optimizer)
    steppers.stepped[key] = steppers.stepped.get(key, 0) + 1
    if BACKWARD in recorder.stack or (recorder.index == 0 and _in_backward()):  # one optimizer for each parameter, stepped within backward
        passes.state.inner = True
        return
    if recorder.index in LOOK_AT or (len(steppers.stepped) > 1 and recorder.index < SEVERAL_UNTIL) or steppers.blind == 4:
        _look(key)
    if (steppers.anchor is None or steppers.anchor == key or key not in steppers.stepped) and (recorder.backwards or recorder.index < 2):
        end_step()


def end_in_backward() -> None:
    """The end of a backward pass in which optimizers have stepped."""
    passes.state.inner = False
    if recorder.index == 2:
        _look(0)
    end_step()


def end_step() -> None:
    """End the step, then let the agent work."""
    steppers.blind = 0 if recorder.passes or not recorder.backwards else steppers.blind + 1
    watch.micro_batches = max(1, recorder.backwards)
    recorder.cut()
    if recorder.at_end is not None:
        recorder.enter(OWN)
        try:
            recorder.at_end()
        finally:
            if recorder.on:
                recorder.leave()


def _look(key: int) -> None:
    recorder.enter(OWN)
    try:
        if steppers.stepped:
            steppers.choose(key)
        if recorder.index in LOOK_AT or steppers.blind == 4:
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
