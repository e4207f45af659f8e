"""Forward and backward passes; the number of samples and tokens, and the loss.

A forward pass is the call of a root module: the hook sits in the class of the module. Global module hooks cost 2 µs for each module of a model, and
torch.compile warns about them; hooks on an instance end up in the program's checkpoints.
"""

from __future__ import annotations

import gc
import weakref
from types import FunctionType
from typing import Any

from . import tracing
from .calls import weights_version
from .evidence.steps import own_updates
from .guard import MARK, alike, entry, from_outside, hot_entry, put, switch, wrappers_without_level
from .memory import raised
from .modes import autocast_around, has_modes, modes
from .recorder import BACKWARD, EVAL, EVALUATED, FORWARD, MAY_HOLD_FORWARD, NO_GRAD, OPTIMIZER, TRAINED, TRAINED_EVAL, get_ident
from .structure import children, has_parameters
from .watch import count_samples, recorder, rows, watch

DEPTH = 4
"""Levels of modules below a root whose calls are watched: some frameworks call the children of a root, never the root."""
MOST_TRAINED = 256
"""Most modules whose identities are kept: a program may make a new model in each step."""


class State:
    """What the passes need of torch, and of the step under way."""

    def __init__(self) -> None:
        self.sized = False
        """Whether samples of the present micro-batch have been counted."""
        self.evaluated: int | None = None
        """The version of the weights in the first pass within the optimizer step under way; None: no pass yet."""
        self.evaluates_again = False
        """Whether the optimizer of that step evaluates its closure several times."""
        self.inner = False
        """Whether an optimizer has stepped within the backward pass under way."""
        self.end_in_backward: Any = None
        """Called at the end of such a backward pass."""
        self.in_eval = False
        """Whether the last pass was one with gradients in eval mode."""
        self.trains_in_eval = False
        """Whether a backward pass has followed such a pass: the mode says nothing about the passes of this program."""
        self.trained: set[int] = set()
        """The identities of the modules whose passes record gradients."""
        self.counting: Any = None
        """Counts the operators of each pass: `enter` and `leave`."""


state = State()


def _begin_anew() -> None:
    """Count nothing in the rest of this step: an exception of the program has interrupted the agent's code."""
    state.sized = state.inner = False
    if state.counting is not None:
        state.counting.stop()


switch.begin_anew.append(_begin_anew)

# --- forward ------------------------------------------------------------------------------------------------


def find_roots() -> None:
    """Watch the classes of all modules that are no part of another module, by one look at all objects (60 ms)."""
    import torch

    everything = gc.get_objects()
    kinds = {id(kind) for kind in {id(kind): kind for kind in map(type, everything)}.values() if issubclass(kind, torch.nn.Module)}
    modules = [candidate for candidate in everything if id(type(candidate)) in kinds]
    del everything
    inner = {id(child) for module in modules for child in children(module)}
    level = [module for module in modules if id(module) not in inner and has_parameters(module)]
    for _ in range(DEPTH):
        for kind in {id(type(module)): type(module) for module in level}.values():
            try:
                watch_class(kind)
            except Exception as problem:  # a class that lets nobody set its attributes
                if from_outside(problem):
                    raise
        if recorder.index < 2 or any(id(type(module)) in watch.called for module in level):
            break
        level = [child for module in level for child in children(module) if has_parameters(child)]


@wrappers_without_level
def watch_class(cls: Any) -> None:
    """Make calls of instances of `cls` a segment where the program itself makes them."""
    import torch

    own = cls.__dict__.get("__call__")
    bind = getattr(type(own), "__get__", _unbound)
    if cls is torch.nn.Module or getattr(own, MARK, None) is switch:
        return

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = bind(own, self, type(self)) if own is not None else super(cls, self).__call__
        if tracing.compiles() or not recorder.thread or recorder.stack[-1] not in MAY_HOLD_FORWARD:
            return call(*args, **kwargs)
        if recorder.light and begin_light(self, args, kwargs):
            try:
                return call(*args, **kwargs)
            except RuntimeError as problem:
                raised(problem)
                raise
            finally:
                if not recorder.light:
                    end_pass()
                elif len(recorder.stack) > 1:
                    recorder.last = recorder.stack.pop()
        if tracing.is_compiling() or not begin_pass(self, args, kwargs):
            return call(*args, **kwargs)
        try:
            return call(*args, **kwargs)
        except RuntimeError as problem:
            raised(problem)
            raise
        finally:
            end_pass()

    hooked: Any = alike(__call__, own) if isinstance(own, FunctionType) else __call__
    setattr(hooked, MARK, switch)
    put(cls, "__call__", hooked)


def _unbound(own: Any, *_: Any) -> Any:
    """What a class gives its objects where its attribute is no descriptor."""
    return own


def repeats_closure() -> bool:
    """Whether the pass under way belongs to a later evaluation of the closure by L-BFGS. The samples of that pass have counted already."""
    if not state.evaluates_again or OPTIMIZER not in recorder.stack:
        return False
    version = weights_version()
    if state.evaluated is None:
        state.evaluated = version
    return version != state.evaluated


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


