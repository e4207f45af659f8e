"""Forward and backward passes; the number of samples and tokens, and the loss.

A forward pass is the outermost call of a module with parameters.
"""

from __future__ import annotations

import weakref
from types import FrameType
from typing import Any

from . import tracing
from .borders.border import Border
from .guard import entry, switch
from .modes import autocast_around, has_modes, is_profiled, modes
from .recorder import (
    BACKWARD,
    EVAL,
    EVALUATED,
    FORWARD,
    MAY_HOLD_FORWARD,
    NO_GRAD,
    OPTIMIZER,
    TRAINED,
    TRAINED_EVAL,
    get_ident,
)
from .structure import has_parameters
from .watch import count_samples, recorder, rows, watch

MAX_TRAINED = 256
"""Most modules whose identities are kept: a program may make a new model in each step."""


class State:
    """What the passes need of torch, and of the step under way."""

    def __init__(self) -> None:
        self.sized = False
        """Whether samples of the present micro-batch have been counted. In an optimizer step that
        evaluates a closure several times, only the first counts."""
        self.inner = False
        """Whether an optimizer has stepped within the backward pass under way."""
        self.in_eval = False
        """Whether the last pass was one with gradients in eval mode."""
        self.trains_in_eval = False
        """Whether a backward pass has followed such a pass: the mode says nothing about the passes
        of this program."""
        self.trained: set[int] = set()
        """The identities of the modules whose passes record gradients."""
        self.known: set[int] = set()
        """The identities of the modules in `watch.roots`."""
        self.end_in_backward: Any = None
        """Called at the end of a backward pass in which optimizers have stepped."""
        self.counting: Any = None
        """Counts the operators of each pass (`enter`, `leave`). With `sees_modules`, it also
        records the calls of modules within the pass (`called`)."""
        self.sees_modules = False


state = State()


def _begin_anew() -> None:
    """Count nothing in the rest of this step: an exception of the program has interrupted the
    agent's code."""
    if recorder.thread not in (0, get_ident()):
        return
    state.sized = state.inner = False
    if state.counting is not None:
        state.counting.stop()


switch.begin_anew.append(_begin_anew)

# --- forward --------------------------------------------------------------------------------------


def evaluates(module: Any) -> bool:
    """Whether a pass of `module` is one in eval mode, in a program that does not train in it."""
    return not module.__dict__.get("training", True) and not state.trains_in_eval


def without_gradients(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The code of a pass of `module` that records no gradients."""
    if id(module) not in state.trained:
        return NO_GRAD
    if not evaluates(module):
        return TRAINED
    return EVALUATED if 0 < watch.batch_size <= 2 * rows(args, kwargs) else TRAINED_EVAL


def may_begin_pass() -> bool:
    """Whether a call of a module now is a pass of its own, and not a part of another border."""
    return (
        recorder.thread != 0
        and recorder.stack[-1] in MAY_HOLD_FORWARD
        and not tracing.is_compiling()
    )


def begin_pass(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Begin the pass of a module that the program calls. Returns False for a module without
    parameters, such as a loss: it makes no pass."""
    if id(module) not in state.known and not _note_root(module):
        return False
    recorder.passes += 1
    grad = tracing.grad_enabled()
    state.in_eval = grad and evaluates(module)
    recorder.enter(
        EVAL if state.in_eval else FORWARD if grad else without_gradients(module, args, kwargs)
    )
    if grad and not state.in_eval:
        if id(module) not in state.trained:
            if len(state.trained) >= MAX_TRAINED:
                state.trained.clear()
            state.trained.add(id(module))
        watch.loader = watch.last_loader
        if not state.sized:
            state.sized = True
            count_samples(args, kwargs)
            if recorder.index < 4:
                watch.autocast = autocast_around(module)
        if watch.keep_inputs:
            watch.last_inputs = (weakref.ref(module), args, kwargs)
    if state.counting is not None:
        state.counting.enter(None, False, (module, args, kwargs))
    return True


def _note_root(module: Any) -> bool:
    """Note a module that the program calls itself. Returns False where it has no parameters."""
    if not has_parameters(module):
        return False
    if len(state.known) >= MAX_TRAINED:
        state.known = {id(root) for root in watch.alive(watch.roots)}
    state.known.add(id(module))
    watch.add(watch.roots, module)
    return True


def end_pass(failed: bool) -> None:
    """The pass ends."""
    if state.counting is not None:
        state.counting.leave()
    if recorder.thread:
        recorder.leave()


FORWARD_PASS = Border(
    "torch.nn.modules.module", "Module._wrapped_call_impl", lambda frame: False, end_pass
)
"""The call of a module: `monitor` begins it by itself, because only the outermost call is one."""


@entry("loss.read")
def read_loss(tensors: Any) -> None:
    """Add the loss of a backward pass to that of the step. Nothing waits for a GPU. A loss of a
    class of its own is left alone: that of DTensor would take an exchange between processes, and
    other classes, as modes and profilers of the program, see each operator on it."""
    loss = tensors[0] if isinstance(tensors, (tuple, list)) and tensors else tensors
    if not is_plain(loss) or has_modes() or loss.ndim or loss.is_complex() or is_profiled():
        return
    if loss.device.type == "cpu":
        value = loss.item()
        recorder.loss = value if recorder.loss is None else recorder.loss + value
    elif (
        recorder.copy_loss is not None
        and recorder.readings is not None
        and (recorder.loss is not None or not recorder.backwards)
    ):
        # once a pass had no loss that can be read, the step has none
        recorder.loss = recorder.copy_loss(loss, recorder.loss)


def is_plain(tensor: Any) -> bool:
    """Whether a tensor is of torch's own class: its operators are torch's own, and nobody sees
    them."""
    import torch

    return type(tensor) in (torch.Tensor, torch.nn.Parameter)


# --- backward -------------------------------------------------------------------------------------


def begin_backward(frame: FrameType) -> bool:
    """A backward pass begins: all of torch's ways to one lead to the function of this border."""
    if not recorder.thread:
        return not recorder.index  # the first optimizer may step within this pass
    if BACKWARD in recorder.stack or tracing.is_compiling():
        return False
    recorder.enter(BACKWARD)
    state.trains_in_eval = state.trains_in_eval or state.in_eval
    state.in_eval = False
    if recorder.times[-1] >= modes.due:
        switch.attempt("settings.modes", modes.look)
    outputs = frame.f_locals.get("t_outputs")
    caller = frame.f_back
    # torch.autograd.grad computes gradients of whatever the program asks for
    adds = caller is None or caller.f_code.co_name != "grad"
    if adds:
        if recorder.reads_loss or recorder.readings is not None:
            read_loss(outputs)
        recorder.backwards += 1
    if state.counting is not None:
        state.counting.enter(outputs, adds)
    return True


def end_backward(failed: bool) -> None:
    """A backward pass ends, and with it a step where optimizers have stepped within it."""
    if recorder.thread:
        if state.counting is not None:
            state.counting.leave()
        if recorder.stack[-1] != BACKWARD:
            return
        recorder.leave()
        if OPTIMIZER not in recorder.stack:
            state.sized = False
    elif state.inner:
        recorder.begin([])
    if state.inner and state.end_in_backward is not None:
        state.inner = False
        state.end_in_backward()


BORDERS = (
    Border("torch.autograd.graph", "_engine_run_backward", begin_backward, end_backward, hot=True),
)
