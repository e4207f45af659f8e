"""Functions of the program that write checkpoints or log records: found by the calls within them that save, or that force a file to the disk.

Such a function becomes one segment: gathering the state, formatting, writing and flushing belong to the checkpoint or to the log record.
"""

from __future__ import annotations

import os
import sys
from types import CodeType, FrameType, FunctionType
from typing import Any

from ..guard import entry, switch, wrappers_without_level
from ..recorder import GAP, LOG, get_ident
from ..watch import program_frame, recorder

CALLS = ("fsync", "fdatasync")


class Writers:
    """`found`: functions to watch from the next step on, and the code of their segments; None where the function is not at hand."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """As in a process that has not trained yet."""
        self.found: dict[CodeType, tuple[FunctionType | None, int]] = {}
        self._loop: set[CodeType] = set()
        self._known: set[CodeType] = set()

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
        if code in self._known or code in self._loop or code.co_name.startswith("<"):
            return
        self._known.add(code)
        self.found[code] = function_of(frame), segment

    def take(self) -> dict[CodeType, tuple[FunctionType | None, int]]:
        """The functions that were found since the last call."""
        found, self.found = self.found, {}
        return found


def function_of(frame: FrameType) -> FunctionType | None:
    """The function that runs in `frame`: of its module, or of the class of its first argument. A look at all objects would take 60 ms."""
    code = frame.f_code
    found = [frame.f_globals.get(code.co_name)]
    if code.co_argcount:
        first = frame.f_locals.get(code.co_varnames[0])
        for cls in (*getattr(first, "__mro__", ()), *type(first).__mro__):
            method = vars(cls).get(code.co_name)
            found.append(getattr(method, "__func__", method))
    return next((one for one in found if isinstance(one, FunctionType) and one.__code__ is code), None)


writers = Writers()


@entry("writers.begin")
def begin_flush() -> bool:
    """Begin the segment of a call that flushes a file. Returns whether there is one to end."""
    if recorder.thread != get_ident() or recorder.stack[-1] != GAP:
        return False
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

    flush.__name__, flush.__qualname__, flush.__doc__, flush.__module__ = name, name, plain.__doc__, "posix"
    setattr(os, name, flush)
    switch.undo.append(lambda: setattr(os, name, plain))
