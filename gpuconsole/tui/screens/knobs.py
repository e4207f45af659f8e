"""The knobs of the current run: edit, then apply at once or try."""

from __future__ import annotations

from collections.abc import Callable

from textual.app import ComposeResult
from textual.binding import Binding
from textual.widgets import Input

from gpuconsole.model.finding import Interval
from gpuconsole.model.knobs import CATALOGUE, KnobError, Knobs, describe_changes, show
from gpuconsole.runtime.front import Front, View
from gpuconsole.tui.paint.knobs import paint_knobs
from gpuconsole.tui.screens.base import BackScreen
from gpuconsole.tui.widgets.bars import DrawnZone, KeyBar, TitleBar


class KnobsScreen(BackScreen):
    """Enter edits the selected value; `a` applies what was edited, `t` puts it on trial."""

    BINDINGS = [
        Binding("up", "move(-1)", show=False),
        Binding("down", "move(1)", show=False),
        Binding("enter", "edit", show=False),
        Binding("a", "apply", show=False),
        Binding("t", "try", show=False),
        Binding("backspace,delete", "forget", show=False),
    ]
    AUTO_FOCUS = ""

    def __init__(self, front: Front, apply: Callable[[Knobs], None], try_change: Callable[[Knobs, Interval | None], None]) -> None:
        super().__init__(front)
        self._apply = apply
        self._try = try_change
        self._values: Knobs = {}
        self._pending: Knobs = {}
        self._cursor = 0
        self._heading = TitleBar("Knobs")
        self._zone = DrawnZone(lambda width, height: paint_knobs(self._values, self._pending, self._cursor, width, height))
        self._input = Input(compact=True)

    def compose(self) -> ComposeResult:
        yield self._heading
        yield self._zone
        yield self._input
        yield KeyBar(
            (("enter", "edit"), ("a", "apply at once"), ("t", "try as a trial"), ("backspace", "forget"), ("escape", "back"), ("?", "help"))
        )

    def on_mount(self) -> None:
        self._input.display = False
        self.show(self.front.view())

    def show(self, view: View) -> None:
        """New values; what was edited stays, unless it has come true."""
        self._values = dict(view.run.knobs) if view.run else {}
        self._pending = {name: value for name, value in self._pending.items() if self._values.get(name, value) != value}
        self._cursor = max(0, min(len(self._values) - 1, self._cursor))
        self._zone.repaint()

    @property
    def _chosen(self) -> str:
        return list(self._values)[self._cursor]

    def action_move(self, step: int) -> None:
        if not self._input.display:
            self._cursor = max(0, min(len(self._values) - 1, self._cursor + step))
            self._zone.repaint()

    def action_edit(self) -> None:
        if not self._values or self._chosen not in CATALOGUE:
            return
        knob = CATALOGUE[self._chosen]
        self._heading.say(f"{knob.name}: {knob.allowed()}; enter takes it, escape does not")
        self._input.value = show(self._pending.get(self._chosen, self._values[self._chosen]))
        self._input.display = True
        self._input.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        try:
            value = CATALOGUE[self._chosen].parse(event.value.strip())
        except KnobError as error:
            self._heading.say(str(error), "alert")
            return
        self._pending.pop(self._chosen, None)
        if value != self._values[self._chosen]:
            self._pending[self._chosen] = value
        self._end_edit()

    def _end_edit(self) -> None:
        self._input.display = False
        self.set_focus(None)
        waiting = f"{describe_changes(self._pending, self._values)}: a applies, t tries" if self._pending else ""
        self._heading.say(waiting, "accent")
        self._zone.repaint()

    def action_back(self) -> None:
        if self._input.display:
            self._end_edit()
        else:
            self.dismiss()

    def action_forget(self) -> None:
        if self._values:
            self._pending.pop(self._chosen, None)
            self._end_edit()

    def action_apply(self) -> None:
        if self._taken():
            self._apply(dict(self._pending))

    def action_try(self) -> None:
        if self._taken():
            self.dismiss()
            self._try(dict(self._pending), None)

    def _taken(self) -> bool:
        if not self._pending:
            self._heading.say("nothing was changed yet: enter edits the selected value")
        return bool(self._pending)
