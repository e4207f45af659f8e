"""The scenario picker: a list, and what the selected scenario does and teaches."""

from __future__ import annotations

from collections.abc import Sequence

from gpuconsole.model.knobs.catalogue import CATALOGUE, describe_changes, show
from gpuconsole.model.machine import Device
from gpuconsole.model.scenario import Scenario, grouped
from gpuconsole.model.text import cell_width, clean
from gpuconsole.report.cells import Row, blank, fill, fit, line
from gpuconsole.report.page import Lines, labelled, paragraph, text_lines

LEAST_ABOUT = 37
"""Columns that the description keeps beside the list."""
MOST_ABOUT = 14
"""Rows of the description below the list: as many as the longest description takes at 80 columns."""
LEAST_LIST = 5
LEAST_HEIGHT = 8
"""Below so many rows there is no room for a description."""
WIDE = 100
GAP = 3


def matching(scenarios: Sequence[Scenario], words: str) -> list[Scenario]:
    """Scenarios that contain every word, in their name, title, group, summary or what they teach, in the order of the groups.

    With `words`, matches in the name come first.
    """
    wanted = words.lower().split()
    found = [one for some in grouped(scenarios).values() for one in some if all(word in _text(one) for word in wanted)]
    return sorted(found, key=lambda one: not all(word in one.name.lower() for word in wanted))


def _text(scenario: Scenario) -> str:
    teaches = scenario.teaches
    return " ".join(
        (scenario.name, scenario.title, scenario.group, scenario.summary, scenario.workload.name, teaches.see, teaches.rule)
    ).lower()


def scenario_lines(scenarios: Sequence[Scenario], device: Device, width: int, height: int, *, headings: bool = True) -> Lines:
    """The list, and the description of the selected scenario beside the list where there is room, else below the list.

    `headings`: each group has its name above it; the scenarios are in the order of their groups.
    """
    if not scenarios:
        return text_lines([line(width, ("No scenario matches.", "dim"))])
    by_name = {one.name: one for one in scenarios}
    entries = _entries(scenarios) if headings else list(scenarios)
    keys = [one.name if isinstance(one, Scenario) else None for one in entries]
    names = max(cell_width(clean(one.name)) for one in scenarios)

    def row(n: int, selected: bool, room: int) -> Row:
        entry = entries[n]
        return _item(entry, selected, names, room) if isinstance(entry, Scenario) else line(room, (entry, "heading"))

    if width >= WIDE:
        titles = max(cell_width(clean(one.title)) for one in scenarios)
        room = max(width // 2, min(names + titles + 4, width - GAP - LEAST_ABOUT))
        about = width - room - GAP

        def beside_list(name: str) -> list[Row]:
            chosen = by_name[name]
            return [[(" " * GAP, ""), *row] for row in [*_title(chosen, about), *_about(chosen, device, about)]]

        return Lines(keys, lambda n, selected: row(n, selected, room), side=beside_list, side_width=about + GAP)

    rows = min(len(entries), max(LEAST_LIST, height - MOST_ABOUT))

    def below_list(name: str) -> list[Row]:
        return fill([blank(width), *_about(by_name[name], device, width)], width, height - rows)

    return Lines(keys, lambda n, selected: row(n, selected, width), foot=below_list if height >= LEAST_HEIGHT else None)


def _entries(scenarios: Sequence[Scenario]) -> list[Scenario | str]:
    """The scenarios with the name of each group above its first scenario."""
    entries: list[Scenario | str] = []
    for before, one in zip([None, *scenarios], scenarios, strict=False):
        if before is None or before.group != one.group:
            entries.append(one.group)
        entries.append(one)
    return entries


def _item(scenario: Scenario, chosen: bool, names: int, width: int) -> Row:
    return line(
        width,
        ("> " if chosen else "  ", "key"),
        (fit(scenario.name, min(names, width - 2)), "title" if chosen else ""),
        (f"  {scenario.title}", "" if chosen else "dim"),
    )


def _title(scenario: Scenario, width: int) -> list[Row]:
    return paragraph(scenario.title, width, "heading")


def _about(scenario: Scenario, device: Device, width: int) -> list[Row]:
    """What the scenario does, what a reader should see, and the values that it runs with here."""
    rows = [*paragraph(scenario.summary, width), blank(width)]
    teaches = scenario.teaches
    if teaches.see:
        rows += labelled("see", teaches.see, width, 10)
    if teaches.rule:
        rows += labelled("rule", teaches.rule, width, 10)
    if teaches.fix:
        rows += labelled("fix", describe_changes(teaches.fix_on(device)), width, 10)
    rows += labelled("workload", f"{scenario.workload.name}: {scenario.workload.title}", width, 10)
    values = scenario.knobs_on(device)
    own = {name: value for name, value in values.items() if CATALOGUE[name].default != value}
    rest = f"; {len(values) - len(own)} as by default" if len(own) < len(values) else ""
    return rows + labelled("knobs", ", ".join(f"{name} {show(value)}" for name, value in own.items()) + rest, width, 10, "dim")
