"""The jobs and the processes on the devices: sorted, filtered, grouped; and the one place from
which a signal is sent."""

from __future__ import annotations

import signal
from collections.abc import Iterable

from textual import events
from textual.widget import Widget

from gpuconsole.model.machine import Process
from gpuconsole.report.cells import Row, line
from gpuconsole.report.machine.jobs import job_lines, watch_command
from gpuconsole.report.machine.processes import (
    ORDERS,
    ProcessEntry,
    ProcessFilter,
    arrange,
    identity,
    order_in_words,
    paint_process,
    process_lines,
    question,
    title,
)
from gpuconsole.report.page import Lines, text_lines
from gpuconsole.session.api import A_RECORDING, SessionApi, SessionError, View
from gpuconsole.session.jobs import Job, jobs_of, pids_of
from gpuconsole.tui.requests import ScreenRequests
from gpuconsole.tui.screens.base import ListScreen
from gpuconsole.tui.widgets.bars import DrawnZone

MODIFIERS = ("_shift", "_control", "_alt", "_super", "_hyper", "_meta", "_lock")
"""Keys that some terminals report alone. They do not answer a question."""
TITLE_ROOM = 60


class ProcessesScreen(ListScreen):
    """A table of processes, or one process in full. The selection keeps its process when the order
    changes."""

    NAME = "processes"
    TITLE_TEXT = "Processes"
    FILTER = "part of a name, command, user, container, pid or gpu:N"
    DEFAULT_CSS = "#prompt { height: 1; dock: bottom; margin-bottom: 1; }"

    def __init__(
        self, api: SessionApi, actions: ScreenRequests, device: str = "", job: int = 0
    ) -> None:
        """`device`, `job`: show only the processes of this GPU, or of this job."""
        super().__init__(api, actions)
        self._choice = ProcessFilter(device=device, job=job)
        self._entries: list[ProcessEntry] = []
        self._inspected: Process | None = None
        self._asked: tuple[str, Process] | None = None
        self._answer_text: tuple[str, str] = ("", "")
        self._prompt = DrawnZone(self._paint_prompt, id="prompt")

    def below(self) -> Iterable[Widget]:
        return (self._prompt,)

    # --- content ----------------------------------------------------------------------------------

    def lines(self, width: int, height: int) -> Lines:
        wall = self._view.wall or None
        if self._inspected is not None:
            return text_lines(paint_process(self._view, self._inspected, width, wall))
        choice = self._choice._replace(needle=self.needle)
        self._entries = arrange(self._view.processes, choice)
        return process_lines(self._view, self._entries, choice, width, wall)

    def show(self, view: View) -> None:
        if self._asked and not any(
            identity(process) == identity(self._asked[1]) for process in view.processes
        ):
            self._answer(f"{self._asked[1].pid} has ended: nothing was sent")
        super().show(view)
        self._prompt.repaint()

    def summary(self) -> str:
        if self._inspected is not None:
            return self.list_zone.position
        shown = [entry.process for entry in self._entries if entry.process]
        if not self._view.processes:
            return ""
        of = f" of {len(self._view.processes)}" if len(shown) < len(self._view.processes) else ""
        devices = len({process.device for process in shown})
        whose = f"{self._choice.whose}: " if self._choice.whose else ""
        if not shown:
            return f"{whose}0{of}"
        return (
            f"{whose}{len(shown)}{of} on {devices} {'device' if devices == 1 else 'devices'},"
            f" {order_in_words(self._choice)}"
        )

    def _paint_prompt(self, width: int, height: int) -> list[Row]:
        return [
            question(self._asked[1], self._asked[0], width)
            if self._asked
            else line(width, self._answer_text)
        ]

    # --- keys -------------------------------------------------------------------------------------

    def _choose(self, **changes: object) -> None:
        self._choice = self._choice._replace(**changes)  # type: ignore[arg-type]
        self.show(self._view)

    def _sort(self, step: int) -> None:
        if self._inspected is not None:  # the list is hidden
            return
        columns = list(ORDERS)
        self._choose(
            sort=columns[(columns.index(self._choice.sort) + step) % len(columns)], reverse=False
        )

    def again(self) -> None:
        """The key of this screen shows the processes of all GPUs and jobs."""
        self._choose(device="", job=0)

    def device_in_sight(self) -> str:
        process = self._selected()
        return process.device if process is not None else self._choice.device

    def action_sort_previous(self) -> None:
        self._sort(-1)

    def action_sort_next(self) -> None:
        self._sort(1)

    def action_reverse(self) -> None:
        if self._inspected is None:
            self._choose(reverse=not self._choice.reverse)

    def action_group(self) -> None:
        """On the page of one process, which has no groups, the key means the first line as
        elsewhere."""
        if self._inspected is None:
            self._choose(tree=not self._choice.tree)
        else:
            self.action_first()

    async def action_filter(self) -> None:
        if self._inspected is None:
            await super().action_filter()

    def on_choose(self) -> None:
        self.action_inspect()

    def action_inspect(self) -> None:
        process = self._selected()
        if process is not None and self._inspected is None:
            self._show_page_of(process)

    def _show_page_of(self, process: Process | None) -> None:
        """One process in full; None: the table again."""
        self._inspected = process
        self.show_keys_of("process" if process else self.NAME)
        self.list_zone.scroll_to_start()
        self.show(self._view)

    def action_back(self) -> None:
        """One step back: from a process, from a filter, from the screen."""
        if self._inspected is not None:
            self._show_page_of(None)
        else:
            super().action_back()

    # --- signals ----------------------------------------------------------------------------------

    def _selected(self) -> Process | None:
        if self._inspected is not None:
            return self._inspected
        processes = (entry.process for entry in self._entries if entry.process)
        return next(
            (process for process in processes if identity(process) == self.list_zone.selected), None
        )

    def action_interrupt_process(self) -> None:
        self._ask("SIGINT")

    def action_terminate(self) -> None:
        self._ask("SIGTERM")

    def action_kill(self) -> None:
        self._ask("SIGKILL")

    def _ask(self, name: str) -> None:
        process = self._selected()
        if self._view.recording:
            self._answer(A_RECORDING)
        elif process is not None and process.started <= 0:
            why = process.unseen or "it is not seen here (another container or user)"
            self._answer(f"{process.pid}: {why}: no signal can be sent", "alert")
        elif process is not None and process.state == "Z":
            self._answer(f"{process.pid} has ended, and is a zombie: no signal reaches it", "alert")
        elif process is not None:
            self._asked = name, process
            self._prompt.repaint()

    def on_key(self, event: events.Key) -> None:
        """While a question is open, every key answers it, and only `y` means yes."""
        if self._asked is None:
            return
        event.stop()
        event.prevent_default()
        if event.key.endswith(MODIFIERS):
            return
        name, process = self._asked
        if event.character == "K" and name != "SIGKILL":
            self._ask("SIGKILL")
        elif event.character == "y":
            self._send(name, process)
        else:
            self._answer("nothing was sent")

    def _send(self, name: str, process: Process) -> None:
        try:
            self.api.signal_process(process, signal.Signals[name])
        except SessionError as error:
            self._answer(str(error), "alert")
        else:
            self._answer(f"{name} sent to {process.pid} {title(process, TITLE_ROOM)}", "accent")

    def _answer(self, text: str, style: str = "dim") -> None:
        self._asked = None
        self._answer_text = text, style
        self._prompt.repaint()


