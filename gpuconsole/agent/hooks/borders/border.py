"""Borders of a training step: the form in which a hook names a function of torch or of a library
whose calls it wants to see, and the borders that are open."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, NamedTuple

from ...forks import in_forked_children

# --- the names of functions -----------------------------------------------------------------------

DEEPEST = 8
"""Decorators around a function that are looked through."""


class Border(NamedTuple):
    """A function whose calls are a part of a step. The functions of ours run on the training
    thread."""

    module: str
    """The module that holds the function. The border is there once the program has imported it."""
    path: str
    """The name of the function within the module: `DataLoader.__iter__`."""
    begin: Callable[[FrameType], bool]
    """Called as the function begins, with the frame of the call. Returns whether `end` is to be
    called."""
    end: Callable[[bool], None]
    """Called as the function ends; True: by an exception, which may be noticed later."""
    part: str = ""
    """The part of the agent that is off where `begin` or `end` fails: one of `guard.PARTS`. Empty:
    the whole agent."""
    hot: bool = False
    """Whether each step has such calls. They are not seen in a step that is only counted."""
    records: bool = False
    """Whether the body of the function is `with torch.autograd.profiler.record_function(...)`: its
    end is seen where an exception ends it, too."""
    inner: tuple[str, ...] = ()
    """The names of a function that the function at `path` defines, and that is meant in its place:
    torch names it differently in its versions."""
    elsewhere: Callable[[], None] | None = None
    """Called as the function begins on another thread than the training's."""


class NotedCall(NamedTuple):
    """A function after whose call something is noted, on whatever thread."""

    module: str
    path: str
    call: Callable[[FrameType, Any], None]
    """Called as the function returns, with its frame and its result."""
    part: str = ""


def code_of(holder: Any, path: str, inner: tuple[str, ...] = ()) -> CodeType | None:
    """The code that runs for the function at `path`, below decorators that name what they wrap;
    None where there is no such Python function."""
    function = holder
    for name in path.split("."):
        function = getattr(function, name, None)
    code = own_code(function)
    return nested(code, inner) if code is not None and inner else code


def own_code(function: Any) -> CodeType | None:
    """The code of a function, below bound methods and decorators; None for what is not written in
    Python."""
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


# --- calls on the training thread that have begun and not ended -----------------------------------

FARTHEST = 400
"""Frames that are looked at for the caller of a border. Farther away, a call counts as under
way."""


class Opened:
    """The open borders, the innermost last: the identity of the frame of each call, the code that
    it runs, and the border. No frame is kept: that would keep the variables of the program alive.
    So another frame may have the identity of one that is gone."""

    def __init__(self) -> None:
        self._calls: list[tuple[int, CodeType, Border]] = []
        self.present: Border | None = None
        """The border whose `begin` or `end` was called last."""
        self.lost = False
        """Whether the end of a call was not seen."""

    def __bool__(self) -> bool:
        return bool(self._calls)

    def begin(self, frame: FrameType, border: Border) -> bool:
        """A call begins. Calls that are open and do not lead to this one have ended by an
        exception, which nobody has seen. Returns whether the call is open."""
        if self._calls:
            self.end_lost(frame)
        self.present = border
        if not border.begin(frame):
            return False
        self.add(frame, border)
        return True

    @property
    def records(self) -> bool:
        """Whether the innermost open call is of a function that records."""
        return bool(self._calls) and self._calls[-1][2].records

    def end(self, frame: FrameType) -> bool:
        """The call with this frame returns, and with it those that it has made have ended. Returns
        whether it was open."""
        calls = self._calls
        if not calls:
            return False
        key, code, border = calls[-1]
        if key == id(frame) and code is frame.f_code:
            calls.pop()
            self._end(border, False)
            return True
        key, code = id(frame), frame.f_code
        return any(opened == key and of is code for opened, of, _ in calls) and self.end_key(key)

    def end_key(self, key: int, failed: bool = False) -> bool:
        """The same for a call whose frame has the identity `key`."""
        calls = self._calls
        if not calls or (calls[-1][0] != key and all(call[0] != key for call in calls)):
            return False
        while calls:
            opened, _, border = calls.pop()
            self._end(border, failed or opened != key)
            if opened == key:
                break
        return True

    def add(self, frame: FrameType, border: Border) -> None:
        """A call has begun whose border is open."""
        self._calls.append((id(frame), frame.f_code, border))

    def ends_here(self, frame: FrameType) -> bool:
        """The body of the call with this frame ends. Returns whether it was the innermost open
        call, of a function that records."""
        if not self.records or self._calls[-1][0] != id(frame):
            return False
        self._end(self._calls.pop()[2], False)
        return True

    def _end(self, border: Border, failed: bool) -> None:
        self.present = border
        border.end(failed)

    def is_last(self, frame: FrameType | None, border: Border) -> bool:
        """Whether the innermost open call is one of this border with this frame."""
        return (
            bool(self._calls) and self._calls[-1][0] == id(frame) and self._calls[-1][2] is border
        )

    def end_lost(self, frame: FrameType) -> None:
        """End the calls that are open and do not lead to the call with this frame, which begins
        now."""
        while self._calls and not _leads(*self._calls[-1][:2], frame.f_back):
            self.lost = True
            self._end(self._calls.pop()[2], True)

    def forget(self) -> None:
        """As in a process without an open call."""
        self._calls.clear()


def _leads(key: int, code: CodeType, frame: FrameType | None) -> bool:
    """Whether the call whose frame has the identity `key`, and which runs `code`, is that of
    `frame` or one around it."""
    for _ in range(FARTHEST):
        if frame is None:
            return False
        if id(frame) == key and frame.f_code is code:
            return True
        frame = frame.f_back
    return True


opened = Opened()
in_forked_children(opened.forget)
