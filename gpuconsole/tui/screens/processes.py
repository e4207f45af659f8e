"""The processes on the devices: sorted, filtered, as a tree; and the one place from which a signal is sent."""

from __future__ import annotations

import signal
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.widgets import Input

from gpuconsole.model.machine.process import Process
from gpuconsole.report.cells import Row, line
from gpuconsole.report.machine.process import paint_process
from gpuconsole.report.machine.processes import (
    Choice,
    Entry,
    Id,
    arrange,
    identity,
    order_in_words,
    paint_processes,
    question,
    table_room,
    title,
)
from gpuconsole.report.page import follow
from gpuconsole.session.api import SessionApi, SessionError, View
from gpuconsole.tui.screens.base import BackScreen
from gpuconsole.tui.widgets.bars import DrawnZone, KeyBar, PageZone, TitleBar

TABLE_KEYS = (
    ("m s c p n", "sort"), ("enter", "command"), ("/", "filter"), ("t", "tree"), ("k", "signal"), ("escape", "back"), ("q", "quit"),
    ("up/down", "select"),
)  # fmt: skip
PAGE_KEYS = (("up/down pgup/pgdn", "scroll"), ("k", "signal"), ("escape", "back"), ("q", "quit"))
MODIFIERS = ("_shift", "_control", "_alt", "_super", "_hyper", "_meta", "_lock")
"""Keys that some terminals report by themselves: no answer yet."""
TITLE_ROOM = 60


