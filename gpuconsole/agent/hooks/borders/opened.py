"""The borders that are open: calls on the training thread that have begun and not ended."""

from __future__ import annotations

from types import CodeType, FrameType

from ...forks import in_forked_children
from .table import Border

FARTHEST = 400
"""Frames that are looked at for the caller of a border. Farther away, a call counts as under way."""


class Opened:
    """The open borders, the innermost last: the identity of the frame of each call, the code that it runs, and the border. No frame is kept: that would keep the
    variables of the program alive. So another frame may have the identity of one that is gone."""

    def __init__(self) -> None:
        self._calls: list[tuple[int, CodeType, Border]] = []
        self.present: Border | None = None
        """The border whose `begin` or `end` was called last."""
        self.lost = False
        """Whether the end of a call was not seen."""

    def __bool__(self) -> bool:
        return bool(self._calls)

    def begin(self, frame: FrameType, border: Border) -> bool:
        """A call begins. Calls that are open and do not lead to this one have ended by an exception, which nobody has seen. Returns whether the call is open."""
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
        """The call with this frame returns, and with it those that it has made have ended. Returns whether it was open."""
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
        """The body of the call with this frame ends. Returns whether it was the innermost open call, of a function that records."""
        if not self.records or self._calls[-1][0] != id(frame):
            return False
        self._end(self._calls.pop()[2], False)
        return True

    def _end(self, border: Border, failed: bool) -> None:
        self.present = border
        border.end(failed)

    def is_last(self, frame: FrameType | None, border: Border) -> bool:
        """Whether the innermost open call is one of this border with this frame."""
        return bool(self._calls) and self._calls[-1][0] == id(frame) and self._calls[-1][2] is border

    def end_lost(self, frame: FrameType) -> None:
        """End the calls that are open and do not lead to the call with this frame, which begins now."""
        while self._calls and not _leads(*self._calls[-1][:2], frame.f_back):
            self.lost = True
            self._end(self._calls.pop()[2], True)

    def forget(self) -> None:
        """As in a process without an open call."""
        self._calls.clear()


def _leads(key: int, code: CodeType, frame: FrameType | None) -> bool:
    """Whether the call whose frame has the identity `key`, and which runs `code`, is that of `frame` or one around it."""
    for _ in range(FARTHEST):
        if frame is None:
            return False
        if id(frame) == key and frame.f_code is code:
            return True
        frame = frame.f_back
    return True


opened = Opened()
in_forked_children(opened.forget)
