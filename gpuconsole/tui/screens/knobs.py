"""The knobs of the current run: values, what is allowed, and what would change. Edit a value, then
apply the value at once or try it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from textual.containers import Horizontal
from textual.widget import Widget
from textual.widgets import Input

from gpuconsole.model.job import EFFECTS, PERMISSIONS
from gpuconsole.model.knobs.catalogue import CATALOGUE, KnobError, Knobs, describe_changes, show
from gpuconsole.model.knobs.knob import APPLY
from gpuconsole.model.text import cell_width, clean
from gpuconsole.report.cells import Row, blank, fill, fit, line
from gpuconsole.report.page import Lines, labelled, text_lines
from gpuconsole.session import facts
from gpuconsole.session.api import A_RECORDING, SessionApi, View
from gpuconsole.tui import keys
from gpuconsole.tui.requests import ScreenRequests
from gpuconsole.tui.screens.base import ListScreen
from gpuconsole.tui.widgets.bars import DrawnZone

FIELD = 20
"""Cells of the text field where what is allowed stands beside it."""
GAP = 3
MAX_VALUE = 30
APPLIES = 10
EFFECT = 18
FIXED = "fixed"
LABEL = 12
MIN_HEIGHT = 8
"""Below so many rows there is no room for a knob's meaning."""
NO_EFFECT = "knob."
"""The prefix of keys in `Run.unavailable` that name knobs without an effect on this run, each with
the reason."""
NOTHING_RUNS = "Nothing is running, so there are no settings. Press s to choose a scenario."
NOT_YET = "The settings of the job are known after its first steps."


class KnobsScreen(ListScreen):
    """Edited values wait until they are applied, tried or forgotten. While a value is typed, its
    name stands before the text field; what is allowed, or what is wrong, stands beside the field,
    or below it where there is no room."""

    NAME = "knobs"
    TITLE_TEXT = "Settings"
    FILTER = "filter"
    DEFAULT_CSS = """
    #edit { height: 1; }
    #named, #beside, #under { height: 1; }
    """

    def __init__(self, api: SessionApi, actions: ScreenRequests) -> None:
        super().__init__(api, actions)
        self._pending: Knobs = {}
        self._edited = ""
        """The knob whose value is being typed; empty while none is. Its row may leave the list
        meanwhile, and another row is selected then."""
        self._input = Input(compact=True, id="value")
        self._note = ("", "")
        self._named = DrawnZone(
            lambda width, height: [line(width, (f"{self._edited} = ", "title"))], id="named"
        )
        self._beside, self._under = (
            DrawnZone(self._paint_note, id="beside"),
            DrawnZone(self._paint_note, id="under"),
        )
        self._edit = Horizontal(self._named, self._input, self._beside, id="edit")
        self._edit.display = self._under.display = False

    def below(self) -> Iterable[Widget]:
        return self._edit, self._under

    def lines(self, width: int, height: int) -> Lines:
        return knob_lines(self._state, width, height)

    @property
    def _state(self) -> KnobState:
        run = self._view.run
        if run is None:
            return KnobState({}, {}, {}, job=self.api.job is not None)
        return KnobState(
            dict(run.settings),
            self._pending,
            run.unavailable,
            self.needle,
            run.facts,
            run.is_job,
            run.effects,
        )

    @property
    def _selected(self) -> str:
        """Empty where no knob is shown."""
        return str(self.list_zone.selected or "")

    def offers(self, action: keys.Action) -> bool:
        match action.id:
            case "apply" | "prove":
                return bool(self._pending)
            case "forget":
                return self._selected in self._pending
            case "edit":
                return self._selected in CATALOGUE
        return True

    def show(self, view: View) -> None:
        """New values. An edited value waits until it is in force."""
        values = view.run.settings if view.run is not None else {}
        self._pending = {
            name: value for name, value in self._pending.items() if values.get(name, value) != value
        }
        if self._edited:
            self.list_zone.select(self._edited)
            self._place_note()
        super().show(view)

    def show_summary(self) -> None:
        if self._pending and not self._edited:
            effect = self._view.run.effect(self._pending) if self._view.run is not None else ""
            label = f" ({effect})" if effect else ""
            self._heading.say(
                f"{describe_changes(self._pending, self._state.values)}{label}: a applies, v tries",
                "accent",
            )
        else:
            super().show_summary()

    def summary(self) -> str:
        state = self._state
        changed = sum(map(state.is_own, state.values))
        return (
            f"{changed} set, {len(state.values) - changed} at their default" if state.values else ""
        )

    def on_move(self) -> None:
        super().on_move()
        # what can be forgotten or edited depends on the selected row
        self._key_bar.show(self._view)

    # --- editing ----------------------------------------------------------------------------------

    def on_choose(self) -> None:
        self.action_edit()

    def action_edit(self) -> None:
        if self._selected not in CATALOGUE or not self._may_change():
            return
        knob = CATALOGUE[self._selected]
        self._edited = knob.name
        self._named.styles.width = cell_width(knob.name) + len(" = ")
        self._named.repaint()
        self._input.value = show(self._pending.get(knob.name, self._state.values[knob.name]))
        self._edit.display = self.list_zone.locked = True
        self._say(f"allowed: {knob.allowed()}", "dim")
        self.set_focus(self._input)
        self.show_keys_of("value")
        self.show_summary()

    def _may_change(self) -> bool:
        """Whether a change could be made now; otherwise the reason is reported."""
        if facts.active(self._view) and not self._view.recording:
            return True
        self.actions.report(
            A_RECORDING
            if self._view.recording
            else "the run has ended: its settings cannot be changed"
        )
        return False

    def _say(self, text: str, style: str) -> None:
        """Show a note about the value that is typed."""
        self._note = text, style
        self._place_note()

    def _place_note(self) -> None:
        room = self.size.width - cell_width(self._edited) - len(" = ") - FIELD - GAP
        is_beside = cell_width(self._note[0]) <= room
        self._input.styles.width = FIELD if is_beside else "1fr"
        self._beside.display, self._under.display = is_beside, not is_beside
        self._beside.repaint()
        self._under.repaint()

    def _paint_note(self, width: int, height: int) -> list[Row]:
        return [line(width, (" " * GAP if self._beside.display else "", ""), self._note)]

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input is not self._input:
            super().on_input_changed(event)
        elif self._edited in CATALOGUE and self._note[1] == "alert":
            self._say(f"allowed: {CATALOGUE[self._edited].allowed()}", "dim")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input is not self._input:
            super().on_input_submitted(event)
            return
        name, values = self._edited, self._state.values
        if name not in values:
            self._say("the run has no such setting now", "alert")
            return
        try:
            value = CATALOGUE[name].parse(event.value.strip())
        except KnobError as error:
            self._say(str(error).removeprefix(f"{name}: "), "alert")
            return
        self._pending.pop(name, None)
        if value != values[name]:
            self._pending[name] = value
        self._end_edit()

    def _end_edit(self) -> None:
        self._edit.display = self._under.display = self.list_zone.locked = False
        self._edited, self._note = "", ("", "")
        self.set_focus(None)
        self.show_keys_of(self.NAME)
        self.show(self._view)

    def action_back(self) -> None:
        if self._edited:
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
        if not self._may_change():
            return False
        if not self._pending:
            self.actions.report(
                f"nothing was changed yet: {keys.written()['edit']} edits the selected value"
            )
        return bool(self._pending)


