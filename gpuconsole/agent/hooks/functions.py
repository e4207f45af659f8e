"""Functions of the program whose calls are segments: those that make batches, and those that write checkpoints or log records.

sys.monitoring tells where their calls begin and end, and leaves the functions as they are. Before Python 3.12 there is no such way: no function of the
program is watched there.
"""

from __future__ import annotations

import sys
from types import CodeType
from typing import Any

from . import calls, tracing
from .evidence.steps import iterations
from .guard import entry, switch
from .recorder import DATA, OWN, get_ident
from .watch import MONITORING, recorder

TOOL, TOOL_NAME = 4, "gpuconsole"
"""A number for sys.monitoring that no known tool uses (0 to 2 and 5 have a purpose)."""


def watch_function(code: CodeType, segment: int) -> None:
    """Make calls of the functions with this code a segment from now on."""
    if MONITORING is not None:
        _monitor(code, segment)


def begin_call(segment: int) -> bool:
    """Begin a segment of a function. Returns whether there is one to end. Only entry points are called here, and in `end_call`."""
    return begin_source() if segment == DATA else calls.begin(segment)


def end_call(segment: int) -> None:
    if segment == DATA:
        end_source()
    else:
        calls.end()


@entry("source.begin")
def begin_source() -> bool:
    """Begin the segment of a function that makes a batch. Returns whether there is one to end."""
    if recorder.thread != get_ident() or DATA in recorder.stack or recorder.stack[-1] == OWN:
        return False
    if iterations.on:
        iterations.batch_begins(sys._getframe(1))
    recorder.enter(DATA)
    return True


@entry("source.end")
def end_source() -> None:
    if recorder.thread == get_ident() and recorder.stack[-1] == DATA:
        recorder.leave()


_monitored: dict[int, tuple[CodeType, int]] = {}
"""The code of each function and its segment, by the identity of the code: the hash of a code object reads all of its instructions."""
_under_way: list[tuple[int, int]] = []
"""The identity of the frame of each call whose segment is under way, and its segment."""


def _monitor(code: CodeType, segment: int) -> None:
    events = MONITORING.events
    begins, ends = (events.PY_START, events.PY_RESUME, events.PY_THROW), (events.PY_RETURN, events.PY_YIELD, events.PY_UNWIND)
    if MONITORING.get_tool(TOOL) is None:
        MONITORING.use_tool_id(TOOL, TOOL_NAME)
        for event in begins:
            MONITORING.register_callback(TOOL, event, _begins)
        for event in ends:
            MONITORING.register_callback(TOOL, event, _ends)
        MONITORING.set_events(TOOL, events.PY_THROW | events.PY_UNWIND)  # Python has these two for all functions only
        switch.undo.append(_stop_monitoring)
    if MONITORING.get_tool(TOOL) == TOOL_NAME:
        _monitored.setdefault(id(code), (code, segment))
        MONITORING.set_local_events(TOOL, code, events.PY_START | events.PY_RESUME | events.PY_RETURN | events.PY_YIELD)


def _begins(code: CodeType, *_: Any) -> None:
    """A call begins or goes on."""
    known = _monitored.get(id(code))
    if known is not None and not tracing.is_compiling() and begin_call(known[1]):
        _under_way.append((id(sys._getframe(1)), known[1]))


def _ends(*_: Any) -> None:
    """A call ends, also by an exception, or yields a value."""
    if _under_way and _under_way[-1][0] == id(sys._getframe(1)):
        end_call(_under_way.pop()[1])


def _stop_monitoring() -> None:
    """Give the number back: a later agent in this process registers functions of its own."""
    for code, _ in _monitored.values():
        MONITORING.set_local_events(TOOL, code, 0)
    _monitored.clear()
    MONITORING.set_events(TOOL, 0)
    events = MONITORING.events
    for event in (events.PY_START, events.PY_RESUME, events.PY_THROW, events.PY_RETURN, events.PY_YIELD, events.PY_UNWIND):
        MONITORING.register_callback(TOOL, event, None)
    MONITORING.free_tool_id(TOOL)
