"""The knobs of the current run: edit, then apply at once or try."""

from __future__ import annotations

from collections.abc import Iterable

from textual.widget import Widget
from textual.widgets import Input

from gpuconsole.model.knobs.catalogue import CATALOGUE, KnobError, Knobs, describe_changes, show
from gpuconsole.report.page import Lines
from gpuconsole.session.api import SessionApi, View
from gpuconsole.tui.requests import Requests
from gpuconsole.tui.screens.base import ListScreen
from gpuconsole.tui.widgets.knobs import KnobState, knob_lines


class KnobsScreen(ListScreen):
    """Edited values wait until they are applied, tried or forgotten."""

    NAME = "knobs"
    TITLE_TEXT = "Knobs"
    FILTER = "filter"

    def __init__(self, api: SessionApi, actions: Requests) -> None:
        super().__init__(api, actions)
        self._pending: Knobs = {}
        self._edited = ""
        """The knob whose value is being typed; empty while none is. Its row may leave the list meanwhile, and another row is selected then."""
        self._input = Input(compact=True, id="value")
        self._input.display = False
        self._message = ("", "")

    def below(self) -> Iterable[Widget]:
        return (self._input,)

    def lines(self, width: int, height: int) -> Lines:
        return knob_lines(self._state, width, height)

    @property
    def _state(self) -> KnobState:
        run = self._view.run
        if run is None:
            return KnobState({}, {}, {}, job=self.api.job is not None)
        return KnobState(dict(run.settings), self._pending, run.unavailable, self.needle, run.facts, run.is_job, run.effects)

    @property
    def _selected(self) -> str:
        """Empty where no knob is shown."""
        return str(self.list_zone.selected or "")

    def show(self, view: View) -> None:
        """New values. An edited value waits until it is in force."""
        values = view.run.settings if view.run is not None else {}
        self._pending = {name: value for name, value in self._pending.items() if values.get(name, value) != value}
        if self._edited:
            self.list_zone.select(self._edited)
        super().show(view)

    def show_summary(self) -> None:
        """While a value is edited, what is allowed or wrong stays in the heading."""
        if self._message[0]:
            self._heading.say(*self._message)
        elif self._pending:
            effect = self._view.run.effect(self._pending) if self._view.run is not None else ""
            label = f" ({effect})" if effect else ""
            self._heading.say(f"{describe_changes(self._pending, self._state.values)}{label}: a applies, v tries", "accent")
        else:
            super().show_summary()

    def summary(self) -> str:
        state = self._state
        own = sum(map(state.is_own, state.values))
        return f"{own} set, {len(state.values) - own} at their default" if state.values else ""

    def _say(self, text: str, style: str = "dim") -> None:
        """A line that stays in the heading until the next key."""
        self._message = text, style
        self.show_summary()

    # --- editing --------------------------------------------------------------------------------------------

    def on_choose(self) -> None:
        self.action_edit()

    def on_move(self) -> None:
        if not self._edited:
            self._message = ("", "")
        super().on_move()

    def action_edit(self) -> None:
        if self._selected not in CATALOGUE:
            return
        knob = CATALOGUE[self._selected]
        self._say(f"{knob.name}: {knob.allowed()}; enter takes the value, escape does not")
        self._edited = knob.name
        self._input.value = show(self._pending.get(knob.name, self._state.values[knob.name]))
        self._input.display = self.list_zone.locked = True
        self.set_focus(self._input)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input is not self._input:
            super().on_input_submitted(event)
            return
        name, values = self._edited, self._state.values
        if name not in values:
            self._say(f"{name}: the run has no such knob now; escape ends the edit", "alert")
            return
        try:
            value = CATALOGUE[name].parse(event.value.strip())
        except KnobError as error:
            self._say(str(error), "alert")
            return
        self._pending.pop(name, None)
        if value != values[name]:
            self._pending[name] = value
        self._end_edit()

    def _end_edit(self) -> None:
        self._input.display = self.list_zone.locked = False
        self._message, self._edited = ("", ""), ""
        self.set_focus(None)
        self.show(self._view)

    def action_back(self) -> None:
        if self._input.display:
            self._end_edit()
        else:
            super().action_back()

    def action_forget(self) -> None:
        self._pending.pop(self._selected, None)
        self._end_edit()

    def action_apply(self) -> None:
        if self._has_changes():
            self.actions.apply(dict(self._pending))

    def action_prove(self) -> None:
        if self._has_changes():
            self.dismiss()
            self.actions.try_change(dict(self._pending), None)

    def _has_changes(self) -> bool:
        if not self._pending:
            self._say("nothing was changed yet: enter edits the selected value")
        return bool(self._pending)