class JobsScreen(ListScreen):
    """The processes on the GPUs, grouped into jobs. The ports of servers are read while this screen
    is in sight."""

    NAME = "jobs"
    TITLE_TEXT = "Jobs on this machine"
    FILTER = "only jobs with these words"
    SIFTED = True

    def __init__(self, api: SessionApi, actions: ScreenRequests) -> None:
        super().__init__(api, actions)
        self._jobs: list[Job] = []

    def lines(self, width: int, height: int) -> Lines:
        processes = self._view.processes
        self._jobs = jobs_of(processes, self.api.ports(pids_of(processes)))
        return job_lines(self._view, self._jobs, width, height)

    def summary(self) -> str:
        if not self._jobs:
            return ""
        devices = {process.device for process in self._view.processes}
        jobs = f"{len(self._jobs)} {'job' if len(self._jobs) == 1 else 'jobs'}"
        return f"{jobs} on {len(devices)} {'device' if len(devices) == 1 else 'devices'}"

    def _selected(self) -> Job | None:
        return next((job for job in self._jobs if job.pid == self.list_zone.selected), None)

    def device_in_sight(self) -> str:
        job = self._selected()
        return job.devices[0] if job is not None else ""

    def text_to_copy(self) -> str:
        job = self._selected()
        return watch_command(job) if job is not None else ""

    def on_choose(self) -> None:
        self.action_open_job()

    def action_open_job(self) -> None:
        if (job := self._selected()) is None:
            return
        view = self._view
        runs = view.run is not None and view.closed_s is None
        if job.kind == "server" and job.address and not runs:
            self.dismiss()
            self.actions.start(job.address)
        else:
            self.actions.open_processes(job=job.pid)
