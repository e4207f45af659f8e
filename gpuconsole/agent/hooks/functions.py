"""Functions of the program whose calls are segments: those that make batches, and those that write checkpoints or log records.

sys.monitoring tells where their calls begin and end, and leaves the functions as they are. Before Python 3.12 they get other code, which calls the
former code within a segment. A wrapper object would not be seen where the program holds the function in a local variable.
"""

from __future__ import annotations

import ast
import gc
import inspect
import sys
import weakref
from collections.abc import Callable, Generator
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from . import calls, tracing
from .calls import FORMER
from .evidence.steps import iterations
from .guard import entry, switch, without_level
from .recorder import DATA, OWN, get_ident
from .watch import recorder

MONITORING: Any = getattr(sys, "monitoring", None)
TOOL, TOOL_NAME = 4, "gpuconsole"
"""A number for sys.monitoring that no known tool uses (0 to 2 and 5 have a purpose)."""
AWAITED = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
"""Functions with one of these flags keep their code: other code would have to be awaited in the same way."""


def watch_function(code: CodeType, segment: int, function: FunctionType | None = None) -> None:
    """Make calls of the functions with this code a segment from now on. `function`: the one with this code, where it is at hand."""
    if MONITORING is not None:
        _monitor(code, segment)
    elif not code.co_flags & AWAITED and FORMER not in code.co_varnames and code.co_name.isidentifier():
        for holder in [function] if function is not None else gc.get_referrers(code):
            if isinstance(holder, FunctionType) and holder.__code__ is code:
                replace_code(holder, segment)


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


# --- by sys.monitoring ---------------------------------------------------------------------------------------

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


# --- by other code -------------------------------------------------------------------------------------------


class Replaced(NamedTuple):
    """The code of ours that a function has, and its own code."""

    ours: CodeType
    own: CodeType


_replaced: weakref.WeakKeyDictionary[FunctionType, Replaced] = weakref.WeakKeyDictionary()
CALL = """
def make():
    {cells}
    def {name}({parameters}):
        {former} = lambda: ({closure})
        from {module} import called as _gpuconsole_called
        return _gpuconsole_called({segment}, {former}, {arguments})
"""
GENERATOR = """
def make():
    {cells}
    def {name}({parameters}):
        {former} = lambda: ({closure})
        from {module} import Resumed as _gpuconsole_resumed
        _gpuconsole_resumed = _gpuconsole_resumed({segment}, {former}({arguments}))
        del {held}
        while _gpuconsole_resumed.goes_on():
            try:
                _gpuconsole_resumed.sent((yield _gpuconsole_resumed.taken()))
            except BaseException as _gpuconsole_problem:
                _gpuconsole_resumed.thrown(_gpuconsole_problem)
        return _gpuconsole_resumed.taken()
"""
"""What stands in for the code of a function. The lambda gets that code, and the variables of the function that are not its own. No constant of this code
is an object: Python's garbage collector finds no references there, and torch.compile cannot trace them."""


def replace_code(function: FunctionType, segment: int) -> None:
    """Give `function` code of the same kind and with the same parameters, which calls its own code within a segment."""
    own = function.__code__
    ours = _code_around(own, segment)
    if not _replaced:
        switch.undo.append(_forget_replaced)
    _replaced[function] = Replaced(ours, own)
    if not _pickles:
        function.__code__ = ours


def _code_around(own: CodeType, segment: int) -> CodeType:
    """The tracebacks and `inspect` find `own` by its file and its first line."""
    parameters, arguments, names = _parameters(own)
    text = (GENERATOR if own.co_flags & inspect.CO_GENERATOR else CALL).format(
        name=own.co_name,
        parameters=", ".join(parameters),
        arguments=", ".join(arguments),
        held=", ".join((FORMER, *names)),
        cells="; ".join(f"{name} = None" for name in own.co_freevars) or "pass",
        closure=" ".join(f"{name}," for name in own.co_freevars),
        former=FORMER,
        module=__name__,
        segment=segment,
    )
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if hasattr(node, "lineno"):
            node.lineno = node.end_lineno = own.co_firstlineno  # type: ignore[attr-defined]
            node.col_offset = node.end_col_offset = 0  # type: ignore[attr-defined]
    ours = _inner(_inner(compile(tree, own.co_filename, "exec")))
    assert ours.co_freevars == own.co_freevars, "the variables that are not its own are in alphabetical order"
    constants = tuple(own if isinstance(constant, CodeType) else constant for constant in ours.co_consts)
    ours = ours.replace(co_consts=constants)
    return ours.replace(co_qualname=own.co_qualname) if hasattr(own, "co_qualname") else ours  # from Python 3.11 on


