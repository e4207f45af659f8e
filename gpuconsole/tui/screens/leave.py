"""The question before the console quits while the user's own job runs."""

from __future__ import annotations

from gpuconsole.report.cells import line
from gpuconsole.report.page import Lines
from gpuconsole.session.api import View
from gpuconsole.tui.screens.base import ListScreen

LEAVE, END, STAY = "leave", "end", "stay"


class LeaveScreen(ListScreen):
    """Leave the job, end the job, or stay. A second `q` leaves the job: that harms nothing."""

    NAME = "leave_job"
    TITLE_TEXT = "Quit"

    def lines(self, width: int, height: int) -> Lines:
        job = self.api.job
        texts = {STAY: "Stay here."}
        if job is not None:
            texts = {
                LEAVE: f"Leave the job: the job continues, and its output goes to {job.kept_in}.",
                END: "End the job: the job gets SIGINT, as from Ctrl-C. The console quits when the job has ended.",
                **texts,
            }
        keys = list(texts)
        return Lines(keys, lambda n, chosen: line(width, ("> " if chosen else "  ", "key"), (texts[keys[n]], "title" if chosen else "")))

    def summary(self) -> str:
        return f"{self.api.job.about} runs" if self.api.job is not None else ""

    def show(self, view: View) -> None:
        super().show(view)
        if self.api.job is not None and self.api.job.ended:  # there is nothing left to ask
            self.actions.leave()

    def on_choose(self) -> None:
        self.action_choose()

    def action_choose(self) -> None:
        match self.list_zone.selected:
            case "leave":
                self.actions.leave()
            case "end":
                self.dismiss()
                self.actions.end_job()
            case _:
                self.dismiss()