@hot_entry("passes.begin_light")
def begin_light(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Begin a pass of a light step. Returns whether it is one: not in another thread, not without gradients, and not an evaluation."""
    try:
        if recorder.light != get_ident():
            return False
        if not tracing.grad_enabled() or evaluates(module):
            recorder.mark_all()
            return False
        recorder.passes += 1
        recorder.stack.append(FORWARD)
        if not state.sized:
            state.sized = True
            if not state.evaluates_again or not repeats_closure():
                count_samples(args, kwargs)
        return True
    except Exception as problem:
        if switch.off("passes.begin_light", problem):
            raise
        return False


@hot_entry("passes.begin")
def begin_pass(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    try:
        if recorder.thread != get_ident():
            return False
        if id(type(module)) not in watch.called:
            watch.called[id(type(module))] = type(module)
            watch.roots.append(weakref.ref(module))
        recorder.passes += 1
        grad = tracing.grad_enabled()
        state.in_eval = grad and evaluates(module)
        recorder.enter(EVAL if state.in_eval else FORWARD if grad else without_gradients(module, args, kwargs))
        if grad and not state.in_eval:
            if id(module) not in state.trained:
                if len(state.trained) >= MOST_TRAINED:
                    state.trained.clear()
                state.trained.add(id(module))
            watch.loader = watch.last_loader
            if not state.sized:
                state.sized = True
                if not repeats_closure():
                    count_samples(args, kwargs)
                if recorder.index < 4:
                    watch.autocast = autocast_around(module)
            if watch.keep_inputs:
                watch.last_inputs = (weakref.ref(module), args, kwargs)
        if state.counting is not None:
            state.counting.enter()
        return True
    except Exception as problem:
        if switch.off("passes.begin", problem):
            raise
        return False


@hot_entry("passes.end")
def end_pass() -> None:
    try:
        if state.counting is not None:
            state.counting.leave()
        if recorder.thread:
            recorder.leave()
    except Exception as problem:
        if switch.off("passes.end", problem):
            raise


@entry("loss.read")
def read_loss(tensors: Any) -> None:
    """Add the loss of a backward pass to that of the step. Nothing waits for a GPU. A loss of a class of its own is left alone: that of DTensor would take
    an exchange between processes, and other classes, as modes of the program, see each operator on it."""
    loss = tensors[0] if isinstance(tensors, (tuple, list)) and tensors else tensors
    if not is_plain(loss) or has_modes() or loss.ndim:
        return
    if loss.device.type == "cpu":
        value = loss.item()
        recorder.loss = value if recorder.loss is None else recorder.loss + value
    elif recorder.copy_loss is not None and recorder.readings is not None and (recorder.loss is not None or not recorder.backwards > 1):
        recorder.loss = recorder.copy_loss(loss, recorder.loss)  # once a pass had no loss that can be read, the step has none


def is_plain(tensor: Any) -> bool:
    """Whether a tensor is of torch's own class: its operators are torch's own, and nobody sees them."""
    import torch

    return type(tensor) in (torch.Tensor, torch.nn.Parameter)


# --- backward -----------------------------------------------------------------------------------------------


@wrappers_without_level
def on_autograd(module: Any) -> None:
    """torch.autograd.backward: `Tensor.backward` calls it too."""
    plain = module.backward

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if tracing.compiles() or switch.failed:
            return plain(tensors, *args, **kwargs)
        if recorder.light and recorder.light == get_ident() and BACKWARD not in recorder.stack:
            recorder.stack.append(BACKWARD)
            try:
                return plain(tensors, *args, **kwargs)
            except RuntimeError as problem:
                raised(problem)
                raise
            finally:
                if recorder.light and not state.inner:
                    if len(recorder.stack) > 1:
                        recorder.last = recorder.stack.pop()
                    recorder.backwards += 1
                    state.sized = False
                else:
                    end_backward(tensors)
        if tracing.is_compiling() or not begin_backward(tensors):
            return plain(tensors, *args, **kwargs)
        try:
            return plain(tensors, *args, **kwargs)
        except RuntimeError as problem:
            raised(problem)
            raise
        finally:
            end_backward(tensors)

    put(module, "backward", alike(backward, plain))


@hot_entry("passes.begin_backward")
def begin_backward(tensors: Any) -> bool:
    try:
        if not recorder.thread:
            return not recorder.index  # the first optimizer may step within this pass
        if recorder.thread != get_ident() or BACKWARD in recorder.stack:
            return False
        if own_updates.on:
            if own_updates.backward_begins():
                if recorder.index == 2:
                    find_roots()
                recorder.work()
            if not recorder.thread:  # given up, or the console has ended
                return False
        recorder.enter(BACKWARD)
        state.trains_in_eval = state.trains_in_eval or state.in_eval
        state.in_eval = False
        if recorder.times[-1] >= modes.due:
            switch.attempt("settings.modes", modes.look)
        if state.counting is not None:
            state.counting.enter(tensors)
        return True
    except Exception as problem:
        if switch.off("passes.begin_backward", problem):
            raise
        return False


@hot_entry("passes.end_backward")
def end_backward(tensors: Any) -> None:
    try:
        if recorder.light == get_ident():
            recorder.mark_all()
        if state.counting is not None:
            state.counting.leave()
        if recorder.thread != get_ident() or recorder.stack[-1] != BACKWARD:
            if not recorder.thread and not switch.failed and state.inner and state.end_in_backward is not None:
                recorder.begin([])  # the optimizers have stepped in a thread of torch's
                state.end_in_backward()
            elif not recorder.thread and not switch.failed and own_updates.may_begin():
                find_roots()
                own_updates.begin()
            return
        recorder.leave()
        recorder.backwards += 1
        state.sized = False
        if recorder.reads_loss or recorder.readings is not None:
            read_loss(tensors)
        if own_updates.on:
            own_updates.backward_ended()
        if state.inner and state.end_in_backward is not None:
            state.end_in_backward()
    except Exception as problem:
        if switch.off("passes.end_backward", problem):
            raise


HOOKS = {"torch.autograd": on_autograd}
