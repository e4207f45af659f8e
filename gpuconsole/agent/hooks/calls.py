"""Functions of torch and of other libraries that are a segment of their own: saving, logging, collectives, compiled functions; and the calls that force
a file to the disk."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from . import tracing
from .guard import NO_LEVEL, OWN, alike, entry, hot_entry, put, put_until_off, shells, skip_code, switch, wrappers_without_level
from .recorder import BACKWARD, COMM, COMPILED, GAP, LOG, OPTIMIZER, SAVE, SELDOM_MARKED, UNMARKED, WHOLE, ZERO, get_ident
from .recorder import OWN as OWN_WORK
from .watch import count_samples, recorder, watch

# --- calls that force a file to the disk ---------------------------------------------------------------------

CALLS = ("fsync", "fdatasync")


@entry("calls.begin_flush")
def begin_flush() -> bool:
    """Begin the segment of a call that flushes a file. Returns whether there is one to end."""
    if recorder.thread != get_ident() or recorder.stack[-1] not in (GAP, UNMARKED):
        return False
    recorder.mark_all()
    recorder.enter(LOG)
    return True


@entry("calls.end_flush")
def end_flush() -> None:
    if recorder.thread:
        recorder.leave()


def on_os() -> None:
    """Calls that wait until a file is on the disk."""
    for name in CALLS:
        plain = getattr(os, name, None)
        if plain is not None:
            _wrap(name, plain)


@wrappers_without_level
def _wrap(name: str, plain: Any) -> None:
    def flush(fd: Any) -> None:
        begun = begin_flush()
        try:
            plain(fd)
        finally:
            if begun:
                end_flush()

    flush.__name__, flush.__qualname__, flush.__doc__, flush.__module__ = name, name, plain.__doc__, plain.__module__
    for module in (os, sys.modules.get(plain.__module__)):  # pickle finds the function in the second one
        if getattr(module, name, None) is plain:
            put_until_off(module, name, flush)


# --- functions that are segments -----------------------------------------------------------------------------

COLLECTIVES = "all_reduce all_gather all_gather_into_tensor all_gather_single reduce_scatter_tensor reduce_scatter_single broadcast barrier reduce all_gather_object broadcast_object_list"


@wrappers_without_level
def spanned(code: int, call: Callable[..., Any], file: str = NO_LEVEL) -> Callable[..., Any]:
    """Wrap `call`: on the training thread, each call is a segment with `code`. The wrapper has the name, module, documentation and parameters of `call`.
    `file`: the file name of the wrapper's code."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if tracing.compiles() or switch.failed or (recorder.light and code in SELDOM_MARKED) or tracing.is_compiling() or not begin(code):
            return call(*args, **kwargs)
        try:
            return call(*args, **kwargs)
        finally:
            end()

    return alike(wrapper, call, file)


@hot_entry("calls.begin")
def begin(code: int) -> bool:
    """Begin a segment. Returns whether there is one to end."""
    try:
        stack = recorder.stack
        if code in stack or stack[-1] == OWN_WORK or recorder.thread != get_ident():
            return False
        if recorder.light and code != LOG:
            recorder.mark_all()
        if code == WHOLE:
            if not tracing.grad_enabled():
                return False
            recorder.passes += 1
        recorder.enter(code)
        return True
    except Exception as problem:
        if switch.part_off("calls.begin", problem):
            raise
        return False


@hot_entry("calls.end")
def end() -> None:
    try:
        if recorder.thread:
            recorder.leave()
    except Exception as problem:
        if switch.part_off("calls.end", problem):
            raise


def _leave_calls() -> None:
    """These segments are not ended any longer. Raises RuntimeError where one may be open that could as well be of an optimizer or a backward pass."""
    recorder.drop((ZERO, SAVE, LOG, COMM, WHOLE))
    if OPTIMIZER in recorder.stack or BACKWARD in recorder.stack:
        raise RuntimeError("it failed within an optimizer step or a backward pass")


switch.undo_part["calls"] = _leave_calls


def around(*entries: tuple[str, str, int]) -> Callable[[Any], None]:
    """A hook that makes segments of functions: (class within the module, or empty; names; code). Code that looks for the caller of `logging` leaves out
    the frames of its file."""

    def hook(module: Any) -> None:
        file = module.__file__ if module.__name__ == "logging" else NO_LEVEL
        for holder, names, code in entries:
            target = getattr(module, holder, None) if holder else module
            for name in names.split():
                if hasattr(target, name):
                    put(target, name, spanned(code, getattr(target, name), file))

    return hook


def on_torch(module: Any) -> None:
    """`torch.save` is a name of its own for the function of torch.serialization. `print` stays what it is: numba knows it by its identity, and an output
    of the program may ask who writes."""

    def capturing() -> bool:
        return bool(module.cuda.is_current_stream_capturing())

    compiler = module.compiler
    tracing.use(compiler.is_compiling, compiler.is_dynamo_compiling, module.is_grad_enabled, capturing)
    put(module, "save", sys.modules["torch.serialization"].save)
    on_os()


# --- torch.compile ------------------------------------------------------------------------------------------


