"""What a key has done, or why it could not: lines above the keys, for some seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from gpuconsole.report.cells import Row, line, wrap

MESSAGE_S = 6.0
MOST_ROWS = 4


class Message(NamedTuple):
    """`topic`: what the message is about; a newer message about the same replaces it."""

    text: str
    style: str
    topic: str
    until_s: float


class Messages:
    """The messages whose time is not over, the oldest first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._messages: list[Message] = []

    def add(self, text: str, style: str = "", topic: str = "") -> None:
        """Show `text` from now on. The same text is shown once."""
        others = [kept for kept in self._present() if kept.text != text and not (topic and kept.topic == topic)]
        self._messages = [*others, Message(text, style, topic, self._clock() + MESSAGE_S)]

    def rows(self, width: int, height: int) -> list[Row]:
        """The rows of the messages, on a screen of `height` rows. Where there is little room, the newest stay."""
        room, rows = min(MOST_ROWS, height // 3), list[Row]()
        for message in reversed(self._present()):
            parts = wrap(message.text, max(1, width - 1), max(1, room))
            if rows and len(rows) + len(parts) > room:
                break
            rows = [*(line(width, ("▌", message.style or "accent"), (part, message.style)) for part in parts), *rows]
        return rows

    def _present(self) -> list[Message]:
        self._messages = [message for message in self._messages if message.until_s > self._clock()]
        return self._messages
