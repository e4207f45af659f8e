"""What the screens beside the main one share."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual._styles_cache import StylesCache
from textual.app import ComposeResult
from textual.binding import Binding
from textual.screen import Screen
from textual.widgets import Input

from gpuconsole.report.cells import Row
from gpuconsole.session.api import SessionApi, View
from gpuconsole.tui.widgets.bars import KeyBar, PageZone, TitleBar
from gpuconsole.tui.widgets.keys import Keys

BACK: Keys = (("escape", "back"), ("q", "quit"))
SCROLL: Keys = (("up/down pgup/pgdn", "scroll"),)


class BackScreen(Screen[None]):
    """A screen that Escape closes. `OPENS`: keys whose action gives the focus to a field."""

    BINDINGS = [Binding("escape", "back", show=False)]
    OPENS: ClassVar[dict[str, str]] = {}

    def __init__(self, api: SessionApi) -> None:
        super().__init__()
        self.api = api

    def on_key(self, event: events.Key) -> None:
        """Letters that come faster than the focus moves, as over a slow line, reach the field all the same.

        They were sent here before the field was open; a field that has the focus keeps its letters to itself.
        """
        if isinstance(self.focused, Input):
            if event.is_printable:
                event.stop()
                self.focused.post_message(events.Key(event.key, event.character))
        elif event.key in self.OPENS:
            event.stop()
            getattr(self, f"action_{self.OPENS[event.key]}")()

    def on_unmount(self) -> None:
        # Textual 8 remembers colours by widget in a cache of a thousand, and so keeps every line of a thousand widgets that are gone.
        StylesCache.get_inner_outer.cache_clear()

    def action_back(self) -> None:
        self.dismiss()

    def show(self, view: View) -> None:
        """A new picture; called only while this screen is the one in sight."""


class PageScreen(BackScreen):
    """A title, a page that scrolls, and the keys. `paint` draws all rows from a view."""

    TITLE_TEXT = ""
    KEYS: Keys = ()

    def __init__(self, api: SessionApi) -> None:
        super().__init__(api)
        self._view = api.view()
        self._heading = TitleBar(self.TITLE_TEXT)
        self._body = PageZone(lambda width: self.paint(self._view, width), self._heading.say)

    def paint(self, view: View, width: int) -> list[Row]:
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        yield self._heading
        yield self._body
        yield KeyBar(BACK + SCROLL + self.KEYS)

    def show(self, view: View) -> None:
        self._view = view
        self._body.repaint()
