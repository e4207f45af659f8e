"""Questions about the user's own job: before the console quits, and before it does something in the job that needs consent."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from gpuconsole.diagnosis.probes import IN_JOB
from gpuconsole.model.experiments import MOST_LOSS_COST
from gpuconsole.model.job import CHANGES_NUMERICS, EFFECTS
from gpuconsole.model.knobs.catalogue import describe_changes
from gpuconsole.model.units import percent
from gpuconsole.report.cells import Row, line
from gpuconsole.report.page import Lines
from gpuconsole.report.parts import BLANK, Report, labelled, lay_out, text
from gpuconsole.report.run.profile import OTHERS_WAIT
from gpuconsole.session.api import SessionApi, View
from gpuconsole.session.facts import kept_changes
from gpuconsole.tui.requests import Requests
from gpuconsole.tui.screens.base import ListScreen

LEAVE, END, STAY = "leave", "end", "stay"
YES, NO = "yes", "no"


def _from_here(path: Path) -> str:
    """The name of a file in the current folder, else the whole path. The job may have removed the current folder."""
    with contextlib.suppress(OSError):
        if path.parent == Path.cwd():
            return path.name
    return str(path)


class LeaveScreen(ListScreen):
    """Leave the job, end the job, or stay. A second `q` leaves the job: that harms nothing."""

    NAME = "leave_job"
    TITLE_TEXT = "Leave or end your job?"

    def lines(self, width: int, height: int) -> Lines:
        job = self.api.job
        texts = {STAY: "Stay here."}
        if job is not None:
            texts = {
                LEAVE: f"Leave the job: it continues; its output: {_from_here(job.kept_in)}",
                END: "End the job: it gets SIGINT, as from Ctrl-C. The console quits after it.",
                **texts,
            }
        return answer_lines([*lay_out(self._kept(), width), line(width)] if job is not None and self._kept() else [], texts, width)

    def _kept(self) -> Report:
        """What becomes of the changes that were kept; empty without them."""
        runs = self.api.view().runs
        changes = kept_changes(runs) if runs else {}
        if not changes:
            return []
        return [
            text(
                f"Kept in the job: {describe_changes(changes)}. The job goes on with it if you leave. The patch for your code is printed in any case."
            )
        ]

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


class Question(NamedTuple):
    """`title` and `about` say what the user is asked for. `yes` and `no` are the answers; `on_yes` is called after the first."""

    title: str
    about: Report
    yes: str
    no: str
    on_yes: Callable[[], None]


class ConsentScreen(ListScreen):
    """A question with two answers. Enter takes the selected answer. "No" is selected first, so a user who presses Enter by habit agrees to nothing. Escape means no."""

    NAME = "consent"
    TITLE_TEXT = "Your job"

    def __init__(self, api: SessionApi, actions: Requests, question: Question) -> None:
        super().__init__(api, actions)
        self._question = question
        self.list_zone.select(NO)

    def lines(self, width: int, height: int) -> Lines:
        rows = [*lay_out(self._question.about, width), line(width)]
        return answer_lines(rows, {YES: self._question.yes, NO: self._question.no}, width)

    def summary(self) -> str:
        return self._question.title

    def show(self, view: View) -> None:
        super().show(view)
        if self.api.job is None or self.api.job.ended:  # there is nothing left to ask
            self.dismiss()

    def on_choose(self) -> None:
        self.action_choose()

    def action_choose(self) -> None:
        agreed = self.list_zone.selected == YES
        self.dismiss()
        if agreed:
            self._question.on_yes()


def answer_lines(above: list[Row], answers: dict[str, str], width: int) -> Lines:
    """Rows of text, then the answers, of which one is selected."""
    names = list(answers)

    def row(n: int, chosen: bool) -> Row:
        if n < len(above):
            return above[n]
        return line(width, ("> " if chosen else "  ", "key"), (answers[names[n - len(above)]], "title" if chosen else ""))

    return Lines([*[None] * len(above), *names], row)


def probes_question(allow: Callable[[], None]) -> Question:
    """Asks for permission to run probes and the profiler in the user's own job. `allow` is called after a yes."""
    about: Report = [
        text("Some rules have no conclusion from watching alone. A probe is a short measurement between two steps of the job:"),
        BLANK,
    ]
    about += [labelled(probe, IN_JOB[probe] + ".", column=22, indent=2) for probe in IN_JOB]
    profiler = (
        f"when you press f: torch.profiler on a few of the job's own steps. With several processes it runs in one of them. {OTHERS_WAIT}"
    )
    about.append(labelled("profiler", profiler, column=22, indent=2))
    about += [
        BLANK,
        text(
            "A probe holds the job up for about 2 s; where a pass is slow, for some 20 passes. Gradients come from torch.autograd.grad, and "
            "buffers and random numbers are put back: the weights, gradients, losses and checkpoints of the job are the same bits as without probes."
        ),
        text("A model with hooks, or with Python state that a pass would change, is refused with the reason."),
    ]
    return Question("Allow probes in your job?", about, "Allow probes in this job.", "No: only watch.", allow)


def numerics_question(change: str, allow: Callable[[], None]) -> Question:
    """Asks for permission to alter the numbers of the job. `change`: the change that waits for it; empty: none. `allow` is called after a yes."""
    what = (
        f"{change} changes numerics: {EFFECTS[CHANGES_NUMERICS]}."
        if change
        else f"Some changes (bf16, torch.compile) alter the numbers of the job: {EFFECTS[CHANGES_NUMERICS]}."
    )
    about: Report = [
        text(what, "alert"),
        BLANK,
        text(
            "A trial alternates steps of the job with and without the change. It keeps a change only if the job is faster and its loss is not "
            f"higher by more than {percent(MOST_LOSS_COST).strip()} or the noise. The steps with the change stay in the weights. u reverts a kept change."
        ),
        text("The permission holds for all changes until the job ends, also for those of a tuning session (t)."),
    ]
    return Question(
        "Alter the numbers of your job?", about, "Make the change." if change else "Allow such changes.", "No: keep the numbers.", allow
    )