class Compiled:
    """Compiled functions. torch.compile leaves out the hooks of an optimizer that steps within one: the weights then show that a step ended."""

    def __init__(self) -> None:
        self.end_step: Callable[[], None] | None = None
        """Ends a step of the program, and begins the account if need be."""
        self.stepped = False
        """Whether an optimizer has stepped within the function, where torch.compile left it out."""
        self.used = False
        """Whether a call of torch.compile was seen, by the program or for a change of ours."""
        self.on_use: Callable[[], None] | None = None
        """Called when it asks."""
        self._first = 0

    @wrappers_without_level
    def made(self, function: Any) -> Any:
        """`function`, which torch.compile has made, as a segment. Attributes that torch reads stay."""

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if tracing.is_compiling() or switch.failed or (before := self.begin(args, kwargs)) is None:
                return function(*args, **kwargs)
            try:
                return function(*args, **kwargs)
            finally:
                self.end(before)

        functools.update_wrapper(wrapper, function)
        return wrapper

    @entry("compiled.asked")
    def asked(self) -> None:
        """torch.compile is about to make a function."""
        self.used = True
        if self.on_use is not None:
            self.on_use()

    @entry("compiled.begin")
    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int, bool] | None:
        """Begin the segment. Returns the number of the step, the version of the weights, and whether there is a segment; None: nothing to end."""
        if recorder.light == get_ident() and recorder.stack[-1] == UNMARKED:
            recorder.mark_all()
        if switch.failed or (recorder.thread and (recorder.thread != get_ident() or recorder.stack[-1] != GAP)):
            return None
        if not recorder.thread:
            return (recorder.index, weights_version(), False) if not recorder.index else None
        recorder.enter(COMPILED)
        recorder.passes += 1
        self._first, self.stepped = len(recorder.codes), False
        if not recorder.samples:
            count_samples(args, kwargs)
        return recorder.index, weights_version(), True

    @entry("compiled.end")
    def end(self, before: tuple[int, int, bool]) -> None:
        index, version, entered = before
        if entered:
            if not recorder.thread:
                return
            recorder.leave()
        if recorder.index == index and self.end_step is not None and (self.stepped or weights_version() != version):
            if entered:  # a whole step: its parts are not told apart, also where torch.compile left some of them out
                recorder.join_segments(self._first)
            self.end_step()


def weights_version() -> int:
    """Changes whenever an optimizer that is known has stepped, in whatever way."""
    version = 0
    for optimizer in watch.alive(watch.optimizers):
        for group in optimizer.param_groups[-1:]:
            parameters = group["params"]
            version += sum(parameter._version for parameter in parameters[:: 1 + len(parameters) // 4])
    return version


def on_dynamo(module: Any) -> None:
    """What torch.compile makes of a function. After a graph break, torch would compile the frames of our wrappers, and take them for traced."""
    context = module._TorchDynamoContext
    plain = context.__call__

    def __call__(self: Any, fn: Any) -> Any:
        if type(self).__name__ != "OptimizeContext" or switch.failed:
            return plain(self, fn)
        compiled.asked()
        wrapped = plain(self, fn)
        return compiled.made(wrapped) if isinstance(wrapped, FunctionType) else wrapped

    put(context, "__call__", alike(__call__, plain))
    skip = getattr(module, "skip_code", None)
    if skip is not None:
        for code in (*own_code(), *shells):
            skip(code)
        skip_code.append(skip)


def own_code() -> set[CodeType]:
    """All code of the agent. torch.compile must not compile it where a graph breaks in one of our wrappers; it may still trace through it."""
    package = __name__.partition(".hooks")[0]
    codes: set[CodeType] = set()
    waiting: list[Any] = [
        value
        for name, module in list(sys.modules.items())
        if name.startswith(package) and module is not None
        for value in vars(module).values()
    ]
    while waiting:
        value = waiting.pop()
        if isinstance(value, CodeType):
            if value not in codes:
                codes.add(value)
                waiting.extend(value.co_consts)
        elif isinstance(value, FunctionType):
            waiting += [value.__code__, getattr(value, "__wrapped__", None)]
        elif isinstance(value, type) and value.__module__.startswith(package):
            waiting.extend(vars(value).values())
        elif isinstance(value, property):
            waiting.append(value.fget)
    return {code for code in codes if code.co_filename.startswith((OWN, NO_LEVEL))}


compiled = Compiled()

LIGHTNING = ("lightning.pytorch", "pytorch_lightning")
HOOKS: dict[str, Callable[[Any], None]] = {
    "torch._dynamo.eval_frame": on_dynamo,
    "torch": on_torch,
    "torch.autograd": around(("", "grad", BACKWARD)),
    "torch.nn.modules.module": around(("Module", "zero_grad", ZERO)),
    "torch.serialization": around(("", "save", SAVE)),
    "torch.distributed.distributed_c10d": around(("", COLLECTIVES, COMM)),
    "torch.distributed.checkpoint.state_dict_saver": around(("", "save async_save", SAVE)),
    "safetensors.torch": around(("", "save_file", SAVE)),
    "torch.utils.tensorboard.writer": around(("SummaryWriter", "add_scalar add_scalars add_histogram add_image flush", LOG)),
    "tqdm.std": around(("tqdm", "refresh", LOG)),
    "logging": around(("Logger", "handle", LOG)),
    "accelerate.optimizer": around(("AcceleratedOptimizer", "step", OPTIMIZER), ("AcceleratedOptimizer", "zero_grad", ZERO)),
    "transformers.trainer": around(("Trainer", "compute_loss", WHOLE)),
    **{f"{name}.strategies.strategy": around(("Strategy", "training_step", WHOLE)) for name in LIGHTNING},
    **{f"{name}.core.module": around(("LightningModule", "log log_dict", LOG)) for name in LIGHTNING},
}
