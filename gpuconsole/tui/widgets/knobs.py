"""The knobs of the current run: values, what is allowed, and what would change."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from gpuconsole.model.job import CHANGES_NUMERICS, EFFECTS
from gpuconsole.model.knobs.catalogue import CATALOGUE, Knobs, show
from gpuconsole.model.text import cell_width, clean
from gpuconsole.report.cells import Row, blank, fill, fit, line
from gpuconsole.report.page import Lines, labelled, text_lines

MOST_VALUE = 30
APPLIES = 10
EFFECT = 16
FIXED = "fixed"
LABEL = 12
LEAST_HEIGHT = 8
"""Below so many rows there is no room for a knob's meaning."""
NO_EFFECT = "knob."
"""The prefix of keys in `Run.unavailable` that name knobs without an effect on this run, each with the reason."""
NOTHING_RUNS = "Nothing is running, so there are no knobs. Press s to choose a scenario."
NOT_YET = "The settings of the job are known after its first steps."


class KnobState(NamedTuple):
    """The knobs of a run. `pending` are edited values that are not in force yet; `words` is the filter. `job`: the run is the user's own job;
    `effects`: what a change of each knob does to its numbers."""

    values: Knobs
    pending: Knobs
    unavailable: Mapping[str, str]
    words: str = ""
    facts: Mapping[str, float] = {}
    job: bool = False
    effects: Mapping[str, str] = {}

    def applies(self, name: str) -> str:
        """hot, cold, or hot up to the value that the server was started with. Of a user's own job: the effect on its numbers, or fixed."""
        if self.job:
            return self.effects.get(name, FIXED)
        knob = CATALOGUE.get(name)
        limit = knob.live_limit(self.facts) if knob else None
        return f"hot <={limit:g}" if limit is not None else knob.apply if knob else ""

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
        wanted = self.words.lower().split()
        known = sorted(self.values, key=lambda name: order.get(name, len(order)))
        return [name for name in known if all(word in _text(name) for word in wanted)]

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
        text = "No knob matches." if state.values else NOT_YET if state.job else NOTHING_RUNS
        return text_lines([line(width, (text, ""))])
    own = len(state.own)
    lines: list[str | None] = [*names]
    if 0 < own < len(names):
        lines.insert(own, None)
    columns = (
        max(cell_width(clean(name)) for name in names),
        min(MOST_VALUE, max(5, *(cell_width(clean(state.value(name))) for name in names))),
    )
    reasons = {name: state.unavailable[key] for name in names if (key := f"{NO_EFFECT}{name}") in state.unavailable}

    def row(n: int, selected: bool) -> Row:
        name = lines[n]
        return line(width, ("  default values:", "dim")) if name is None else _row(name, state, selected, columns, width)

    def meaning(name: str) -> list[Row]:
        tallest = _tallest(
            tuple((name, reasons.get(name, "")) for name in names), width, tuple(state.effects.items()) if state.job else None
        )
        rows = min(tallest, height - 1 - max(height // 3, 1))
        return fill(_meaning(name, reasons.get(name, ""), width, state.effects if state.job else None), width, rows)

    applies = fit("a change", EFFECT) if state.job else fit("applies", APPLIES)
    head = line(width, (f"  {fit('knob', columns[0])}  {fit('value', columns[1])}  {applies}  allowed", "dim"))
    return Lines(lines, row, [head], meaning if height >= LEAST_HEIGHT else None)


def _row(name: str, state: KnobState, selected: bool, columns: tuple[int, int], width: int) -> Row:
    knob = CATALOGUE.get(name)
    style = "accent" if name in state.pending else "title" if state.is_own(name) else ""
    nothing = f"{NO_EFFECT}{name}" in state.unavailable
    return line(
        width,
        ("> " if selected else "  ", "key"),
        (fit(name, columns[0]) + "  ", "title" if selected else "dim" if nothing else ""),
        (fit(state.value(name), columns[1]) + "  ", "dim" if nothing and name not in state.pending else style),
        (fit(state.applies(name), EFFECT if state.job else APPLIES) + "  ", _applies_style(state.applies(name))),
        ("no effect here" if nothing and not state.job else knob.allowed() if knob else "", "dim"),
    )


def _applies_style(applies: str) -> str:
    return "alert" if applies == CHANGES_NUMERICS else "" if applies.startswith("hot") or applies in EFFECTS else "dim"


@lru_cache(maxsize=4)
def _tallest(names: tuple[tuple[str, str], ...], width: int, job_effects: tuple[tuple[str, str], ...] | None) -> int:
    """Rows of the longest meaning, with the reason of a knob without effect. The list keeps its height while the cursor moves."""
    effects = None if job_effects is None else dict(job_effects)
    return max(len(_meaning(name, reason, width, effects)) for name, reason in names)


def _meaning(name: str, no_effect: str, width: int, effects: Mapping[str, str] | None) -> list[Row]:
    """What the knob does, when a change applies, and which values are allowed. `effects`: see KnobState; None: not a user's own job."""
    knob = CATALOGUE.get(name)
    if knob is None:
        return [blank(width), line(width, (f"{name}: unknown to this version", "dim"))]
    when = "hot: takes effect between two steps" if knob.apply == "hot" else "cold: needs a new worker, so only a trial can change it"
    if knob.lowered_live:
        when = "hot up to the value that the embedded server was started with (between two iterations); above it cold: only a trial can change it"
    if knob.changes_training:
        when += "; a change alters what the model learns per step, not only the speed"
    if effects is not None:
        effect = effects.get(name, "")
        when = f"between two steps; {effect}: {EFFECTS[effect]}" if effect in EFFECTS else "not while the job runs"
    column = max(LABEL, len(name) + 2)
    default = f"; {show(knob.default)} by default" if knob.default is not None else ""
    likely = f"; for example {', '.join(show(value) for value in knob.examples)}" if knob.examples and knob.kind in ("int", "float") else ""
    rows = [blank(width), *labelled(name, f"{knob.meaning}.", width, column)]
    rows += labelled("applies", when, width, column)
    rows += labelled("allowed", f"{knob.allowed().replace('|', ' | ')}{default}{likely}", width, column)
    return rows + (labelled("no effect" if effects is None else "why fixed", no_effect, width, column) if no_effect else [])
