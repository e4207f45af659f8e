"""The guard of the entry points: where code of ours fails inside the user's program, the program continues.

A failure in a part without which the rest still holds (PARTS) switches only this part off. Any other failure switches the agent off.
"""

from __future__ import annotations

import functools
import sys
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

MARK = "_gpuconsole_watched"
"""The attribute that marks a wrapper of ours. A function with this attribute is not wrapped again."""
ENTRY_POINTS: dict[str, Callable[..., Any]] = {}
"""All entry points that are loaded, by name."""
NO_LEVEL = "<gpuconsole, skipped like importlib._bootstrap>"
"""A file name with these two words: `warnings.warn` does not count such frames as levels of the stack (`_is_internal_frame`)."""


def wrappers_without_level(function: F) -> F:
    """Make the functions that `function` defines no levels of the stack for `warnings.warn(..., stacklevel=2)`: a warning then names the same line
    as without these wrappers."""
    code = function.__code__
    constants = tuple(constant.replace(co_filename=NO_LEVEL) if isinstance(constant, CodeType) else constant for constant in code.co_consts)
    function.__code__ = code.replace(co_consts=constants)
    return function


def without_level(function: F) -> F:
    """The same for the function itself."""
    function.__code__ = function.__code__.replace(co_filename=NO_LEVEL)
    return function


PARTS = {
    "data": "the waits for batches of a DataLoader",
    "parts": "the parts of loading that take most of its time",
    "calls": "logging, checkpoints, collectives and zero_grad",
    "writers": "functions that write files",
    "source": "functions that make batches",
    "loss": "the loss",
    "stream": "times of the GPU",
    "graphs": "CUDA graphs",
    "settings": "the settings of the program",
    "arithmetic": "the FLOPs of a step",
    "memory": "the memory of parameters, gradients and optimizer",
    "communication": "exchanges of gradients",
    "copies": "copies to the GPU, and waits for it",
}
"""What the agent does not measure any longer once a part is off, by part."""


class Switch:
    """Whether the agent is on, and which parts of it. `on_off` receives the entry point, the exception's line and its traceback, once."""

    def __init__(self) -> None:
        self.failed = False
        self.on_off: Callable[[str, str, str], None] | None = None
        self.undo: list[Callable[[], None]] = []
        """What switches the whole agent off: the recorder, the profile function."""
        self.parts_off: set[str] = set()
        self.notes: list[str] = []
        """A line for each part that has failed, until it is sent."""
        self.undo_part: dict[str, Callable[[], None]] = {}
        """What takes a part out of the account, by part."""

    def off(self, where: str, problem: BaseException | None) -> None:
        """Switch the agent off in this process. Never raises."""
        if self.failed:
            return
        self.failed = True
        for undo in list(self.undo):
            try:
                undo()
            except Exception:  # the next part is switched off all the same
                continue
        if self.on_off is None:
            return
        try:
            line = f"{type(problem).__name__}: {problem}".splitlines()[0] if problem is not None else ""
            detail = "".join(traceback.format_exception(type(problem), problem, problem.__traceback__)[-6:]) if problem is not None else ""
            self.on_off(where, line, detail)
        except Exception:  # the connection is gone too: there is nobody to report to
            return

    def part_off(self, where: str, problem: BaseException) -> None:
        """Switch off the part that `where` (`part.place`) belongs to: its entry points do nothing from now on. Never raises."""
        part = where.partition(".")[0]
        if part in self.parts_off:
            return
        self.parts_off.add(part)
        for module, name in _entries_of.get(part, ()):
            module[name] = _nothing
        try:
            self.undo_part.get(part, _nothing)()
            line = f"{type(problem).__name__}: {problem}".splitlines()[0]
            self.notes.append(f"gpuconsole does not measure {PARTS[part]} any longer: {where} failed with {line}")
        except Exception as failure:  # this part cannot be taken out of the account
            self.off(where, failure)

    def attempt(self, where: str, function: Callable[..., T], *args: Any) -> T | None:
        """The result of `function`; None after a failure, and the part of `where` is off then: it is not called again."""
        if where.partition(".")[0] in self.parts_off:
            return None
        try:
            return function(*args)
        except Exception as problem:
            self.part_off(where, problem)
            return None


switch = Switch()

# --- hooks of attributes -------------------------------------------------------------------------------------

_MISSING = object()


class Hook(NamedTuple):
    """`name` of `holder` (a module, a class or an object), which was `before`. Nothing here keeps the holder alive."""

    holder: weakref.ref[Any]
    name: str
    value: Any
    before: Any


