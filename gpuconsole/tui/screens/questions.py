"""Questions: before the console quits, and before it does something in the user's own job, or to a
watched server, that needs consent."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from gpuconsole.diagnosis.probes import IN_JOB
from gpuconsole.model.experiments import MAX_LOSS_COST
from gpuconsole.model.job import CHANGES_NUMERICS, EFFECTS, MAY_DIFFER
from gpuconsole.model.knobs.catalogue import describe_changes
from gpuconsole.model.run import Run
from gpuconsole.model.serving import (
    PROBE_CHARACTERS,
    PROBE_PAUSE_S,
    PROBE_REQUESTS,
    PROBE_S,
    PROBE_TOKENS,
)
from gpuconsole.model.text import visible
from gpuconsole.model.units import duration, percent
from gpuconsole.report.cells import Row, line
from gpuconsole.report.page import Lines
from gpuconsole.report.parts import BLANK, Report, labelled, lay_out, text
from gpuconsole.report.run.profile import OTHERS_WAIT
from gpuconsole.session.api import SessionApi, View
from gpuconsole.session.facts import active, kept_changes
from gpuconsole.tui.requests import ScreenRequests
from gpuconsole.tui.screens.base import ListScreen
from gpuconsole.tui.widgets.bars import TitleBar

LEAVE, END, STAY = "leave", "end", "stay"
YES, NO = "yes", "no"


def _from_here(path: Path) -> str:
    """The name of a file in the current folder, else the whole path. The job may have removed the
    current folder."""
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
        return answer_lines(
            [*lay_out(self._kept(), width), line(width)]
            if job is not None and self._kept()
            else [],
            texts,
            width,
        )

    def _kept(self) -> Report:
        """What becomes of the changes that were kept; empty without them."""
        runs = self.api.view().runs
        changes = kept_changes(runs) if runs else {}
        if not changes:
            return []
        return [
            text(
                f"Kept in the job: {describe_changes(changes)}. The job goes on with it if you"
                " leave. The patch for your code is printed in any case."
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
    """`title` and `about` say what the console asks for. `yes` and `no` are the answers. `on_yes`
    is called after a yes. `heading` names the thing that the question is about."""

    title: str
    about: Report
    yes: str
    no: str
    on_yes: Callable[[], None]
    heading: str = "Your job"


class ConsentScreen(ListScreen):
    """A question with two answers. Enter takes the selected answer. "No" is selected first, so a
    user who presses Enter by habit agrees to nothing. Escape means no."""

    NAME = "consent"

    def __init__(self, api: SessionApi, actions: ScreenRequests, question: Question) -> None:
        super().__init__(api, actions)
        self._question = question
        self._heading = TitleBar(question.heading)
        self.list_zone.select(NO)

    def lines(self, width: int, height: int) -> Lines:
        rows = [*lay_out(self._question.about, width), line(width)]
        return answer_lines(rows, {YES: self._question.yes, NO: self._question.no}, width)

    def summary(self) -> str:
        return self._question.title

    def show(self, view: View) -> None:
        super().show(view)
        job = self.api.job
        if job.ended if job is not None else not active(view):  # there is nothing left to ask
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
        return line(
            width,
            ("> " if chosen else "  ", "key"),
            (answers[names[n - len(above)]], "title" if chosen else ""),
        )

    return Lines([*[None] * len(above), *names], row)


def probes_question(allow: Callable[[], None]) -> Question:
    """Asks for permission to run probes and the profiler in the user's own job. `allow` is called
    after a yes."""
    about: Report = [
        text(
            "Some rules have no conclusion from watching alone. A probe is a short measurement"
            " between two steps of the job:"
        ),
        BLANK,
    ]
    about += [labelled(probe, IN_JOB[probe] + ".", column=22, indent=2) for probe in IN_JOB]
    profiler = (
        "when you press f: torch.profiler on a few of the job's own steps. With several processes"
        f" it runs in one of them. {OTHERS_WAIT}"
    )
    about.append(labelled("profiler", profiler, column=22, indent=2))
    about += [
        BLANK,
        text(
            "A probe holds the job up for about 2 s; where a pass is slow, for some 20 passes."
            " Gradients come from torch.autograd.grad, and buffers and random numbers are put back:"
            " the weights, gradients, losses and checkpoints of the job are the same bits as"
            " without probes."
        ),
        text(
            "A model with hooks, or with Python state that a pass would change, is refused with the"
            " reason."
        ),
    ]
    return Question(
        "Allow probes in your job?", about, "Allow probes in this job.", "No: only watch.", allow
    )


def server_probe_question(run: Run, model: str, send: Callable[[], None]) -> Question:
    """Asks whether a few requests may go to the watched server of `run`. `send` is called after a
    yes."""
    each_s = (
        run.summary.ttft_s.mean + PROBE_TOKENS * run.summary.itl_s.mean
        if run.summary.ttft_s and run.summary.itl_s
        else None
    )
    takes = (
        (
            f"about {duration(PROBE_REQUESTS * (each_s + PROBE_PAUSE_S)).strip()} by the latencies"
            " that the engine counts now"
        )
        if each_s
        else "as long as the server takes"
    )
    about: Report = [
        text(
            "The metrics page does not show how long a client waits before the engine counts: in"
            " the network, a proxy, the API server and its tokenizer. Requests from this machine"
            " show it."
        ),
        BLANK,
        labelled(
            "sends",
            (
                f"{PROBE_REQUESTS} streaming requests, one after another, beside the traffic of the"
                " server's clients"
            ),
            column=10,
            indent=2,
        ),
        labelled("to", f"{visible(run.scenario)}, model {visible(model)}", column=10, indent=2),
        labelled(
            "each",
            (
                f"{PROBE_CHARACTERS} characters of text in (about {PROBE_CHARACTERS // 4} tokens),"
                f" {PROBE_TOKENS} tokens out"
            ),
            column=10,
            indent=2,
        ),
        labelled("takes", f"{takes}, {PROBE_S:.0f} s at most", column=10, indent=2),
        BLANK,
        text(
            "Nothing is changed. The server's own metrics count these requests; the figures here"
            " leave the time of the probe out."
        ),
    ]
    return Question(
        "Send requests to the server?",
        about,
        f"Send {PROBE_REQUESTS} requests.",
        "No: only watch.",
        send,
        "The server",
    )


def numerics_question(change: str, allow: Callable[[], None]) -> Question:
    """Asks for permission to alter the numbers of the job. `change`: the change that waits for it;
    empty: none. `allow` is called after a yes."""
    what = (
        f"{change} changes numerics: {EFFECTS[CHANGES_NUMERICS]}."
        if change
        else f"Some changes (TF32) alter the numbers of the job: {EFFECTS[CHANGES_NUMERICS]}."
    )
    about: Report = [
        text(what, "alert"),
        BLANK,
        text(
            "A trial alternates steps of the job with and without the change. It keeps a change"
            " only if the job is faster and its loss is not higher by more than"
            f" {percent(MAX_LOSS_COST).strip()} or the noise. The steps with the change stay in the"
            " weights. u reverts a kept change."
        ),
        text(
            "The permission holds for all changes until the job ends, also for those of a tuning"
            " session (t)."
        ),
    ]
    return Question(
        "Alter the numbers of your job?",
        about,
        "Make the change." if change else "Allow such changes.",
        "No: keep the numbers.",
        allow,
    )


def loader_question(change: str, allow: Callable[[], None]) -> Question:
    """Asks for permission to give the job's DataLoader other workers. `change`: the change that
    waits for it; empty: none. `allow` is called after a yes."""
    sentence = EFFECTS[MAY_DIFFER]
    about: Report = [
        text(
            f"{change}: {sentence}." if change else f"{sentence[0].upper()}{sentence[1:]}.", "alert"
        ),
        BLANK,
        text(
            "num_workers in your own code would do the same. No sample is lost or repeated, and the"
            " order of the indices stays. Your own loader goes on where a worker fails. Say no if"
            " the loop writes what a sample depends on: labels, settings, a model, files."
        ),
        text(
            "The permission holds for num_workers, prefetch_factor and pin_memory until the job"
            " ends, also for those of a tuning session (t)."
        ),
    ]
    return Question(
        "Start new workers for your DataLoader?",
        about,
        "Make the change." if change else "Allow such changes.",
        "No: keep the loader.",
        allow,
    )
