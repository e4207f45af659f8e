"""The scenario picker: a list, and what the chosen one does and teaches."""

from __future__ import annotations

from collections.abc import Sequence

from gpuconsole.model.knobs import describe_changes, show
from gpuconsole.model.scenario import Scenario
from gpuconsole.tui.paint.cells import Row, beside, blank, cell_width, clean, fill, fit, line
from gpuconsole.tui.paint.page import follow, heading, labelled, paragraph


def matching(scenarios: Sequence[Scenario], words: str) -> list[Scenario]:
    """Scenarios that hold every word typed, in their name, title, summary or what they teach."""
    wanted = words.lower().split()
    return [one for one in scenarios if all(word in _text(one) for word in wanted)]


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
        room = min(max(names + 34, 40), width // 2)
        return beside(
            _list(scenarios, cursor, names, room, height),
            [[("   ", "")] for _ in range(height)],
            fill(_about(chosen, scale, width - room - 3), width - room - 3, height),
        )
    rows = min(len(scenarios), max(1, height // 3))
    under = [blank(width), *_about(chosen, scale, width)] if height >= 8 else []
    return fill(_list(scenarios, cursor, names, width, rows if under else height) + under, width, height)


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


def _about(scenario: Scenario, scale: str, width: int) -> list[Row]:
    """What it does, what a reader should see, and at which values it runs here."""
    rows = [heading(scenario.title, width), *paragraph(scenario.summary, width), blank(width)]
    teaches = scenario.teaches
    if teaches.see:
        rows += labelled("see", teaches.see, width, 10)
    if teaches.rule:
        rows += labelled("rule", teaches.rule, width, 10)
    if teaches.fix:
        rows += labelled("fix", describe_changes(teaches.fix), width, 10)
    rows += labelled("workload", f"{scenario.workload.name}: {scenario.workload.title}", width, 10)
    values = ", ".join(f"{name} {show(value)}" for name, value in scenario.knobs_for(scale).items())
    return rows + labelled("knobs", values, width, 10, "dim")