_hooks: list[Hook] = []


def put(holder: Any, name: str, value: Any) -> Hook:
    """Put `value` in place of an attribute of the program's modules, classes or objects, until `put_back`."""
    hook = Hook(weakref.ref(holder), name, value, vars(holder).get(name, _MISSING))
    _hooks.append(hook)
    setattr(holder, name, value)
    return hook


def put_until_off(holder: Any, name: str, value: Any) -> None:
    """As `put`, for attributes that a program without an agent uses all the time: put back once the agent is off."""
    hook = put(holder, name, value)
    switch.undo.append(lambda: _take_away(hook))


def _take_away(hook: Hook) -> None:
    """Put one attribute back. What the program has put in place of the hook since then is left alone: it may call the hook, which does nothing where the
    agent is off."""
    holder = hook.holder()
    if holder is None or vars(holder).get(hook.name) is not hook.value:
        return
    if hook.before is _MISSING:
        delattr(holder, hook.name)
    else:
        setattr(holder, hook.name, hook.before)


def without_hooks(holder: Any, attributes: dict[str, Any]) -> None:
    """Make `attributes`, a copy of those of `holder`, what they are without the agent."""
    for hook in reversed(_hooks):
        if attributes.get(hook.name) is hook.value and hook.holder() is holder:
            if hook.before is _MISSING:
                del attributes[hook.name]
            else:
                attributes[hook.name] = hook.before


def put_back(stays: Callable[[Any], bool] = lambda holder: False) -> None:
    """Put the attributes back, but not those of holders that stay."""
    for hook in reversed(_hooks):
        if (holder := hook.holder()) is not None and not stays(holder):
            _take_away(hook)
    taken = {id(hook.value): hook for hook in _hooks if isinstance(hook.before, FunctionType) and hook.before is not hook.value}
    for module, name, hook in _held(taken):  # torch itself takes `save` from torch.serialization
        if (holder := hook.holder()) is None or not stays(holder):
            setattr(module, name, hook.before)
    _hooks[:] = [hook for hook in _hooks if (holder := hook.holder()) is not None and stays(holder)]


def put_under_other_names() -> None:
    """Other modules have taken some functions before these were hooked: `torch.distributed.all_reduce`, or what a program imports by
    `from torch import save`. Put the hooks there too. Where the agent starts before torch is imported, this is not needed."""
    of_modules = {
        id(hook.before): hook for hook in _hooks if isinstance(hook.holder(), ModuleType) and isinstance(hook.before, FunctionType)
    }
    for module, name, hook in _held(of_modules):
        put(module, name, hook.value)


def _held(hooks: Mapping[int, Hook]) -> Iterator[tuple[ModuleType, str, Hook]]:
    """Where modules hold one of these functions, under whatever name. `hooks`: by the identity of the function."""
    for module in list(sys.modules.values()):
        for name, value in list(vars(module).items()) if isinstance(module, ModuleType) else ():
            if (hook := hooks.get(id(value))) is not None:
                yield module, name, hook


_entries_of: dict[str, list[tuple[dict[str, Any], str]]] = {}
"""The module and the name of each function that is an entry point of a part, by part."""


def _nothing(*_: Any) -> None:
    """In place of an entry point whose part is off."""


def hot_entry(where: str) -> Callable[[F], F]:
    """As `entry`, for the entry points of each step: the function itself catches its exceptions and calls `switch.off`, or `switch.part_off`. The
    call of a second function would cost 1 to 3 µs, because the training thread's own work drives that function out of the caches."""

    def note(function: F) -> F:
        _note(where, function, function)
        return function

    return note


def entry(where: str) -> Callable[[F], F]:
    """Make a function an entry point: it returns None after a failure. Its part is off then; the agent, where it belongs to none of PARTS.
    KeyboardInterrupt and SystemExit pass."""
    off = switch.part_off if where.partition(".")[0] in PARTS else switch.off

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def guarded(*args: Any) -> Any:
            try:
                return function(*args)
            except Exception as problem:
                off(where, problem)
                return None

        _note(where, function, guarded)
        return guarded  # type: ignore[return-value]

    return decorate


def _note(where: str, function: Callable[..., Any], guarded: Callable[..., Any]) -> None:
    """Remember an entry point; and where it stands, if it is a function of a module and its part can be off alone."""
    ENTRY_POINTS[where] = guarded
    part = where.partition(".")[0]
    if part in PARTS and "." not in function.__qualname__:
        _entries_of.setdefault(part, []).append((function.__globals__, function.__name__))