# --- the rows -------------------------------------------------------------------------------------


class KnobState(NamedTuple):
    """The knobs of a run. `pending` are edited values that are not in force yet; `needle` is the
    filter. `job`: the run is the user's own job; `effects`: what a change of each knob does to its
    numbers."""

    values: Knobs
    pending: Knobs
    unavailable: Mapping[str, str]
    needle: str = ""
    facts: Mapping[str, float] = {}
    job: bool = False
    effects: Mapping[str, str] = {}

    def applies(self, name: str) -> str:
        """live, restart, or live up to the value that the server was started with. Of a user's own
        job: the effect on its numbers, or fixed."""
        if self.job:
            return self.effects.get(name, FIXED)
        knob = CATALOGUE.get(name)
        limit = knob.live_limit(self.facts) if knob else None
        return f"live <={limit:g}" if limit is not None else APPLY[knob.apply] if knob else ""

    @property
    def own(self) -> list[str]:
        """Knobs whose value differs from the default, in the order of the catalogue."""
        return [name for name in self._matching() if self.is_own(name)]

    @property
    def names(self) -> list[str]:
        """All knobs in the order of the list: those that differ from the default come first."""
        return [*self.own, *(name for name in self._matching() if not self.is_own(name))]

    def is_own(self, name: str) -> bool:
        knob = CATALOGUE.get(name)
        return knob is None or knob.default is None or knob.default != self.values[name]

    def _matching(self) -> list[str]:
        order = {name: place for place, name in enumerate(CATALOGUE)}
        needles = self.needle.lower().split()
        names = sorted(self.values, key=lambda name: order.get(name, len(order)))
        return [name for name in names if all(needle in _text(name) for needle in needles)]

    def value(self, name: str) -> str:
        value = show(self.values[name])
        return f"{value} -> {show(self.pending[name])}" if name in self.pending else value


def _text(name: str) -> str:
    knob = CATALOGUE.get(name)
    return f"{name} {knob.meaning} {knob.allowed()}".lower() if knob else name.lower()


