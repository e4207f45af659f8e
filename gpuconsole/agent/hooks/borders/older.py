"""Find the borders of a step on Python 3.11, which has no sys.monitoring. There are fewer borders
than on Python 3.12.

torch calls registered functions around each step of an optimizer. For batches and backward passes,
this file replaces three names of torch. A DataLoader's iterator reads one of these names at each
batch. A backward pass reads the other two, which torch has for the logging of graphs. No function
of the program or of torch is wrapped, so the stack of the program contains no frame of the agent.
The agent does not see forward passes, logging, checkpoints and collectives, nor the lines that
created loaders and optimizers. The time between a batch and its backward pass counts as forward.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from .. import tracing
from ..changes.batch_sources import Spec
from ..data import NEXT, iterators
from ..guard import put, switch
from ..optimizer import begin_step, end_optimizer_step, optimizer_seen
from ..passes import begin_backward, end_backward
from ..recorder import get_ident
from ..watch import batch_taken, count_batch, recorder, watch
from .border import Border, opened

COARSER = (
    "on Python 3.11 gpuconsole does not see forward passes, logging and checkpoints: phases are"
    " coarser, and the model is not known. Python 3.12 shows them"
)
OPTIMIZER = Border(
    "torch.optim.optimizer",
    "Optimizer.step",
    lambda frame: begin_step(_stepping[-1]),
    end_optimizer_step,
)
_stepping: list[Any] = []
"""The optimizer that is about to step."""


def _guarded(place: str, act: Any, *args: Any) -> Any:
    """Call `act` on the training thread, or on any thread before the training starts. A failure in
    `act` is a failure of the agent, not of the program."""
    if switch.failed or (recorder.thread and recorder.thread != get_ident()):
        return None
    try:
        return act(*args)
    except BaseException as problem:
        if switch.off(place, problem):
            raise
        return None


# --- optimizer ------------------------------------------------------------------------------------


class StepHook:
    """A registered function that torch calls before or after each step of an optimizer.

    Dynamo compiles the calls of registered functions into the step. Dynamo treats the test in
    `__call__` as a constant, so the graph of a step does not change. dill pickles everything that a
    class of torch refers to, also registered functions. Therefore a StepHook is pickled as a method
    of the standard library that does nothing.
    """

    def __init__(self, act: Callable[[Any, FrameType], Any]) -> None:
        self.act = act

    def __call__(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not tracing.is_compiling():
            self.act(optimizer, sys._getframe(1))

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


def on_optimizer(module: Any) -> None:
    """Register two public hooks around each step of an optimizer. The agent removes these hooks
    when it turns itself off."""

    def before(optimizer: Any, frame: FrameType) -> None:
        if recorder.thread and recorder.thread != get_ident():
            return
        _guarded("borders.step", _begin_step, optimizer, frame)

    def after(optimizer: Any, frame: FrameType) -> None:
        _guarded("borders.stepped", opened.end, frame)

    handles = (
        module.register_optimizer_step_pre_hook(StepHook(before)),
        module.register_optimizer_step_post_hook(StepHook(after)),
    )
    switch.undo += [handle.remove for handle in handles]


def _begin_step(optimizer: Any, frame: FrameType) -> None:
    optimizer_seen(optimizer)
    _stepping[:] = [optimizer]
    try:
        opened.begin(frame, OPTIMIZER)
    finally:
        _stepping.clear()


# --- batches --------------------------------------------------------------------------------------


class Region(str):
    """The name under which an iterator records a batch. torch holds this object while it makes the
    batch."""

    key = 0
    """The identity of the frame of the call that makes the batch."""

    def __del__(self) -> None:
        if self.key:
            _guarded("data.end", opened.end_key, self.key)


class ProfileName:
    """Replaces the attribute `_profile_name` of iterators. `__next__` reads the attribute when it
    begins, and drops the value when it ends."""

    def __set__(self, iterator: Any, value: str) -> None:
        iterator.__dict__["_profile_name"] = value
        made = sys._getframe(1)
        # only the `__init__` of the iterator has the loader
        if made.f_code.co_name == "__init__" and not switch.failed:
            _guarded("data.made", _note_iterator, iterator, made.f_locals.get("loader"))

    def __get__(self, iterator: Any, kind: Any = None) -> Any:
        if iterator is None:
            return self
        try:
            name = iterator.__dict__["_profile_name"]
        except KeyError:
            raise AttributeError("_profile_name") from None
        frame = sys._getframe(1)
        if (
            not recorder.thread
            or recorder.thread != get_ident()
            or frame.f_code.co_name != "__next__"
        ):
            return name
        region = Region(name)
        if _guarded("data.begin", opened.begin, frame, NEXT):
            region.key = id(frame)
            batch_taken(iterator)
        return region


def _note_iterator(iterator: Any, loader: Any) -> None:
    # a loader of class Spec belongs to the agent: a live change has made it
    if loader is not None and not issubclass(type(loader), Spec):
        iterators.note(iterator, loader)


def on_dataloader(module: Any) -> None:
    """See the batches of a DataLoader."""
    put(module._BaseDataLoaderIter, "_profile_name", ProfileName())


# --- backward passes ------------------------------------------------------------------------------


def _begin_backward(frame: FrameType) -> bool:
    """Note the start of a backward pass, which uses the samples of the last batch."""
    begun = begin_backward(frame)
    if begun and recorder.thread:
        watch.loader = watch.last_loader
        count_batch()
    return begun


BACKWARD = Border("torch.autograd.graph", "_engine_run_backward", _begin_backward, end_backward)


class Level:
    """Replaces the logger of torch.autograd.graph. A backward pass reads the level of this logger.
    If the level is DEBUG, the pass calls what stands in
    `_register_logging_hooks_on_whole_graph`: a GraphHooks."""

    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logger, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return logging.getLogger, (self._logger.name,)

    def getEffectiveLevel(self) -> int:
        return int(self._logger.getEffectiveLevel()) if switch.failed else logging.DEBUG


class GraphHooks:
    """Replaces the function of torch.autograd.graph that prepares the log of a backward pass. It is
    pickled by the name of this function, as the function is."""

    def __init__(self, logger: Any, plain: Any) -> None:
        self._logger, self._plain = logger, plain
        self.__module__, self.__name__ = plain.__module__, plain.__name__

    def __reduce__(self) -> str:
        return self.__name__

    def __call__(self, outputs: Any) -> Any:
        """Note the start of a backward pass from `outputs`. Return the function that torch calls at
        the end of the pass."""
        debugs = self._logger.getEffectiveLevel() <= logging.DEBUG
        of_program = self._plain(outputs) if debugs else None
        frame = sys._getframe(1)
        begun = _guarded("borders.backward", opened.begin, frame, BACKWARD)
        key = id(frame)
        del frame

        def ended() -> None:
            if begun:
                _guarded("borders.backward", opened.end_key, key)
            if of_program is not None:
                of_program()

        return ended


def on_graph(module: Any) -> None:
    """See backward passes."""
    hooks = GraphHooks(module.log, module._register_logging_hooks_on_whole_graph)
    put(module, "log", Level(module.log))
    put(module, "_register_logging_hooks_on_whole_graph", hooks)


HOOKS = {
    "torch.optim.optimizer": on_optimizer,
    "torch.utils.data.dataloader": on_dataloader,
    "torch.autograd.graph": on_graph,
}
