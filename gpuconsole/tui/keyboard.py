"""Keys, one at a time: each is delivered when the key before it has had its effect.

Over a slow line, and during the start, several keys arrive at once. Textual sends each to the
screen that is in sight when the key arrives, so that the keys behind an Escape or a `/` would reach
the wrong screen.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import deque
from collections.abc import Iterator

from textual import events
from textual._xterm_parser import XTermParser
from textual.app import App
from textual.message_pump import MessagePump

PATIENCE_S = 0.5
"""How long a key may wait for a widget that does not answer."""
_KEYS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1bO.|.", re.DOTALL)


class Keyboard:
    """The keys of an app that wait for their turn."""

    def __init__(self, app: App[int]) -> None:
        self._app = app
        self.pressed = False
        """Whether a key has been pressed since the start."""
        self._waiting: deque[events.Key] = deque()
        self._turn: events.Key | None = None
        self._path: list[MessagePump] = []
        self._task: asyncio.Task[None] | None = None

    def take(self, event: events.Key) -> bool:
        """Whether it is this key's turn. Otherwise the key is kept, and posted to the app again."""
        if event is not self._turn and (
            self._turn is not None or self._waiting or self._task is not None
        ):
            self._waiting.append(event)
            return False
        self._turn, self.pressed = event, True
        target = self._app.focused or self._app.screen
        self._path = [target, *target.ancestors]
        return True

    def delivered(self) -> None:
        """The app has sent the key on its way: the next key follows when this key has arrived."""
        self._task = asyncio.create_task(self._follow(self._path))

    async def _follow(self, path: list[MessagePump]) -> None:
        """Wait until each receiver on the key's path has handled it, then post the next key."""
        for receiver in path:
            done = asyncio.Event()
            if receiver.call_later(done.set):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(done.wait(), PATIENCE_S)
        self._task = None
        self._turn = self._waiting.popleft() if self._waiting else None
        if self._turn is not None:
            self._app.post_message(self._turn)


def parse(typed: bytes) -> Iterator[events.Key]:
    """The keys in bytes that were typed over some time: Escape before another key is Escape, not
    Alt."""
    parser = XTermParser()
    for token in _KEYS.findall(typed.decode(errors="replace")):
        if token == "\x1b":
            yield events.Key("escape", token)
            continue
        for event in parser.feed("\r" if token == "\n" else token):
            if isinstance(event, events.Key):
                yield event