class ProcessesScreen(BackScreen):
    """The selection holds on to a process, wherever the order moves it."""

    DEFAULT_CSS = "#prompt { height: 1; dock: bottom; margin-bottom: 1; }"
    BINDINGS = [
        Binding("up", "move(-1)", show=False),
        Binding("down", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home", "move(-1000000)", show=False),
        Binding("end", "move(1000000)", show=False),
        Binding("m", "sort('memory')", show=False),
        Binding("s", "sort('sm')", show=False),
        Binding("c", "sort('cpu')", show=False),
        Binding("p", "sort('pid')", show=False),
        Binding("n", "sort('name')", show=False),
        Binding("t", "tree", show=False),
        Binding("enter", "inspect", show=False),
        Binding("k", "ask('SIGTERM')", show=False),
        Binding("K", "ask('SIGKILL')", show=False),
    ]
    OPENS: ClassVar = {"slash": "filter"}
    AUTO_FOCUS = ""

    def __init__(self, api: SessionApi) -> None:
        super().__init__(api)
        self._view = api.view()
        self._choice = Choice()
        self._entries: list[Entry] = []
        self._selected: Id | None = None
        self._at = 0
        self._offset = 0
        self._inspected: Process | None = None
        self._asked: tuple[str, Process] | None = None
        self._said: tuple[str, str] = ("", "")
        self._heading = TitleBar("Processes")
        self._table = DrawnZone(self._paint_table)
        self._page = PageZone(self._paint_page)
        self._filter = Input(placeholder="part of a name, command, user, container, pid or gpu:N", compact=True)
        self._prompt = DrawnZone(self._paint_prompt)
        self._prompt.id = "prompt"
        self._table_keys, self._page_keys = KeyBar(TABLE_KEYS), KeyBar(PAGE_KEYS)

    def compose(self) -> ComposeResult:
        yield self._heading
        yield self._filter
        yield self._table
        yield self._page
        yield self._prompt
        yield self._table_keys
        yield self._page_keys

    def on_mount(self) -> None:
        self._filter.display = self._page.display = self._page_keys.display = False
        self.show(self.api.view())

    # --- what is shown --------------------------------------------------------------------------------------

    def show(self, view: View) -> None:
        self._view = view
        self._entries = arrange(view.processes, self._choice)
        ids = [identity(one.process) if one.process else None for one in self._entries]
        if self._selected in ids:
            self._at = ids.index(self._selected)
        else:
            self._select(self._at)
        if self._asked and not any(identity(one) == identity(self._asked[1]) for one in view.processes):
            self._answer(f"{self._asked[1].pid} has ended: nothing was sent")
        self._heading.say(self._summary())
        for zone in (self._table, self._page, self._prompt):
            zone.repaint()

    def _summary(self) -> str:
        shown = [one.process for one in self._entries if one.process]
        if not self._view.processes:
            return ""
        of = f" of {len(self._view.processes)}" if len(shown) < len(self._view.processes) else ""
        filtered = f"   filter: {self._choice.needle}" if self._choice.needle and not self._filter.display else ""
        devices = len({one.device for one in shown})
        return f"{len(shown)}{of} on {devices} {'device' if devices == 1 else 'devices'}, {order_in_words(self._choice)}{filtered}"

    def _wall(self) -> float | None:
        return self._view.wall or None

    def _paint_table(self, width: int, height: int) -> list[Row]:
        self._offset = follow(self._offset, self._at, table_room(self._view, height), len(self._entries))
        return paint_processes(self._view, self._entries, self._selected, self._offset, self._choice, width, height, self._wall())

    def _paint_page(self, width: int) -> list[Row]:
        return paint_process(self._view, self._inspected, width, self._wall()) if self._inspected else []

    def _paint_prompt(self, width: int, height: int) -> list[Row]:
        return [question(self._asked[1], self._asked[0], width) if self._asked else line(width, self._said)]

    # --- keys -----------------------------------------------------------------------------------------------

    def _select(self, at: int) -> None:
        """Select the process nearest to line `at`: parents that hold no device cannot be."""
        places = [n for n, one in enumerate(self._entries) if one.process is not None]
        self._at = min(places, key=lambda n: abs(n - at), default=0)
        process = self._entries[self._at].process if places else None
        self._selected = identity(process) if process else None

    def action_move(self, step: int) -> None:
        places = [n for n, one in enumerate(self._entries) if one.process is not None]
        if places and not self._page.display:
            at = places.index(self._at) if self._at in places else 0
            self._select(places[max(0, min(len(places) - 1, at + step))])
            self._table.repaint()

    def action_page(self, pages: int) -> None:
        self.action_move(pages * max(1, self._table.size.height - 2))

    def _choose(self, **changes: object) -> None:
        self._choice = self._choice._replace(**changes)  # type: ignore[arg-type]
        self.show(self._view)

    def action_sort(self, column: str) -> None:
        """The same column again turns the order around."""
        self._choose(sort=column, turned=column == self._choice.sort and not self._choice.turned)

    def action_tree(self) -> None:
        self._choose(tree=not self._choice.tree)

    def action_filter(self) -> None:
        self._filter.display = True
        self.set_focus(self._filter)

    def on_input_changed(self, event: Input.Changed) -> None:
        self._choose(needle=event.value)

    def on_input_submitted(self) -> None:
        self._close_filter()

    def _close_filter(self) -> None:
        self._filter.display = False
        self.set_focus(None)
        self.show(self._view)

    def action_inspect(self) -> None:
        process = self._chosen()
        if process is not None and not self._page.display:
            self._inspected = process
            self._turn_page(True)

    def _turn_page(self, to: bool) -> None:
        self._page.display = self._page_keys.display = to
        self._table.display = self._table_keys.display = not to
        self._page.action_move(-1_000_000)
        self.set_focus(self._page if to else None)

    def action_back(self) -> None:
        """One step back: from a process, from a filter, from the screen."""
        if self._page.display:
            self._turn_page(False)
        elif self._filter.display or self._choice.needle:
            self._filter.value = ""
            self._close_filter()
        else:
            self.dismiss()

    # --- signals --------------------------------------------------------------------------------------------

    def _chosen(self) -> Process | None:
        if self._page.display:
            return self._inspected
        return next((one.process for one in self._entries if one.process and identity(one.process) == self._selected), None)

    def action_ask(self, name: str) -> None:
        process = self._chosen()
        if process is not None:
            self._asked = name, process
            self._prompt.repaint()

    def on_key(self, event: events.Key) -> None:
        """While a question is open, all keys answer it, and only `y` means yes."""
        if self._asked is None:
            return
        event.stop()
        event.prevent_default()
        if event.key.endswith(MODIFIERS):
            return
        name, process = self._asked
        if event.character == "K" and name != "SIGKILL":
            self.action_ask("SIGKILL")
        elif event.character == "y":
            self._send(name, process)
        else:
            self._answer("nothing was sent")

    def _send(self, name: str, process: Process) -> None:
        try:
            self.api.signal_process(process, signal.Signals[name])
        except SessionError as error:
            self._answer(str(error), "alert")
        else:
            self._answer(f"{name} sent to {process.pid} {title(process, TITLE_ROOM)}", "accent")

    def _answer(self, text: str, style: str = "dim") -> None:
        self._asked = None
        self._said = text, style
        self._prompt.repaint()
