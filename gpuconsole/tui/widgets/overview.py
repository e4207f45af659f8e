"""The zone of the main screen while no workload runs: the machine, and what to press."""

from __future__ import annotations

from functools import cached_property

from gpuconsole.model.scenario import Scenario
from gpuconsole.report.cells import Row
from gpuconsole.report.machine.overview import Hint, paint_overview
from gpuconsole.report.screen.chart import HOLD_S, window
from gpuconsole.session.api import View
from gpuconsole.tui import keys
from gpuconsole.tui.widgets.live import LiveZone

PURPOSES = {
    "scenarios": "Training and serving, most with one fault to find.",
    "device": "All metrics of each device.",
    "processes": "Processes on the GPUs.",
    "topology": "How the GPUs are linked.",
    "help": "All keys, and how to read the screen.",
}
"""The keys that help when nothing runs, the most useful first."""
SECONDS_PER_COLUMN = 2.0
COMMANDS = (
    Hint("gpuconsole run -- python train.py", "", "your own training job, unchanged"),
    Hint("gpuconsole run serve-chat --url http://localhost:8000", "", "a running model server"),
    Hint("gpuconsole --demo", "", "a recorded session: find, try, keep"),
)


class OverviewZone(LiveZone):
    def draw(self, view: View, width: int, height: int) -> list[Row]:
        by_id = {action.id: action for action in keys.everywhere()}
        hints = [Hint(by_id[name].written, by_id[name].label, text) for name, text in PURPOSES.items() if by_id[name].makes_sense(view)]

        def history(key: str, columns: int) -> list[float | None]:
            return window(0.0, view.now, columns, SECONDS_PER_COLUMN).values(key, self._api.history, HOLD_S)

        examples = self._scenarios if view.devices and not any(device.is_gpu for device in view.devices) else []
        return paint_overview(view, [*hints, *COMMANDS], history, width, height, examples)

    @cached_property
    def _scenarios(self) -> list[Scenario]:
        return self._api.scenarios()
