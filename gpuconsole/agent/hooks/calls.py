"""Functions that are a segment of their own: saving, logging, collectives, compiled functions; and functions of the program that write
checkpoints or log records. The latter are found by the calls within them that save, or that force a file to the disk. Gathering the state,
formatting, writing and flushing belong to the checkpoint or to the log record.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType
from typing import Any

from . import tracing
from .guard import NO_LEVEL, entry, hot_entry, put, put_until_off, switch, wrappers_without_level
from .recorder import BACKWARD, COMM, COMPILED, GAP, LOG, OPTIMIZER, SAVE, SELDOM_MARKED, UNMARKED, WHOLE, ZERO, get_ident
from .recorder import OWN as OWN_WORK
from .watch import OWN, count_samples, program_frame, recorder, watch

# --- functions of the program that write ---------------------------------------------------------------------

CALLS = ("fsync", "fdatasync")
FORMER = "_gpuconsole_former"
"""A variable of the code that stands in for that of a function (functions.py)."""
MOST_WRITERS = 256
"""Functions that are watched. A program may make such functions all the time."""


class Writers:
    """`new`: functions to watch from the next step on, and the code of their segments; None where the function is not at hand."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """As in a process that has not trained yet."""
        self.new: dict[CodeType, tuple[FunctionType | None, int]] = {}
        self._loop: set[CodeType] = set()
        self._seen: set[CodeType] = set()

    def learn_loop(self) -> None:
        """Called by an optimizer step: the functions around it are the training loop, and never a segment."""
        frame = sys._getframe(1)
        while frame is not None:
            self._loop.add(frame.f_code)
            frame = frame.f_back  # type: ignore[assignment]

    def saw(self, segment: int) -> None:
        """A call that saves or flushes a file has begun."""
        frame = program_frame(sys._getframe())
        if frame is None or not self._loop:
            return
        code = frame.f_code
        is_known = code in self._seen or code in self._loop or len(self._seen) >= MOST_WRITERS
        if is_known or code.co_name.startswith("<") or FORMER in code.co_varnames:
            return
        self._seen.add(code)
        self.new[code] = function_of(frame), segment

    def take(self) -> dict[CodeType, tuple[FunctionType | None, int]]:
        """The functions that were found since the last call."""
        taken, self.new = self.new, {}
        return taken


def function_of(frame: FrameType) -> FunctionType | None:
    """The function that runs in `frame`: of its module, or of the class of its first argument. A look at all objects would take 60 ms."""
    code = frame.f_code
    functions = [frame.f_globals.get(code.co_name)]
    if code.co_argcount:
        first = frame.f_locals.get(code.co_varnames[0])
        for cls in (*getattr(first, "__mro__", ()), *type(first).__mro__):
            method = vars(cls).get(code.co_name)
            functions.append(getattr(method, "__func__", method))
    return next((function for function in functions if isinstance(function, FunctionType) and function.__code__ is code), None)


writers = Writers()


@entry("writers.begin")
def begin_flush() -> bool:
    """Begin the segment of a call that flushes a file. Returns whether there is one to end."""
    if recorder.thread != get_ident() or recorder.stack[-1] not in (GAP, UNMARKED):
        return False
    recorder.mark_all()
    writers.saw(LOG)
    recorder.enter(LOG)
    return True


@entry("writers.end")
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

COLLECTIVES = (
    "all_reduce all_gather all_gather_into_tensor reduce_scatter_tensor broadcast barrier reduce all_gather_object broadcast_object_list"
)


@wrappers_without_level
def spanned(code: int, call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, as a segment with `code` on the training thread. Its name, module and documentation stay."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if tracing.compiles() or (recorder.light and code in SELDOM_MARKED) or tracing.is_compiling() or not begin(code):
            return call(*args, **kwargs)
        try:
            return call(*args, **kwargs)
        finally:
            end()

    for name in ("__name__", "__qualname__", "__doc__", "__module__"):
        if hasattr(call, name):
            setattr(wrapper, name, getattr(call, name))
    wrapper.__wrapped__ = call  # type: ignore[attr-defined]
    return wrapper


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
        elif code == SAVE and stack[-1] == GAP:
            writers.saw(SAVE)
        recorder.enter(code)
        return True
    except Exception as problem:
        switch.part_off("calls.begin", problem)
        return False


@hot_entry("calls.end")
def end() -> None:
    try:
        if recorder.thread:
            recorder.leave()
    except Exception as problem:
        switch.part_off("calls.end", problem)


def _leave_calls() -> None:
    """These segments are not ended any longer. Raises RuntimeError where one may be open that could as well be of an optimizer or a backward pass."""
    recorder.drop((ZERO, SAVE, LOG, COMM, WHOLE))
    if OPTIMIZER in recorder.stack or BACKWARD in recorder.stack:
        raise RuntimeError("it failed within an optimizer step or a backward pass")


switch.undo_part["calls"] = _leave_calls
switch.undo_part["writers"] = lambda: recorder.drop((LOG,))


def around(*entries: tuple[str, str, int]) -> Callable[[Any], None]:
    """A hook that makes segments of functions: (class within the module, or empty; names; code)."""

    def hook(module: Any) -> None:
        for holder, names, code in entries:
            target = getattr(module, holder, None) if holder else module
            for name in names.split():
                if hasattr(target, name):
                    put(target, name, spanned(code, getattr(target, name)))

    return hook


def on_torch(module: Any) -> None:
    """`torch.save` is a name of its own for the function of torch.serialization."""
    import builtins

    def capturing() -> bool:
        return bool(module.cuda.is_current_stream_capturing())

    compiler = module.compiler
    tracing.use(compiler.is_compiling, compiler.is_dynamo_compiling, module.is_grad_enabled, capturing)
    put(module, "save", sys.modules["torch.serialization"].save)
    put_until_off(builtins, "print", spanned(LOG, builtins.print))
    on_os()


# --- torch.compile ------------------------------------------------------------------------------------------


class Compiled:
    """Compiled functions. torch.compile leaves out the hooks of an optimizer that steps within one: the weights then show that a step ended."""

    def __init__(self) -> None:
        self.end_step: Callable[[], None] | None = None
        """Ends a step of the program, and begins the account if need be."""
        self.stepped = False
        """Whether an optimizer has stepped within the function, where torch.compile left it out."""
        self._first = 0

    @wrappers_without_level
    def made(self, function: Any) -> Any:
        """`function`, which torch.compile has made, as a segment. Attributes that torch reads stay."""

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if tracing.is_compiling() or (before := self.begin(args, kwargs)) is None:
                return function(*args, **kwargs)
            try:
                return function(*args, **kwargs)
            finally:
                self.end(before)

        functools.update_wrapper(wrapper, function)
        return wrapper

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
        wrapped = plain(self, fn)
        return compiled.made(wrapped) if type(self).__name__ == "OptimizeContext" and isinstance(wrapped, FunctionType) else wrapped

    put(context, "__call__", __call__)
    skip = getattr(module, "skip_code", None)
    if skip is not None:
        for code in own_code():
            skip(code)


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
