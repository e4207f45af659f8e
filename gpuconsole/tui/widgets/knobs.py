"""The knobs of the current run: values, what is allowed, and what would change."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from gpuconsole.model.knobs.catalogue import CATALOGUE, Knobs, show
from gpuconsole.report.cells import Row, blank, cell_width, clean, fill, fit, line
from gpuconsole.report.page import follow, labelled

MOST_VALUE = 30
APPLIES = 10
LABEL = 12
NO_EFFECT = "knob."
"""How `Run.unavailable` names knobs that do nothing here, each with the reason."""


class Shown(NamedTuple):
    """What the screen shows. `words` filters; `chosen` is a knob's name, which stays chosen wherever its row goes."""

    values: Knobs
    pending: Knobs
    unavailable: Mapping[str, str]
    words: str = ""
    chosen: str = ""
    facts: Mapping[str, float] = {}

    def applies(self, name: str) -> str:
        """hot, cold, or hot up to what the server was started with."""
        knob = CATALOGUE.get(name)
        limit = knob.live_limit(self.facts) if knob else None
        return f"hot <={limit:g}" if limit is not None else knob.apply if knob else ""

    @property
    def own(self) -> list[str]:
        """Knobs whose value is not the default one, or would no longer be, in the catalogue's order."""
        return [name for name in self._matching() if self.is_own(name)]

    @property
    def names(self) -> list[str]:
        """All in the order shown: what somebody has set comes first."""
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


def paint_knobs(shown: Shown, width: int, height: int) -> list[Row]:
    """The list with the chosen knob in sight, then what that knob means."""
    names = shown.names
    if not names:
        text = "No knob matches." if shown.values else "Nothing is running, so there are no knobs. Press s on the main screen."
        return fill([line(width, (text, ""))], width, height)
    chosen = shown.chosen if shown.chosen in names else names[0]
    rows, at = _list(shown, names, chosen, width)
    reasons = {name: shown.unavailable[key] for name in names if (key := f"{NO_EFFECT}{name}") in shown.unavailable}
    foot = _meaning(chosen, reasons.get(chosen, ""), width) if height >= 8 else []
    tallest = _tallest(tuple((name, reasons.get(name, "")) for name in names), width) if foot else 0
    room = max(height // 3, height - 1 - tallest)
    head, rows = rows[0], rows[1:]
    start = follow(max(0, at - room // 2), at, room, len(rows))
    return fill([head, *fill(rows[start : start + room], width, room), *foot], width, height)


def _list(shown: Shown, names: list[str], chosen: str, width: int) -> tuple[list[Row], int]:
    """The head and all rows; and which row after the head is the chosen one's."""
    wide = max(cell_width(clean(name)) for name in names)
    value = min(MOST_VALUE, max(5, *(cell_width(clean(shown.value(name))) for name in names)))
    rows = [line(width, (f"  {fit('knob', wide)}  {fit('value', value)}  {fit('applies', APPLIES)}  allowed", "dim"))]
    at, own = 0, len(shown.own)
    for index, name in enumerate(names):
        if index == own and own:
            rows.append(line(width, ("  as by default:", "dim")))
        if name == chosen:
            at = len(rows) - 1
        rows.append(_row(name, shown, name == chosen, (wide, value), width))
    return rows, at


def _row(name: str, shown: Shown, is_chosen: bool, columns: tuple[int, int], width: int) -> Row:
    knob = CATALOGUE.get(name)
    style = "accent" if name in shown.pending else "title" if shown.is_own(name) else ""
    nothing = f"{NO_EFFECT}{name}" in shown.unavailable
    return line(
        width,
        ("> " if is_chosen else "  ", "key"),
        (fit(name, columns[0]) + "  ", "title" if is_chosen else "dim" if nothing else ""),
        (fit(shown.value(name), columns[1]) + "  ", "dim" if nothing and name not in shown.pending else style),
        (fit(shown.applies(name), APPLIES) + "  ", "" if shown.applies(name).startswith("hot") else "dim"),
        ("no effect here" if nothing else knob.allowed() if knob else "", "dim"),
    )


@lru_cache(maxsize=4)
def _tallest(names: tuple[tuple[str, str], ...], width: int) -> int:
    """Rows that the longest of all meanings takes, so that the list stands still; with the reasons of those without effect."""
    return max(len(_meaning(name, reason, width)) for name, reason in names)


def _meaning(name: str, no_effect: str, width: int) -> list[Row]:
    """What the knob is, in a place of its own so that rows stay short."""
    knob = CATALOGUE.get(name)
    if knob is None:
        return [blank(width), line(width, (f"{name}: unknown to this version", "dim"))]
    when = "hot: takes effect between two steps" if knob.apply == "hot" else "cold: needs a new worker, so only a trial can change it"
    if knob.lowered_live:
        when = "hot up to what a server of ours was started with (between two iterations); above that cold: only a trial can change it"
    if knob.changes_training:
        when += "; changes what is learnt per step, not only how fast"
    column = max(LABEL, len(name) + 2)
    default = f"; {show(knob.default)} by default" if knob.default is not None else ""
    likely = f"; for example {', '.join(show(value) for value in knob.examples)}" if knob.examples and knob.kind in ("int", "float") else ""
    rows = [blank(width), *labelled(name, f"{knob.meaning}.", width, column)]
    rows += labelled("applies", when, width, column)
    rows += labelled("allowed", f"{knob.allowed().replace('|', ' | ')}{default}{likely}", width, column)
    return rows + (labelled("no effect", no_effect, width, column) if no_effect else [])
