"""The scenario picker: a list, and what the chosen one does and teaches."""

from __future__ import annotations

from collections.abc import Sequence

from gpuconsole.model.knobs.catalogue import CATALOGUE, describe_changes, show
from gpuconsole.model.scenario import Scenario
from gpuconsole.report.cells import Row, beside, blank, cell_width, clean, fill, fit, line
from gpuconsole.report.page import follow, labelled, paragraph

LEAST_ABOUT = 40
"""Columns that the description keeps beside the list."""
MOST_ABOUT = 14
"""Rows of the description, where the list stands above it: what the longest one takes at 80 columns."""
LEAST_LIST = 5


def matching(scenarios: Sequence[Scenario], words: str) -> list[Scenario]:
    """Scenarios that hold every word typed, in their name, title, summary or what they teach; those so named come first."""
    wanted = words.lower().split()
    found = [one for one in scenarios if all(word in _text(one) for word in wanted)]
    return sorted(found, key=lambda one: not all(word in one.name.lower() for word in wanted))


def _text(scenario: Scenario) -> str:
    teaches = scenario.teaches
    return " ".join((scenario.name, scenario.title, scenario.summary, scenario.workload.name, teaches.see, teaches.rule)).lower()


def paint_picker(scenarios: Sequence[Scenario], cursor: int, scale: str, width: int, height: int) -> list[Row]:
    """List and description beside each other where there is room, else below each other."""
    if not scenarios:
        return fill([line(width, ("No scenario matches.", "dim"))], width, height)
    chosen = scenarios[cursor]
    names = max(cell_width(clean(one.name)) for one in scenarios)
    if width >= 100:
        titles = max(cell_width(clean(one.title)) for one in scenarios)
        room = max(width // 2, min(names + titles + 4, width - 3 - LEAST_ABOUT))
        return beside(
            _list(scenarios, cursor, names, room, height),
            [[("   ", "")] for _ in range(height)],
            fill([*_title(chosen, width - room - 3), *_about(chosen, scale, width - room - 3)], width - room - 3, height),
        )
    under = [blank(width), *_about(chosen, scale, width)] if height >= 8 else []
    rows = min(len(scenarios), max(LEAST_LIST, height - MOST_ABOUT)) if under else height
    return fill(_list(scenarios, cursor, names, width, rows) + under, width, height)


def _list(scenarios: Sequence[Scenario], cursor: int, names: int, width: int, height: int) -> list[Row]:
    start = follow(max(0, cursor - height // 2), cursor, height, len(scenarios))
    rows = [_item(one, start + n == cursor, names, width) for n, one in enumerate(scenarios[start : start + height])]
    return fill(rows, width, height)


def _item(scenario: Scenario, chosen: bool, names: int, width: int) -> Row:
    return line(
        width,
        ("> " if chosen else "  ", "key"),
        (fit(scenario.name, min(names, width - 2)), "title" if chosen else ""),
        (f"  {scenario.title}", "" if chosen else "dim"),
    )


def _title(scenario: Scenario, width: int) -> list[Row]:
    return paragraph(scenario.title, width, "heading")


def _about(scenario: Scenario, scale: str, width: int) -> list[Row]:
    """What it does, what a reader should see, and at which values it runs here."""
    rows = [*paragraph(scenario.summary, width), blank(width)]
    teaches = scenario.teaches
    if teaches.see:
        rows += labelled("see", teaches.see, width, 10)
    if teaches.rule:
        rows += labelled("rule", teaches.rule, width, 10)
    if teaches.fix:
        rows += labelled("fix", describe_changes(teaches.fix), width, 10)
    rows += labelled("workload", f"{scenario.workload.name}: {scenario.workload.title}", width, 10)
    values = scenario.knobs_for(scale)
    own = {name: value for name, value in values.items() if CATALOGUE[name].default != value}
    rest = f"; {len(values) - len(own)} as by default" if len(own) < len(values) else ""
    return rows + labelled("knobs", ", ".join(f"{name} {show(value)}" for name, value in own.items()) + rest, width, 10, "dim")
