"""The knobs of the current run: values, what is allowed, and what would change."""

from __future__ import annotations

from gpuconsole.model.knobs import CATALOGUE, Knobs, show
from gpuconsole.tui.paint.cells import Row, blank, fill, fit, line
from gpuconsole.tui.paint.page import follow, labelled


def paint_knobs(values: Knobs, pending: Knobs, cursor: int, width: int, height: int) -> list[Row]:
    """The list with `cursor` in sight, then what the selected knob means."""
    names = list(values)
    if not names:
        return fill([line(width, ("Nothing is running, so there are no knobs. Press s on the main screen.", ""))], width, height)
    foot = _meaning(names[cursor], values, width) if height >= 8 else []
    room = max(1, height - 1 - len(foot))
    start = follow(max(0, cursor - room // 2), cursor, room, len(names))
    head = f"  {fit('knob', 28)} {fit('value', 26)} {fit('applies', 8)} allowed"
    rows = [line(width, (head, "dim"))]
    rows += [_row(name, values, pending, index == cursor, width) for index, name in enumerate(names) if start <= index < start + room]
    return fill(fill(rows, width, height - len(foot)) + foot, width, height)


def _row(name: str, values: Knobs, pending: Knobs, chosen: bool, width: int) -> Row:
    knob = CATALOGUE.get(name)
    value = show(values[name])
    changed = name in pending
    text = f"{value} -> {show(pending[name])}" if changed else value
    return line(
        width,
        ("> " if chosen else "  ", "key"),
        (fit(name, 28) + " ", "title" if chosen else ""),
        (fit(text, 26) + " ", "accent" if changed else ""),
        (fit(knob.apply if knob else "", 8) + " ", "" if knob and knob.apply == "hot" else "dim"),
        (knob.allowed() if knob else "", "dim"),
    )


def _meaning(name: str, values: Knobs, width: int) -> list[Row]:
    """What the selected knob is, in a place of its own so that rows stay short."""
    knob = CATALOGUE.get(name)
    if knob is None:
        return [blank(width), line(width, (f"{name}: unknown to this version", "dim"))]
    when = "hot: takes effect between two steps" if knob.apply == "hot" else "cold: needs a new worker, so only a trial can change it"
    if knob.changes_training:
        when += "; changes what is learnt per step, not only how fast"
    rows = [blank(width), *labelled(name, f"{knob.meaning}.", width, max(12, len(name) + 2))]
    rows += labelled("applies", when, width, max(12, len(name) + 2))
    if knob.examples:
        rows += labelled("for example", ", ".join(show(value) for value in knob.examples), width, max(12, len(name) + 2))
    return rows