def _inner(code: CodeType) -> CodeType:
    """The code of the only function that is defined in `code`."""
    return next(constant for constant in code.co_consts if isinstance(constant, CodeType))


def _parameters(code: CodeType) -> tuple[list[str], list[str], list[str]]:
    """The parameters of a function without their defaults, the arguments of a call that passes them on, and their names."""
    names = list(code.co_varnames)
    positional = [names.pop(0) for _ in range(code.co_argcount)]
    keywords = [names.pop(0) for _ in range(code.co_kwonlyargcount)]
    rest = [f"*{names.pop(0)}"] if code.co_flags & inspect.CO_VARARGS else []
    rest_by_name = [f"**{names.pop(0)}"] if code.co_flags & inspect.CO_VARKEYWORDS else []
    parameters = [*positional, *(rest or ["*"] * bool(keywords)), *keywords, *rest_by_name]
    if code.co_posonlyargcount:
        parameters.insert(code.co_posonlyargcount, "/")
    arguments = [*positional, *rest, *(f"{name}={name}" for name in keywords), *rest_by_name]
    return parameters, arguments, [name.lstrip("*") for name in (*positional, *keywords, *rest, *rest_by_name)]


@without_level
def called(segment: int, former: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """A call of a function whose code was replaced."""
    if tracing.is_compiling() or not begin_call(segment):
        return former(*args, **kwargs)
    try:
        return former(*args, **kwargs)
    finally:
        end_call(segment)


class Resumed:
    """A generator of the program. Each stretch of its own code is a segment. What it receives and what it yields is not kept any longer than it does."""

    def __init__(self, segment: int, generator: Generator[Any, Any, Any]) -> None:
        self._segment = segment
        self._generator = generator
        self._function: Callable[[Any], Any] = generator.send
        """How the generator goes on."""
        self._given: list[Any] = [None]
        """What it receives. No variable of a frame refers to that: an exception would refer to itself by its traceback."""
        self._value: Any = None

    @without_level
    def goes_on(self) -> bool:
        """Run the generator up to its next value, or to its end. Returns whether it has yielded a value; at its end it has returned one."""
        function = self._function
        begun = not tracing.is_compiling() and begin_call(self._segment)
        try:
            self._value = function(self._given.pop())
            return True
        except StopIteration as end:
            self._value = end.value
            return False
        finally:
            if begun:
                end_call(self._segment)

    def taken(self) -> Any:
        """What the generator has yielded, or returned."""
        value, self._value = self._value, None
        return value

    def sent(self, value: Any) -> None:
        self._function = self._generator.send
        self._given.append(value)

    def thrown(self, problem: BaseException) -> None:
        self._function = self._generator.throw
        self._given.append(problem)


def _forget_replaced() -> None:
    """Give the functions their own code back, for good. A program may have given them other code since then, as IPython's autoreload does."""
    for function, (ours, own) in list(_replaced.items()):
        if function.__code__ is ours:
            function.__code__ = own
    _replaced.clear()


_pickles: list[None] = []
"""A member for each pickle by value that is being made."""


def give_own_code() -> None:
    """A pickle by value begins: it may hold functions with their code."""
    _pickles.append(None)
    for function, (ours, own) in list(_replaced.items()):
        if function.__code__ is ours:
            function.__code__ = own


def take_own_code() -> None:
    """The pickle is made."""
    _pickles.pop()
    if _pickles:
        return
    for function, (ours, own) in list(_replaced.items()):
        if function.__code__ is own:
            function.__code__ = ours
