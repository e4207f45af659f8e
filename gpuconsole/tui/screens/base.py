"""What the screens beside the main screen share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from textual._styles_cache import StylesCache
from textual.app import ComposeResult
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input

from gpuconsole.report.cells import Row
from gpuconsole.report.page import Lines, sifted, text_lines
from gpuconsole.session.api import SessionApi, View
from gpuconsole.tui import keys
from gpuconsole.tui.requests import ScreenRequests
from gpuconsole.tui.widgets.bars import KeyBar, TitleBar
from gpuconsole.tui.widgets.list import FAR, ListZone


class BackScreen(Screen[None]):
    """A screen that Escape closes. `NAME` is the screen's name in `keys.ACTIONS`, `TITLE_TEXT` its
    heading."""

    NAME: ClassVar[str] = ""
    TITLE_TEXT: ClassVar[str] = ""
    AUTO_FOCUS = ""

    def __init_subclass__(cls, **options: Any) -> None:
        if "NAME" in cls.__dict__:
            cls.BINDINGS = keys.screen_bindings(cls.NAME)
        super().__init_subclass__(**options)

    def __init__(self, api: SessionApi, actions: ScreenRequests) -> None:
        super().__init__()
        self.api = api
        self.actions = actions
        self._view = api.view()
        self._heading = TitleBar(self.TITLE_TEXT)
        self._key_bar = KeyBar(self.NAME)
        self._key_bar.offers = self.offers

    def offers(self, action: keys.Action) -> bool:
        """Whether this screen can do `action` now. What depends on the session alone is in the
        table of keys."""
        return True

    def show_keys_of(self, name: str) -> None:
        """Show the keys of the screen or text field `name` of the table in the key bar."""
        self._key_bar.screen_name = name
        self._key_bar.show(self._view)

    def on_mount(self) -> None:
        self.show(self.api.view())

    def on_unmount(self) -> None:
        # Textual 8 caches colours by widget, for up to a thousand widgets. The cache keeps the
        # lines of widgets that were removed.
        StylesCache.get_inner_outer.cache_clear()

    def action_back(self) -> None:
        self.actions.went_back()
        self.dismiss()

    def show(self, view: View) -> None:
        """Show a new state; called only while this screen is in sight."""
        self._view = view
        self._heading.show(view)
        self._key_bar.show(view)

    def again(self) -> None:
        """The key that opens this screen was pressed on this screen."""

    def device_in_sight(self) -> str:
        """The device of the selected line; empty where there is none."""
        return ""

    def text_to_copy(self) -> str:
        """What the key that copies takes from this screen; empty: nothing."""
        return ""

    def redraw(self) -> None:
        """The user asked to draw again."""


class ListScreen(BackScreen):
    """A heading, a list, and the keys. `FILTER` is the hint in the filter's text field; without a
    hint there is no filter. `FIELD`: the keys while it is open.

    `SIFTED`: the filter leaves out lines of the list that do not contain its words. Other screens
    make their lines for a filter.
    """

    FILTER: ClassVar[str] = ""
    FIELD: ClassVar[str] = "filter"
    SIFTED: ClassVar[bool] = False

    def __init__(self, api: SessionApi, actions: ScreenRequests) -> None:
        super().__init__(api, actions)
        self.needle = ""
        self.list_zone = ListZone(
            self._sifted_lines if self.SIFTED else self.lines, self.on_move, self.on_choose
        )
        self._filter = Input(placeholder=self.FILTER, compact=True, id="filter")
        self._filter.display = False

    def compose(self) -> ComposeResult:
        yield self._heading
        yield from self.above()
        yield self.list_zone
        yield from self.below()
        yield self._key_bar

    def above(self) -> Iterable[Widget]:
        """What stands between the heading and the list."""
        return ()

    def below(self) -> Iterable[Widget]:
        """What stands under the list."""
        return ()

    def lines(self, width: int, height: int) -> Lines:
        """The content of the list for the present state and filter."""
        raise NotImplementedError

    def _sifted_lines(self, width: int, height: int) -> Lines:
        lines = self.lines(width, height)
        return sifted(lines, self.needle, width) if self.needle else lines

    def summary(self) -> str:
        """The line in the heading."""
        return ""

    def on_move(self) -> None:
        """The selection has changed."""
        self.show_summary()

    def on_choose(self) -> None:
        """The selected line was clicked."""

    def show(self, view: View) -> None:
        super().show(view)
        self.list_zone.repaint()
        self.show_summary()

    def show_summary(self) -> None:
        filtered = f"filter: {self.needle}" if self.needle and not self._filter.display else ""
        self._heading.say("   ".join(part for part in (self.summary(), filtered) if part))

    # --- keys -------------------------------------------------------------------------------------

    def action_up(self) -> None:
        self.list_zone.move(-1)

    def action_down(self) -> None:
        self.list_zone.move(1)

    def action_page_up(self) -> None:
        self.list_zone.page(-1)

    def action_page_down(self) -> None:
        self.list_zone.page(1)

    def action_first(self) -> None:
        self.list_zone.move(-FAR)

    def action_last(self) -> None:
        self.list_zone.move(FAR)

    async def action_filter(self) -> None:
        # most pages are never filtered, and the text field would slow their opening
        if not self._filter.is_attached:
            await self.mount(self._filter, before=self.list_zone)
        self._filter.display = True
        self.set_focus(self._filter)
        self.show_keys_of(self.FIELD)

    async def action_accept(self) -> None:
        """A click on this key in the bar; the key itself goes into the text field."""
        if isinstance(self.focused, Input):
            await self.focused.action_submit()

    def action_discard(self) -> None:
        self.action_back()

    def action_back(self) -> None:
        """Clear the filter first, then leave the screen."""
        if self._filter.display or self.needle:
            self._filter.value = self.needle = ""
            self.close_filter()
        else:
            super().action_back()

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input is self._filter and event.value.strip() != self.needle:
            self.needle = event.value.strip()
            self.list_zone.select_first()
            self.show(self._view)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input is self._filter:
            self.close_filter()

    def close_filter(self) -> None:
        self._filter.display = False
        self.set_focus(None)
        self.show_keys_of(self.NAME)
        self.show(self._view)


class PageScreen(ListScreen):
    """A page of text that scrolls. `paint` draws all rows from a state."""

    FILTER = "only lines with these words"
    SIFTED = True

    def paint(self, view: View, width: int) -> list[Row]:
        raise NotImplementedError

    def lines(self, width: int, height: int) -> Lines:
        return text_lines(self.paint(self._view, width))

    def summary(self) -> str:
        return self.list_zone.position
