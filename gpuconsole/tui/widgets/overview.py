"""The zone of the main screen while no workload runs: the machine, and what to press. The table of
the GPUs has a cursor."""

from __future__ import annotations

from functools import cached_property

from textual import events

from gpuconsole.model.scenario import Scenario
from gpuconsole.report.cells import Row
from gpuconsole.report.machine.gpus import GpuChoice, time_of
from gpuconsole.report.machine.overview import Overview, paint_overview
from gpuconsole.report.screen.chart import HOLD_S
from gpuconsole.session.api import SessionApi, View
from gpuconsole.tui import keys
from gpuconsole.tui.first import hints
from gpuconsole.tui.requests import ScreenRequests
from gpuconsole.tui.widgets.list import WHEEL_ROWS
from gpuconsole.tui.widgets.live import LiveZone


class OverviewZone(LiveZone, can_focus=True):
    """Has the keys of the screen `machine` in `keys.ACTIONS` while it is in sight. Nothing is
    selected before the first key."""

    NAME = "machine"
    BINDINGS = keys.screen_bindings(NAME)

    def __init__(self, api: SessionApi, actions: ScreenRequests, *, id: str | None = None) -> None:
        super().__init__(api, id=id)
        self._actions = actions
        self._choice = GpuChoice()
        self._overview = Overview([])
        self.brief = False
        """Whether the hints take one row."""

    def draw(self, view: View, width: int, height: int) -> list[Row]:
        def history(key: str, columns: int) -> list[float | None]:
            return time_of(view, columns).values(key, self._api.history, HOLD_S)

        examples = (
            self._scenarios
            if view.devices and not any(device.is_gpu for device in view.devices)
            else []
        )
        self._overview = paint_overview(
            view,
            hints(view),
            history,
            width,
            height,
            examples,
            self._choice,
            brief=self.brief,
        )
        if self._overview.table is not None:
            self._choice = self._choice._replace(offset=self._overview.table.offset)
        return self._overview.rows

    @cached_property
    def _scenarios(self) -> list[Scenario]:
        return self._api.scenarios()

    @property
    def _ids(self) -> list[str]:
        """The GPUs in the order of the table."""
        return self._overview.table.ids if self._overview.table is not None else []

    @property
    def selected(self) -> str:
        """The selected GPU; empty if none is."""
        return self._choice.selected if self._choice.selected in self._ids else ""

    def _choose(self, **changes: object) -> None:
        self._choice = self._choice._replace(**changes)  # type: ignore[arg-type]
        self.repaint()

    def _move(self, step: int) -> None:
        """Move the selection; the first move selects the first GPU in sight."""
        if not self._ids:
            return
        at = self._ids.index(self.selected) + step if self.selected else self._choice.offset
        self._choose(selected=self._ids[max(0, min(len(self._ids) - 1, at))])

    def _turn(self, pages: int) -> None:
        """Move the selection by pages, and what is in sight with it."""
        if (table := self._overview.table) is None or not table.ids:
            return
        at = table.ids.index(self.selected) if self.selected else table.offset
        rows = pages * max(1, table.shown - 1)
        last = len(table.ids) - 1
        self._choose(
            selected=table.ids[max(0, min(last, at + rows))],
            offset=max(0, min(last - table.shown + 1, table.offset + rows)),
        )

    # --- keys -------------------------------------------------------------------------------------

    def action_up(self) -> None:
        self._move(-1)

    def action_down(self) -> None:
        self._move(1)

    def action_page_up(self) -> None:
        self._turn(-1)

    def action_page_down(self) -> None:
        self._turn(1)

    def action_first(self) -> None:
        self._select(0)

    def action_last(self) -> None:
        self._select(-1)

    def _select(self, n: int) -> None:
        if self._ids:
            self._choose(selected=self._ids[n])

    def _sort(self, step: int) -> None:
        """Sort by the next column; the beginning of the table is then in sight."""
        if self._overview.table is None:
            return
        columns = self._overview.table.columns
        at = columns.index(self._choice.sort) if self._choice.sort in columns else 0
        self._choose(sort=columns[(at + step) % len(columns)], reverse=False, selected="", offset=0)

    def action_sort_previous(self) -> None:
        self._sort(-1)

    def action_sort_next(self) -> None:
        self._sort(1)

    def action_reverse(self) -> None:
        self._choose(reverse=not self._choice.reverse, selected="", offset=0)

    async def action_find(self) -> None:
        await self._actions.find()

    def action_open_processes(self) -> None:
        """Open the processes on the selected GPU, on the first one in sight if none is selected."""
        if self._ids:
            self._actions.open_processes(
                self.selected or self._ids[min(self._choice.offset, len(self._ids) - 1)]
            )

    # --- mouse ------------------------------------------------------------------------------------

    def on_click(self, event: events.Click) -> None:
        """A click selects a GPU; a click on the selected GPU opens its processes."""
        gpu = self._overview.gpu_at(event.y)
        if gpu and gpu == self.selected:
            self._actions.open_processes(gpu)
        elif gpu:
            self._choose(selected=gpu)

    def on_mouse_scroll_down(self) -> None:
        self._move(WHEEL_ROWS)

    def on_mouse_scroll_up(self) -> None:
        self._move(-WHEEL_ROWS)
