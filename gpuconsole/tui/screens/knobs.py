"""The knobs of the current run: edit, then apply at once or try."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.widgets import Input

from gpuconsole.model.finding import Interval
from gpuconsole.model.knobs.catalogue import CATALOGUE, KnobError, Knobs, describe_changes, show
from gpuconsole.session.api import SessionApi, View
from gpuconsole.tui.screens.base import BackScreen
from gpuconsole.tui.widgets.bars import DrawnZone, KeyBar, TitleBar
from gpuconsole.tui.widgets.knobs import Shown, paint_knobs

KEYS = (
    ("enter", "edit"), ("a", "apply at once"), ("t", "try as a trial"), ("/", "filter"), ("escape", "back"), ("backspace", "forget"), ("?", "help"),
)  # fmt: skip


class KnobsScreen(BackScreen):
    """Enter edits the chosen value; `a` applies what was edited, `t` puts it on trial; `/` filters."""

    BINDINGS = [
        Binding("up", "move(-1)", show=False),
        Binding("down", "move(1)", show=False),
        Binding("pageup", "move(-10)", show=False),
        Binding("pagedown", "move(10)", show=False),
        Binding("home", "move(-1000000)", show=False),
        Binding("end", "move(1000000)", show=False),
        Binding("a", "apply", show=False),
        Binding("t", "try", show=False),
        Binding("backspace,delete", "forget", show=False),
    ]
    OPENS: ClassVar = {"slash": "filter", "enter": "edit"}
    AUTO_FOCUS = ""

    def __init__(self, api: SessionApi, apply: Callable[[Knobs], None], try_change: Callable[[Knobs, Interval | None], None]) -> None:
        super().__init__(api)
        self._apply = apply
        self._try = try_change
        self._shown = Shown({}, {}, {})
        self._heading = TitleBar("Knobs")
        self._zone = DrawnZone(lambda width, height: paint_knobs(self._shown, width, height))
        self._filter = Input(placeholder="filter", compact=True)
        self._input = Input(compact=True)

    def compose(self) -> ComposeResult:
        yield self._heading
        yield self._filter
        yield self._zone
        yield self._input
        yield KeyBar(KEYS)

    def on_mount(self) -> None:
        self._input.display = self._filter.display = False
        self.show(self.api.view())
        self._say_what_waits()

    def show(self, view: View) -> None:
        """New values; what was edited stays, unless it has come true."""
        run = view.run
        values = dict(run.knobs) if run else {}
        pending = {name: value for name, value in self._pending.items() if values.get(name, value) != value}
        self._shown = self._shown._replace(
            values=values, pending=pending, unavailable=run.unavailable if run else {}, facts=run.facts if run else {}
        )
        self.action_move(0)

    @property
    def _pending(self) -> Knobs:
        return self._shown.pending

    @property
    def _chosen(self) -> str:
        """Empty where no knob is shown."""
        return self._shown.chosen

    def action_move(self, step: int) -> None:
        names = self._shown.names
        at = names.index(self._chosen) if self._chosen in names else 0
        if not self._input.display:
            at = max(0, min(len(names) - 1, at + step))
        self._shown = self._shown._replace(chosen=names[at] if names else "")
        self._zone.repaint()

    def action_edit(self) -> None:
        if self._chosen not in CATALOGUE:
            return
        knob = CATALOGUE[self._chosen]
        self._heading.say(f"{knob.name}: {knob.allowed()}; enter takes it, escape does not")
        self._input.value = show(self._pending.get(self._chosen, self._shown.values[self._chosen]))
        self._input.display = True
        self.set_focus(self._input)

    def action_filter(self) -> None:
        self._filter.display = True
        self.set_focus(self._filter)

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input is self._filter:
            self._shown = self._shown._replace(words=event.value)
            self.action_move(0)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input is self._filter:
            self.set_focus(None)
            return
        try:
            value = CATALOGUE[self._chosen].parse(event.value.strip())
        except KnobError as error:
            self._heading.say(str(error), "alert")
            return
        self._pending.pop(self._chosen, None)
        if value != self._shown.values[self._chosen]:
            self._pending[self._chosen] = value
        self._end_edit()

    def _end_edit(self) -> None:
        self._input.display = False
        self.set_focus(None)
        self._say_what_waits()
        self._zone.repaint()

    def _say_what_waits(self) -> None:
        values, own = self._shown.values, sum(map(self._shown.is_own, self._shown.values))
        if self._pending:
            self._heading.say(f"{describe_changes(self._pending, values)}: a applies, t tries", "accent")
        else:
            self._heading.say(f"{own} set, {len(values) - own} as by default" if values else "")

    def action_back(self) -> None:
        if self._input.display:
            self._end_edit()
        elif self._filter.display:
            self._filter.value = ""
            self._filter.display = False
            self.set_focus(None)
        else:
            self.dismiss()

    def action_forget(self) -> None:
        if self._chosen:
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
