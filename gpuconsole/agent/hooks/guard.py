"""The guard of the entry points: where code of ours fails inside the user's program, the program
continues.

A failure in a part without which the rest still holds (PARTS) switches only this part off. Any
other failure switches the agent off.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import opcode
import os
import signal
import sys
import traceback
import weakref
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

OWN = os.path.dirname(os.path.dirname((lambda: None).__code__.co_filename)) + os.sep
"""The begin of the names of files that the agent's code has: in a job `<gpuconsole>/`, see
`sitecustomize`."""
ENTRY_POINTS: dict[str, Callable[..., Any]] = {}
"""All entry points that are loaded, by name."""
NO_LEVEL = "<gpuconsole, skipped like importlib._bootstrap>"
"""A file name with these two words: `warnings.warn` does not count such frames as levels of the
stack (`_is_internal_frame`)."""


def wrappers_without_level(function: F) -> F:
    """Make the functions that `function` defines no levels of the stack for
    `warnings.warn(..., stacklevel=2)`: a warning then names the same line as without these
    wrappers."""
    code = function.__code__
    constants = tuple(
        constant.replace(co_filename=NO_LEVEL) if isinstance(constant, CodeType) else constant
        for constant in code.co_consts
    )
    function.__code__ = code.replace(co_consts=constants)
    return function


# --- exceptions that are not the agent's ----------------------------------------------------------

_RAISES = {opcode.opmap[name] for name in ("RAISE_VARARGS", "RERAISE")}
_WITHOUT_TEXT = (StopIteration, StopAsyncIteration, MemoryError)
"""Exceptions that functions written in C raise without arguments. `_queue.Empty` is the other
one."""


def from_outside(problem: BaseException) -> bool:
    """Whether an exception in the agent's code comes from outside: from Ctrl-C, from a signal
    handler of the program, or from another thread (PyThreadState_SetAsyncExc). The program expects
    such an exception."""
    if not isinstance(problem, Exception):
        return True
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = [
        ask(ask(handler, "__func__", handler), "__code__")
        for handler in handlers
        if callable(handler)
    ]
    place, last = problem.__traceback__, None
    while place is not None:
        if any(place.tb_frame.f_code is code for code in codes) or _is_handler(place.tb_frame):
            return True
        place, last = place.tb_next, place
    if (
        last is None
        or problem.args
        or isinstance(problem, _WITHOUT_TEXT)
        or type(problem).__module__ == "_queue"
    ):
        return False
    return last.tb_frame.f_code.co_code[last.tb_lasti] not in _RAISES  # no line has raised it


def _is_handler(frame: FrameType) -> bool:
    """Whether a frame is that of a signal handler of the program which may have set another one
    since then: two of its arguments are a number and the frame that it has interrupted."""
    code = frame.f_code
    if code.co_filename.startswith((OWN, NO_LEVEL)):
        return False
    names = code.co_varnames[
        : code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
    ]
    values: list[Any] = []
    for value in map(frame.f_locals.get, names):
        values += value if type(value) is tuple else (value,)
    return any(
        issubclass(type(number), int) and given is frame.f_back
        for number, given in itertools.pairwise(values)
    )


def ask(value: Any, name: str, default: Any = None) -> Any:
    """An attribute of an object of the program; `default` where the object raises whatever
    exception."""
    try:
        return getattr(value, name, default)
    except Exception as problem:
        if from_outside(problem):
            raise
        return default


@contextlib.contextmanager
def without_failures() -> Iterator[None]:
    """A failure of the agent's in this block does not leave it. What is not the agent's passes."""
    try:
        yield
    except Exception as problem:
        if from_outside(problem):
            raise


def unseen(function: Callable[..., T]) -> Callable[..., T]:
    """`function`, in which no mode and no tensor class of the program sees which functions of torch
    are called."""

    @functools.wraps(function)
    def call(*args: Any) -> T:
        torch = sys.modules.get("torch")
        if torch is None:
            return function(*args)
        with torch._C.DisableTorchFunction():
            return function(*args)

    return call


PARTS = {
    "data": "the waits for batches of a DataLoader",
    "parts": "the parts of loading that take most of its time",
    "calls": "logging, checkpoints, collectives and zero_grad",
    "loss": "the loss",
    "stream": "times of the GPU",
    "graphs": "CUDA graphs",
    "settings": "the settings of the program",
    "arithmetic": "the FLOPs of a step",
    "memory": "the memory of parameters, gradients and optimizer",
    "stacks": "the lines of the program that take time",
    "communication": "exchanges of gradients",
    "collectives": "the record of collectives",
    "copies": "copies to the GPU, and waits for it",
}
"""What the agent does not measure any longer once a part is off, by part."""


class Switch:
    """Whether the agent is on, and which parts of it. `on_off` receives the entry point, the
    exception's line and its traceback, once."""

    def __init__(self) -> None:
        self.failed = False
        self.on_off: Callable[[str, str, str], None] | None = None
        self.undo: list[Callable[[], None]] = []
        """What switches the whole agent off: the recorder, the sampling thread."""
        self.parts_off: set[str] = set()
        self.notes: list[str] = []
        """A line for each part that has failed, until it is sent."""
        self.undo_part: dict[str, Callable[[], None]] = {}
        """What takes a part out of the account, by part."""
        self.begin_anew: list[Callable[[], None]] = []
        """What to do after an exception of the program has ended a call of the agent's code in its
        middle."""

    def passes(self, problem: BaseException | None) -> bool:
        """Whether `problem` is not the agent's: it must be raised again, and the account begins
        anew."""
        if problem is None or not from_outside(problem):
            return False
        for begin in self.begin_anew:
            begin()
        return True

    def off(self, where: str, problem: BaseException | None) -> bool:
        """Switch the agent off in this process. Returns whether `problem` is not the agent's: raise
        it again then, and the agent goes on. Raises no exception of the agent."""
        if self.passes(problem):
            return True
        if self.failed:
            return False
        self.failed = True
        from_program: Exception | None = None
        for act in (*self.undo, lambda: self._report(where, problem)):
            try:
                act()
            except Exception as failure:  # the next part is switched off all the same
                from_program = failure if from_outside(failure) else from_program
        if from_program is not None:
            raise from_program
        return False

    def _report(self, where: str, problem: BaseException | None) -> None:
        """Say why the agent is off. Where the connection is gone too, there is nobody to report
        to."""
        if self.on_off is not None:
            line = (
                f"{type(problem).__name__}: {problem}".splitlines()[0]
                if problem is not None
                else ""
            )
            detail = (
                "".join(
                    traceback.format_exception(type(problem), problem, problem.__traceback__)[-6:]
                )
                if problem is not None
                else ""
            )
            self.on_off(where, line, detail)

    def part_off(self, where: str, problem: BaseException) -> bool:
        """Switch off the part that `where` (`part.place`) belongs to: its entry points do nothing
        from now on. Returns as `off`."""
        if self.passes(problem):
            return True
        part = where.partition(".")[0]
        if part in self.parts_off:
            return False
        self.parts_off.add(part)
        for module, name in _entries_of.get(part, ()):
            module[name] = _nothing
        try:
            self.undo_part.get(part, _nothing)()
            line = f"{type(problem).__name__}: {problem}".splitlines()[0]
            self.notes.append(
                f"gpuconsole does not measure {PARTS[part]} any longer: {where} failed with {line}"
            )
        except Exception as failure:  # this part cannot be taken out of the account
            if self.off(where, failure):
                raise
        return False

    def attempt(self, where: str, function: Callable[..., T], *args: Any) -> T | None:
        """The result of `function`; None after a failure, and the part of `where` is off then: it
        is not called again."""
        if where.partition(".")[0] in self.parts_off:
            return None
        try:
            return function(*args)
        except BaseException as problem:
            if self.part_off(where, problem):
                raise
            return None


