"""The zone of the main screen while no workload runs: the machine, and what to press."""

from __future__ import annotations

from functools import cached_property

from gpuconsole.model.scenario import Scenario
from gpuconsole.report.cells import Row
from gpuconsole.report.machine.overview import Hint, paint_overview
from gpuconsole.report.screen.chart import HOLD_S, SPARK_COLUMN_S, window
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
COLUMN_S = (SPARK_COLUMN_S, 5.0, 10.0)
LEAST_HISTORY_S = 90.0
"""The least time that a history shows while no workload runs. A narrow history has wider columns for it. With columns of two seconds, the histories of eight
GPUs would show 22 s at 120 columns, and would need more bytes than all figures together."""
COMMANDS = (
    Hint("gpuconsole run -- python train.py", "", "your own training job, unchanged"),
    Hint("gpuconsole run serve-chat --url http://localhost:8000", "", "a running model server"),
    Hint("gpuconsole --demo", "", "a recorded session: find, try, keep"),
)


def column_s(columns: int) -> float:
    """The narrowest columns with which a history of `columns` columns shows LEAST_HISTORY_S."""
    return next((seconds for seconds in COLUMN_S if seconds * columns >= LEAST_HISTORY_S), COLUMN_S[-1])


class OverviewZone(LiveZone):
    def draw(self, view: View, width: int, height: int) -> list[Row]:
        by_id = {action.id: action for action in keys.everywhere()}
        hints = [Hint(by_id[name].written, by_id[name].label, text) for name, text in PURPOSES.items() if by_id[name].makes_sense(view)]

        def history(key: str, columns: int) -> list[float | None]:
            return window(0.0, view.now, columns, column_s(columns)).values(key, self._api.history, HOLD_S)

        examples = self._scenarios if view.devices and not any(device.is_gpu for device in view.devices) else []
        return paint_overview(view, [*hints, *COMMANDS], history, width, height, examples)

    @cached_property
    def _scenarios(self) -> list[Scenario]:
        return self._api.scenarios()