def knob_lines(state: KnobState, width: int, height: int) -> Lines:
    """The list, and below it what the selected knob means."""
    names = state.names
    if not names:
        text = "No setting matches." if state.values else NOT_YET if state.job else NOTHING_RUNS
        return text_lines([line(width, (text, ""))])
    own = len(state.own)
    lines: list[str | None] = [*names]
    if 0 < own < len(names):
        lines.insert(own, None)
    columns = (
        max(cell_width(clean(name)) for name in names),
        min(MAX_VALUE, max(5, *(cell_width(clean(state.value(name))) for name in names))),
    )
    reasons = {
        name: state.unavailable[key]
        for name in names
        if (key := f"{NO_EFFECT}{name}") in state.unavailable
    }

    def row(n: int, selected: bool) -> Row:
        name = lines[n]
        return (
            line(width, ("  default values:", "dim"))
            if name is None
            else _row(name, state, selected, columns, width)
        )

    def meaning(name: str) -> list[Row]:
        tallest = _tallest(
            tuple((name, reasons.get(name, "")) for name in names),
            width,
            tuple(state.effects.items()) if state.job else None,
        )
        rows = min(tallest, height - 1 - max(height // 3, 1))
        return fill(
            _meaning(name, reasons.get(name, ""), width, state.effects if state.job else None),
            width,
            rows,
        )

    applies = fit("a change", EFFECT) if state.job else fit("applies", APPLIES)
    head = line(
        width,
        (f"  {fit('setting', columns[0])}  {fit('value', columns[1])}  {applies}  allowed", "dim"),
    )
    return Lines(lines, row, [head], meaning if height >= MIN_HEIGHT else None)


def _row(name: str, state: KnobState, selected: bool, columns: tuple[int, int], width: int) -> Row:
    knob = CATALOGUE.get(name)
    style = "accent" if name in state.pending else "title" if state.is_own(name) else ""
    no_effect = f"{NO_EFFECT}{name}" in state.unavailable
    return line(
        width,
        ("> " if selected else "  ", "key"),
        (fit(name, columns[0]) + "  ", "title" if selected else "dim" if no_effect else ""),
        (
            fit(state.value(name), columns[1]) + "  ",
            "dim" if no_effect and name not in state.pending else style,
        ),
        (
            fit(state.applies(name), EFFECT if state.job else APPLIES) + "  ",
            _applies_style(state.applies(name)),
        ),
        (
            "no effect here" if no_effect and not state.job else knob.allowed() if knob else "",
            "dim",
        ),
    )


def _applies_style(applies: str) -> str:
    return (
        "alert"
        if applies in PERMISSIONS
        else ""
        if applies.startswith("live") or applies in EFFECTS
        else "dim"
    )


@lru_cache(maxsize=4)
def _tallest(
    names: tuple[tuple[str, str], ...], width: int, job_effects: tuple[tuple[str, str], ...] | None
) -> int:
    """Rows of the longest meaning, with the reason of a knob without effect. The list keeps its
    height while the cursor moves."""
    effects = None if job_effects is None else dict(job_effects)
    return max(len(_meaning(name, reason, width, effects)) for name, reason in names)


def _meaning(name: str, no_effect: str, width: int, effects: Mapping[str, str] | None) -> list[Row]:
    """What the knob does, when a change applies, and which values are allowed. `effects`: see
    KnobState; None: not a user's own job."""
    knob = CATALOGUE.get(name)
    if knob is None:
        return [blank(width), line(width, (f"{name}: unknown to this version", "dim"))]
    when = (
        "live: takes effect between two steps"
        if knob.apply == "hot"
        else "restart: needs a new worker, so only a trial can change it"
    )
    if knob.lowered_live:
        when = (
            "live up to the value that the embedded server was started with (between two"
            " iterations); above it a restart: only a trial can change it"
        )
    if knob.changes_training:
        when += "; a change alters what the model learns per step, not only the speed"
    if effects is not None:
        effect = effects.get(name, "")
        when = (
            f"between two steps; {effect}: {EFFECTS[effect]}"
            if effect in EFFECTS
            else "not while the job runs"
        )
    column = max(LABEL, len(name) + 2)
    default = f"; {show(knob.default)} by default" if knob.default is not None else ""
    examples = (
        f"; for example {', '.join(show(value) for value in knob.examples)}"
        if knob.examples and knob.kind in ("int", "float")
        else ""
    )
    rows = [blank(width), *labelled(name, f"{knob.meaning}.", width, column)]
    rows += labelled("applies", when, width, column)
    rows += labelled(
        "allowed", f"{knob.allowed().replace('|', ' | ')}{default}{examples}", width, column
    )
    return rows + (
        labelled("no effect" if effects is None else "why fixed", no_effect, width, column)
        if no_effect
        else []
    )