switch = Switch()

# --- hooks of attributes --------------------------------------------------------------------------

_MISSING = object()


class Hook(NamedTuple):
    """`name` of `holder` (a module, a class or an object), which was `before`. Nothing here keeps
    the holder alive."""

    holder: weakref.ref[Any]
    name: str
    value: Any
    before: Any


_hooks: list[Hook] = []


def put(holder: Any, name: str, value: Any) -> Hook:
    """Put `value` in place of an attribute of the program's modules, classes or objects, until
    `put_back`."""
    hook = Hook(weakref.ref(holder), name, value, vars(holder).get(name, _MISSING))
    setattr(holder, name, value)
    _hooks.append(hook)
    return hook


def _take_away(hook: Hook) -> None:
    """Put one attribute back. What the program has put in place of the hook since then is left
    alone: it may call the hook, which does nothing where the agent is off."""
    holder = hook.holder()
    if holder is None or vars(holder).get(hook.name) is not hook.value:
        return
    if hook.before is _MISSING:
        delattr(holder, hook.name)
    else:
        setattr(holder, hook.name, hook.before)


def put_back(stays: Callable[[Any], bool] = lambda holder: False) -> None:
    """Put the attributes back, but not those of holders that stay."""
    for hook in reversed(_hooks):
        if (holder := hook.holder()) is not None and not stays(holder):
            _take_away(hook)
    _hooks[:] = [hook for hook in _hooks if (holder := hook.holder()) is not None and stays(holder)]


_entries_of: dict[str, list[tuple[dict[str, Any], str]]] = {}
"""The module and the name of each function that is an entry point of a part, by part."""


def _nothing(*_: Any) -> None:
    """In place of an entry point whose part is off."""


def entry(where: str) -> Callable[[F], F]:
    """Make a function an entry point: it returns None after a failure. Its part is off then; the
    agent, where it belongs to none of PARTS. What is not the agent's passes."""
    off = switch.part_off if where.partition(".")[0] in PARTS else switch.off

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def guarded(*args: Any) -> Any:
            try:
                return function(*args)
            except BaseException as problem:
                if off(where, problem):
                    raise
                return None

        _note(where, function, guarded)
        return guarded  # type: ignore[return-value]

    return decorate


def _note(where: str, function: Callable[..., Any], guarded: Callable[..., Any]) -> None:
    """Remember an entry point; and where it stands, if it is a function of a module and its part
    can be off alone."""
    ENTRY_POINTS[where] = guarded
    part = where.partition(".")[0]
    if part in PARTS and "." not in function.__qualname__:
        _entries_of.setdefault(part, []).append((function.__globals__, function.__name__))
