"""The form in which a hook names a function of torch or of a library whose calls it wants to see."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, NamedTuple

DEEPEST = 8
"""Decorators around a function that are looked through."""


class Border(NamedTuple):
    """A function whose calls are a part of a step. The functions of ours run on the training thread."""

    module: str
    """The module that holds the function. The border is there once the program has imported it."""
    path: str
    """The name of the function within the module: `DataLoader.__iter__`."""
    begin: Callable[[FrameType], bool]
    """Called as the function begins, with the frame of the call. Returns whether `end` is to be called."""
    end: Callable[[bool], None]
    """Called as the function ends; True: by an exception, which may be noticed later."""
    part: str = ""
    """The part of the agent that is off where `begin` or `end` fails: one of `guard.PARTS`. Empty: the whole agent."""
    hot: bool = False
    """Whether each step has such calls. They are not seen in a step that is only counted."""
    records: bool = False
    """Whether the body of the function is `with torch.autograd.profiler.record_function(...)`: its end is seen where an exception ends it, too."""
    inner: tuple[str, ...] = ()
    """The names of a function that the function at `path` defines, and that is meant in its place: torch names it differently in its versions."""
    elsewhere: Callable[[], None] | None = None
    """Called as the function begins on another thread than the training's."""


class Note(NamedTuple):
    """A function after whose call something is noted, on whatever thread."""

    module: str
    path: str
    call: Callable[[FrameType, Any], None]
    """Called as the function returns, with its frame and its result."""
    part: str = ""


def code_of(holder: Any, path: str, inner: tuple[str, ...] = ()) -> CodeType | None:
    """The code that runs for the function at `path`, below decorators that name what they wrap; None where there is no such Python function."""
    function = holder
    for name in path.split("."):
        function = getattr(function, name, None)
    code = own_code(function)
    return nested(code, inner) if code is not None and inner else code


def own_code(function: Any) -> CodeType | None:
    """The code of a function, below bound methods and decorators; None for what is not written in Python."""
    for _ in range(DEEPEST):
        if isinstance(function, FunctionType):
            wrapped = function.__dict__.get("__wrapped__")
            if wrapped is None:
                return function.__code__
            function = wrapped
        elif isinstance(function, (MethodType, staticmethod, classmethod)):
            function = function.__func__
        else:
            return None
    return None


def nested(code: CodeType, names: tuple[str, ...]) -> CodeType | None:
    """The code of the first function with one of these names that `code` defines, however deep."""
    waiting = [code]
    while waiting:
        for constant in waiting.pop(0).co_consts:
            if isinstance(constant, CodeType):
                if constant.co_name in names:
                    return constant
                waiting.append(constant)
    return None
