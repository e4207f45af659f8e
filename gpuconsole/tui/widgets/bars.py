"""The title row, the messages and the key bar of a screen, and a zone that a function paints."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from textual import events
from textual.app import App

from gpuconsole.host.installation import install_command, torch_version
from gpuconsole.model.text import cell_width
from gpuconsole.report.cells import Row, Segment, fill, line, spread, wrap
from gpuconsole.report.screen.answer import STEPS, guide, narrate
from gpuconsole.session.api import View
from gpuconsole.tui import keys
from gpuconsole.tui.widgets.header import replay_mark
from gpuconsole.tui.widgets.live import Zone

# --- what a key has done, or why it could not: lines above the keys, for some seconds -------------

MESSAGE_S = 6.0
MAX_ROWS = 4


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
        others = [
            kept
            for kept in self._present()
            if kept.text != text and not (topic and kept.topic == topic)
        ]
        self._messages = [*others, Message(text, style, topic, self._clock() + MESSAGE_S)]

    def rows(self, width: int, height: int) -> list[Row]:
        """The rows of the messages, on a screen of `height` rows. Where there is little room, the
        newest stay."""
        room, rows = min(MAX_ROWS, height // 3), list[Row]()
        for message in reversed(self._present()):
            parts = wrap(message.text, max(1, width - 1), max(1, room))
            if rows and len(rows) + len(parts) > room:
                break
            rows = [
                *(
                    line(width, ("▌", message.style or "accent"), (part, message.style))
                    for part in parts
                ),
                *rows,
            ]
        return rows

    def _present(self) -> list[Message]:
        self._messages = [message for message in self._messages if message.until_s > self._clock()]
        return self._messages


GAP = 3
"""Cells between two keys."""
Place = tuple[int, int, keys.Action]
"""The first cell, the cell after the last, and the action."""
MACHINE = "machine"
GUIDED = ("main", MACHINE, "scenarios")
"""The screens with a hint line during the first steps of a session."""
TITLE = "step {} of {}  "
HINTS_S = 60.0
"""Seconds for which the machine overview says what to press. Then the room belongs to the GPUs."""


def is_settled(app: App[object], view: View) -> bool:
    """Return whether the hints of the start are over: after HINTS_S, or after the first key. They
    stay without a GPU, where no figure needs their room."""
    keyboard = getattr(app, "keyboard", None)
    over = view.now > HINTS_S or bool(keyboard and keyboard.pressed)
    return over and any(device.is_gpu for device in view.devices)


@functools.cache
def torch_command() -> str:
    """The command that installs torch for the scenarios; empty where torch is installed."""
    return "" if torch_version() is not None else install_command("torch")


class KeyBar(Zone):
    """The keys of a screen that make sense now. `screen` is its name in `keys.ACTIONS`. During the
    first steps a hint stands above the keys."""

    DEFAULT_CSS = "KeyBar { height: 1; dock: bottom; }"
    demo = False
    """Whether the hint line narrates the recorded session of `--demo`."""

    def __init__(self, screen: str) -> None:
        super().__init__()
        self.screen_name = screen
        self.offers: Callable[[keys.Action], bool] = lambda action: True
        """Whether the screen can do an action now. What depends on the session alone is in the
        table of keys."""
        self._view: View | None = None
        self._places: list[Place] = []
        self._hinted: tuple[tuple[View | None, int, str, bool], tuple[int, str]] = (
            (None, 0, "", False),
            (0, ""),
        )

    def show(self, view: View) -> None:
        self._view = view
        self.styles.height = self.rows_for(view) + self.extra_rows(view)
        self.repaint()

    def rows_for(self, view: View) -> int:
        """The rows of the keys, with the hint above them."""
        return 2 if self._hint(view, self.size.width)[0] else 1

    def extra_rows(self, view: View) -> int:
        """The further rows that messages take for their seconds: the first stands in the place of
        the hint."""
        return max(0, 1 + len(self._messages(self.size.width)) - self.rows_for(view))

    def _messages(self, width: int) -> list[Row]:
        messages: Messages | None = getattr(self.app, "messages", None)
        return messages.rows(width, self.app.size.height) if messages is not None else []

    def _hint(self, view: View, width: int) -> tuple[int, str]:
        """The step and the text of the hint; made once for a state, which the layout and the bar
        ask for."""
        source, hint = self._hinted
        settled = is_settled(self.app, view)
        if source[0] is not view or source[1:] != (width, self.screen_name, settled):
            hint = self._make_hint(view, width, settled)
            self._hinted = (view, width, self.screen_name, settled), hint
        return hint

    def _make_hint(self, view: View, width: int, settled: bool) -> tuple[int, str]:
        if self.screen_name not in GUIDED:
            return 0, ""
        if KeyBar.demo:
            return narrate(view)
        if settled and self.screen_name == MACHINE and view.run is None:
            return 0, ""
        room = width - len(TITLE.format(STEPS, STEPS))
        return guide(
            view,
            keys.written(),
            choosing=self.screen_name == "scenarios",
            install_torch=torch_command(),
            room=room,
        )

    def paint(self, width: int, height: int) -> list[Row]:
        if self._view is None:
            return []
        left, right = keys.bar(self.screen_name, self._view)
        row, self._places = paint_keys(
            [action for action in left if self.offers(action)], right, width
        )
        step, text = self._hint(self._view, width)
        hint = [line(width, (TITLE.format(step, STEPS), "key"), text)] if step else []
        above = self._messages(width) or hint
        return [*fill(above[: height - 1], width, height - 1), row]

    async def on_click(self, event: events.Click) -> None:
        """A click presses the key that is written there. It chooses no digit."""
        pressed = next(
            (action for start, end, action in self._places if start <= event.x < end), None
        )
        if (
            pressed is None
            or pressed.keys == keys.DIGITS
            or event.y != self.content_size.height - 1
        ):
            return
        receiver = (
            self.screen
            if pressed.of_app or not pressed.screens or hasattr(self.screen, f"action_{pressed.id}")
            else self.screen.focused
        )
        await self.app.run_action(pressed.command, receiver)


def paint_keys(
    left: Sequence[keys.Action], right: Sequence[keys.Action], width: int
) -> tuple[Row, list[Place]]:
    """The actions of `right` at the right edge, and as many of `left` as fit before them; and where
    each one is."""
    places: list[Place] = []
    segments: list[Segment] = []
    x, room = 0, width - sum(_need(action) + GAP for action in right)
    for action in left:
        if x + _need(action) > max(room, 0):
            break
        segments += [*_written(action), (" " * GAP, "")]
        places.append((x, x + _need(action), action))
        x += _need(action) + GAP
    start = max(x, width - sum(_need(action) + GAP for action in right) + GAP) if right else x
    segments.append((" " * (start - x), ""))
    for action in right:
        segments += [*_written(action), (" " * GAP, "")]
        places.append((start, start + _need(action), action))
        start += _need(action) + GAP
    return line(width, *segments), places


def _need(action: keys.Action) -> int:
    return sum(cell_width(text) for text, _ in _written(action))


def _written(action: keys.Action) -> list[Segment]:
    return [(action.bar or action.written.partition(",")[0], "key"), (f" {action.label}", "dim")]


class TitleBar(Zone):
    """A screen's name, and one line about it."""

    DEFAULT_CSS = "TitleBar { height: 2; }"

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title
        self._message = ""
        self._style = "dim"
        self._replay: list[Segment] = []

    def show(self, view: View) -> None:
        """On a recording, the heading says so."""
        if (replay := replay_mark(view)) != self._replay:
            self._replay = replay
            self.repaint()

    def say(self, message: str, style: str = "dim") -> None:
        self._message, self._style = message, style
        self.repaint()

    def paint(self, width: int, height: int) -> list[Row]:
        return [
            spread(
                width,
                [(self._title, "heading"), ("   ", ""), (self._message, self._style)],
                [(" ", ""), *self._replay] if self._replay else [],
            ),
            line(width),
        ]


class DrawnZone(Zone):
    """Draws what `source` paints for a width and a height."""

    def __init__(self, source: Callable[[int, int], list[Row]], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._source = source

    def paint(self, width: int, height: int) -> list[Row]:
        return self._source(width, height)
