"""The guard of the entry points: where code of ours fails inside the user's program, the agent switches itself off and the program continues."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from types import CodeType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

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


class Switch:
    """Whether the agent is on. `on_off` receives the entry point, the exception's line and its traceback, once."""

    def __init__(self) -> None:
        self.failed = False
        self.on_off: Callable[[str, str, str], None] | None = None
        self.undo: list[Callable[[], None]] = []
        """What switches the single parts off: the recorder, the profile function."""

    def off(self, where: str, problem: BaseException | None) -> None:
        """Switch the agent off in this process. Never raises."""
        if self.failed:
            return
        self.failed = True
        for undo in self.undo:
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


switch = Switch()


def hot_entry(where: str) -> Callable[[F], F]:
    """As `entry`, for the entry points of each step: the function itself catches its exceptions and calls `switch.off`. The call of a second function
    would cost 1 to 3 µs, because the training thread's own work drives that function out of the caches."""

    def note(function: F) -> F:
        ENTRY_POINTS[where] = function
        return function

    return note


def entry(where: str) -> Callable[[F], F]:
    """Make a function an entry point: it returns None after a failure, and the agent is off then. KeyboardInterrupt and SystemExit pass."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def guarded(*args: Any) -> Any:
            try:
                return function(*args)
            except Exception as problem:
                switch.off(where, problem)
                return None

        ENTRY_POINTS[where] = guarded
        return guarded  # type: ignore[return-value]

    return decorate
