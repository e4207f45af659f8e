"""The scenario picker: a list, and what the selected scenario does and teaches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from textual.widget import Widget
from textual.widgets import Input

from gpuconsole.model.knobs.catalogue import CATALOGUE, describe_changes, show
from gpuconsole.model.machine import Device
from gpuconsole.model.scenario import Scenario, grouped
from gpuconsole.model.text import cell_width, clean
from gpuconsole.report.cells import Row, blank, fill, fit, line
from gpuconsole.report.machine.columns import device_line
from gpuconsole.report.page import Lines, labelled, paragraph, text_lines
from gpuconsole.session import facts
from gpuconsole.session.api import SessionApi, View
from gpuconsole.session.gpu_state import gpu_states, whole_gpus
from gpuconsole.tui.requests import ScreenRequests
from gpuconsole.tui.screens.base import ListScreen
from gpuconsole.tui.widgets.bars import DrawnZone

MIN_ABOUT_COLUMNS = 37
"""Columns that the description keeps beside the list."""
MAX_ABOUT_ROWS = 14
"""Rows of the description below the list: as many as the longest description takes at 80
columns."""
MIN_LIST_ROWS = 5
MIN_HEIGHT = 8
"""Below so many rows there is no room for a description."""
WIDE = 100
GAP = 3


class ScenariosScreen(ListScreen):
    """Enter starts the selected scenario, in the filter's text field too. While the picker is open,
    a worker is kept ready."""

    NAME = "scenarios"
    TITLE_TEXT = "Scenarios"
    FILTER = "filter"
    FIELD = "choice"

    def __init__(self, api: SessionApi, actions: ScreenRequests) -> None:
        super().__init__(api, actions)
        self._all = {scenario.name: scenario for scenario in api.scenarios()}
        self.list_zone.select(self._proposed())
        self._device = DrawnZone(
            lambda width, height: [
                line(width, *device_line(self._view, facts.device(self._view), width)),
                blank(width),
            ]
        )
        self._device.styles.height = 2

    def _proposed(self) -> str | None:
        """The scenario of the present run; before the first run, the first scenario of the list
        with a fix to prove."""
        if self._view.run is not None and self._view.run.scenario in self._all:
            return self._view.run.scenario
        return next(
            (scenario.name for scenario in self._matching("") if scenario.teaches.fix), None
        )

    def _matching(self, needle: str) -> list[Scenario]:
        return matching(list(self._all.values()), needle)

    def on_mount(self) -> None:
        super().on_mount()
        self.actions.keep_warm(True)

    def on_unmount(self) -> None:
        self.actions.keep_warm(False)

    def above(self) -> Iterable[Widget]:
        return (self._device,)

    def lines(self, width: int, height: int) -> Lines:
        return scenario_lines(
            self._matching(self.needle),
            facts.device(self._view),
            width,
            height,
            headings=not self.needle,
        )

    def summary(self) -> str:
        """Which of how many is selected, and where scenarios run."""
        device, view = facts.device(self._view), self._view
        if not view.devices:
            return "searching for devices"
        names = [scenario.name for scenario in self._matching(self.needle)]
        at = (
            f"{names.index(str(self.list_zone.selected)) + 1} of {len(names)}; "
            if self.list_zone.selected in names
            else ""
        )
        if device.is_gpu:
            return (
                f"{at}they run on {device.id}"
                f"{occupied(view) or f' {facts.short_name(device.name)}'}"
            )
        return f"{at}they run on the CPU ({view.no_gpu_reason})"

    def show(self, view: View) -> None:
        super().show(view)
        self._device.repaint()

    def on_choose(self) -> None:
        self.action_start()

    def action_start(self) -> None:
        if self.list_zone.selected is not None:
            self.dismiss()
            self.actions.start(str(self.list_zone.selected))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.action_start()


def occupied(view: View) -> str:
    """Return whether others hold the GPU of the first run, or whether it is sick, and a GPU that is
    free. Empty once a run has started: it is one of the users."""
    gpus = [device for device in view.devices if device.is_gpu]
    states = gpu_states(view, gpus)
    if view.run is not None or view.device not in states:
        return ""
    is_now = {"busy": "in use", "idle": "in use", "sick": "sick"}.get(states[view.device].kind)
    if is_now is None:
        return ""
    free = next((gpu.id for gpu in whole_gpus(gpus) if states[gpu.id].kind == "free"), "")
    return f", {is_now}" + (f"; {free} is free: --device {free}" if free else "")


# --- the rows -------------------------------------------------------------------------------------


def matching(scenarios: Sequence[Scenario], needle: str) -> list[Scenario]:
    """Scenarios that contain every word of `needle`, in their name, title, group, summary or what
    they teach, in the order of the groups.

    With a needle, matches in the name come first.
    """
    words = needle.lower().split()
    matches = [
        scenario
        for group in grouped(scenarios).values()
        for scenario in group
        if all(word in _text(scenario) for word in words)
    ]
    return sorted(
        matches, key=lambda scenario: not all(word in scenario.name.lower() for word in words)
    )


def _text(scenario: Scenario) -> str:
    teaches = scenario.teaches
    return " ".join(
        (
            scenario.name,
            scenario.title,
            scenario.group,
            scenario.summary,
            scenario.workload.name,
            teaches.see,
            teaches.rule,
        )
    ).lower()


def scenario_lines(
    scenarios: Sequence[Scenario], device: Device, width: int, height: int, *, headings: bool = True
) -> Lines:
    """The list, and the description of the selected scenario beside the list where there is room,
    else below the list.

    `headings`: each group has its name above it; the scenarios are in the order of their groups.
    """
    if not scenarios:
        return text_lines([line(width, ("No scenario matches.", "dim"))])
    by_name = {scenario.name: scenario for scenario in scenarios}
    entries = _entries(scenarios) if headings else list(scenarios)
    keys = [entry.name if isinstance(entry, Scenario) else None for entry in entries]
    name_width = max(cell_width(clean(scenario.name)) for scenario in scenarios)

    def row(n: int, selected: bool, room: int) -> Row:
        entry = entries[n]
        return (
            _item(entry, selected, name_width, room)
            if isinstance(entry, Scenario)
            else line(room, (entry, "heading"))
        )

    if width >= WIDE:
        title_width = max(cell_width(clean(scenario.title)) for scenario in scenarios)
        room = max(width // 2, min(name_width + title_width + 4, width - GAP - MIN_ABOUT_COLUMNS))
        about = width - room - GAP

        def beside_list(name: str) -> list[Row]:
            scenario = by_name[name]
            return [
                [(" " * GAP, ""), *row]
                for row in [*_title(scenario, about), *_about(scenario, device, about)]
            ]

        return Lines(
            keys,
            lambda n, selected: row(n, selected, room),
            side=beside_list,
            side_width=about + GAP,
        )

    rows = min(len(entries), max(MIN_LIST_ROWS, height - MAX_ABOUT_ROWS))

    def below_list(name: str) -> list[Row]:
        return fill([blank(width), *_about(by_name[name], device, width)], width, height - rows)

    return Lines(
        keys,
        lambda n, selected: row(n, selected, width),
        foot=below_list if height >= MIN_HEIGHT else None,
    )


def _entries(scenarios: Sequence[Scenario]) -> list[Scenario | str]:
    """The scenarios with the name of each group above its first scenario."""
    entries: list[Scenario | str] = []
    for before, scenario in zip([None, *scenarios], scenarios, strict=False):
        if before is None or before.group != scenario.group:
            entries.append(scenario.group)
        entries.append(scenario)
    return entries


def _item(scenario: Scenario, chosen: bool, name_width: int, width: int) -> Row:
    return line(
        width,
        ("> " if chosen else "  ", "key"),
        (fit(scenario.name, min(name_width, width - 2)), "title" if chosen else ""),
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
    changed = {name: value for name, value in values.items() if CATALOGUE[name].default != value}
    rest = f"; {len(values) - len(changed)} as by default" if len(changed) < len(values) else ""
    return rows + labelled(
        "knobs",
        ", ".join(f"{name} {show(value)}" for name, value in changed.items()) + rest,
        width,
        10,
        "dim",
    )
