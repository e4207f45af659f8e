"""The first figures of the GPUs, drawn as the machine overview draws them, before the imports of
the screen. Imports nothing of textual."""

from __future__ import annotations

from gpuconsole.report.cells import Row, fill
from gpuconsole.report.machine.gpus import time_of
from gpuconsole.report.machine.overview import Hint, paint_overview
from gpuconsole.report.screen.chart import HOLD_S
from gpuconsole.session.api import SessionApi, View
from gpuconsole.tui import keys
from gpuconsole.tui.widgets.header import paint_header

PURPOSES = {
    "scenarios": "Training and serving, most with one fault to find.",
    "device": "All metrics of each device.",
    "processes": "Processes on the GPUs.",
    "topology": "How the GPUs are linked.",
    "help": "All keys, and how to read the screen.",
}
"""The keys that help when nothing runs, the most useful first."""
COMMANDS = (
    Hint("gpuconsole run -- python train.py", "", "your own training job, unchanged"),
    Hint("gpuconsole watch http://localhost:8000", "", "a model server that runs already"),
    Hint("gpuconsole --demo", "", "a recorded session: find, try, keep"),
)
KEY_BAR_ROWS = 2
"""Rows at the foot that the key bar takes, with its hint."""


def hints(view: View) -> list[Hint]:
    """What to press, and what to type in a shell."""
    by_id = {action.id: action for action in keys.everywhere()}
    return [
        *(
            Hint(by_id[name].bar or by_id[name].written, by_id[name].label, text)
            for name, text in PURPOSES.items()
            if by_id[name].makes_sense(view)
        ),
        *COMMANDS,
    ]


def paint_first_figures(api: SessionApi, width: int, height: int) -> list[Row]:
    """The rows of the main screen while nothing runs, without the keys at its foot."""
    view = api.view()

    def history(key: str, columns: int) -> list[float | None]:
        return time_of(view, columns).values(key, api.history, HOLD_S)

    room = max(0, height - 1 - KEY_BAR_ROWS)
    overview = paint_overview(view, hints(view), history, width, room)
    return fill([*paint_header(view, width, 1), *overview.rows], width, height)
