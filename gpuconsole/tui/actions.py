"""What the keys and the command palette do, on whatever screen they are used. `keys.ACTIONS` names
the methods."""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from textual.app import App
from textual.widget import AwaitMount

from gpuconsole.model.finding import Interval
from gpuconsole.model.job import LOADER, NUMERICS
from gpuconsole.model.knobs.catalogue import Knobs, describe_changes
from gpuconsole.model.run import Run
from gpuconsole.model.text import visible
from gpuconsole.report.experiments import verdict_line
from gpuconsole.session.api import A_RECORDING, PlayerApi, SessionApi, SessionError
from gpuconsole.tui import keys
from gpuconsole.tui.screens.base import BackScreen, ListScreen
from gpuconsole.tui.screens.main import MainScreen
from gpuconsole.tui.widgets.bars import MESSAGE_S, Messages

if TYPE_CHECKING:
    from gpuconsole.tui.screens.questions import Question

T = TypeVar("T")

ANSWER_S = 0.05
"""Seconds from a request to the look at what it has begun: the request is a task of its own."""
SEEK_S = 5.0
"""Seconds of a recording that a step back or forward has."""
ESCAPES_S = 1.0
"""Seconds after another screen in which Escape cancels no trial."""
CHANGE = "change"
"""The topic of messages about a change without a trial: that it was asked for, then that it was
made."""
SCREENS = {
    "scenarios": "scenarios.ScenariosScreen",
    "knobs": "knobs.KnobsScreen",
    "details": "pages.DetailsScreen",
    "tuning": "pages.TuningScreen",
    "profile": "pages.ProfileScreen",
    "help": "pages.HelpScreen",
    "history": "pages.HistoryScreen",
    "device": "device.DeviceScreen",
    "processes": "processes.ProcessesScreen",
    "jobs": "processes.JobsScreen",
    "models": "pages.ModelsScreen",
    "topology": "device.TopologyScreen",
    "output": "output.OutputScreen",
    "leave_job": "questions.LeaveScreen",
}
"""Modules and classes in `screens/`. Each is imported when it is first opened: the main screen
appears sooner."""


class ActionsApp(App[int]):
    """The application as `Actions` uses it."""

    main_screen: MainScreen
    messages: Messages
    opened: asyncio.Event
    """Set once the session is open."""
    quits_after_job = False
    """Whether the console quits as soon as the user's own job has ended."""

    async def leave(self, code: int) -> None:
        """Save the session, and quit with the exit code `code`."""
        raise NotImplementedError

    def tick(self) -> None:
        """Show the present state."""
        raise NotImplementedError

    def redraw(self) -> None:
        """Draw everything again."""
        raise NotImplementedError


class Actions:
    """Opens screens, and sends requests to the session. Slow requests run in the background, so
    that keys are answered."""

    def __init__(self, app: ActionsApp, api: SessionApi) -> None:
        self._app = app
        self._api = api
        self._back_s = 0.0
        """When the user last left a screen by Escape."""

    async def do(self, name: str, *digit: str) -> None:
        """Do the action of this id; `digit`: the key of an action that all digits have."""
        if name == "device" and (device := self._device_in_sight()):
            self.open_device(device)
        elif name in SCREENS:
            self.open(name)
        elif (result := getattr(self, name)(*digit)) is not None:
            await result

    # --- screens ----------------------------------------------------------------------------------

    def open(self, name: str) -> AwaitMount | None:
        """Put a screen on top of the main screen, in place of another one. The help page covers any
        screen and gives it back."""
        app = self._app
        if name == "scenarios" and (why := self._why_no_start()):
            self.report(why)
            return None
        present = app.screen
        if isinstance(present, BackScreen) and name == present.NAME:
            present.again()
            return None
        if name != "help":
            for _ in app.screen_stack[1:]:
                app.pop_screen()
        module, _, class_name = SCREENS[name].partition(".")
        screen = getattr(importlib.import_module(f"gpuconsole.tui.screens.{module}"), class_name)
        return app.push_screen(screen(self._api, self))

    def _device_in_sight(self) -> str:
        """The device that is selected on the screen in sight; empty if none is."""
        screen = self._app.screen
        if isinstance(screen, BackScreen):
            return screen.device_in_sight()
        overview = self._app.main_screen.overview
        return overview.selected if overview.has_focus else ""

    def open_processes(self, device: str = "", job: int = 0) -> None:
        """Open the processes of a GPU or of a job on top of the screen in sight: Escape goes back
        to that one."""
        from gpuconsole.tui.screens.processes import ProcessesScreen

        self._app.push_screen(ProcessesScreen(self._api, self, device, job))

    async def find(self) -> None:
        """Open the processes with an open filter. The next key finds the filter open."""
        if (mounted := self.open("processes")) is not None:
            await mounted
        if isinstance(screen := self._app.screen, ListScreen):
            await screen.action_filter()

    def _why_no_start(self) -> str:
        """Why no scenario can be started now; empty where one can."""
        view = self._api.view()
        if keys.may_start(view):
            return ""
        if view.recording:
            return A_RECORDING
        return (
            f"your job runs: {keys.written()['stop']} ends or leaves it, then"
            f" {keys.written()['scenarios']} starts a scenario"
        )

    async def quit(self) -> None:
        """Leave the screen in sight; from the main screen, quit. On the question about the user's
        own job, leave the job."""
        screen = self._app.screen
        if isinstance(screen, BackScreen) and screen.NAME != "leave_job":
            screen.action_back()
        else:
            await self.quit_console()

    async def quit_console(self) -> None:
        """Quit. While the user's own job runs, ask first; on the question itself, leave the job."""
        if self._job_runs and getattr(self._app.screen, "NAME", "") != "leave_job":
            self.open("leave_job")
        else:
            await self._app.leave(0)

    async def interrupt(self) -> None:
        """Ctrl-C: for the user's own job while it runs, otherwise quit."""
        if self._job_runs and self._api.job is not None:
            self.report(self._api.job.interrupt())
        else:
            await self._app.leave(0)

    def leave(self) -> None:
        """Quit without a question."""
        self._app.run_worker(self._app.leave(0), exit_on_error=False)

    def probes(self) -> None:
        """Ask whether probes may run in the user's own job, or whether a watched server gets a few
        requests."""
        run = self._api.view().run
        if run is not None and run.watched:
            self._probe_server(run)
        elif self._job_runs:
            self._with_probes(lambda: self.report("probes may run in your job"))
        else:
            self.report("no job of your own runs here")

    def _probe_server(self, run: Run) -> None:
        """Ask whether the watched server gets a few requests, and send them."""
        from gpuconsole.report.run.serving import probe_result
        from gpuconsole.tui.screens.questions import server_probe_question

        if run.state != "running" or self._api.view().recording:
            self.report("no server is watched now", wrong=True)
        elif run.server is None or run.server.model is None:
            self.report("the server does not tell the name of its model: --model NAME", wrong=True)
        else:
            send = lambda: self.request(self._api.probe_server(), probe_result)  # noqa: E731
            self.ask(server_probe_question(run, str(run.server.model.value), send))

    def _with_probes(self, go_on: Callable[[], None]) -> None:
        """Go on with what needs probes; ask first where they would run in the user's own job, and
        the user has not allowed them."""
        job = self._api.job
        if job is None or job.ended or job.allows_probes:
            go_on()
            return

        def agreed() -> None:
            job.allow_probes()
            go_on()

        from gpuconsole.tui.screens.questions import probes_question

        self.ask(probes_question(agreed))

    def ask(self, question: Question) -> None:
        """Put a question on top of the present screen, which comes back with the answer."""
        from gpuconsole.tui.screens.questions import ConsentScreen

        if not isinstance(self._app.screen, ConsentScreen):
            self._app.push_screen(ConsentScreen(self._api, self, question))

    def permit(self) -> None:
        """Ask for a permission in the user's own job that is missing: first the one that the
        selected suggestion needs."""
        job, run = self._api.job, self._api.view().run
        if job is None or job.ended:
            self.report("no job of your own runs here")
            return
        suggestion = self._app.main_screen.chosen()
        needed = (
            run.permissions(suggestion.changes)
            if run is not None and suggestion is not None
            else []
        )
        missing = [
            what for what in (*needed, NUMERICS, LOADER) if not getattr(job, f"allows_{what}")
        ]
        if not missing:
            self.report("you have already allowed such changes of this job; u reverts a change")
        else:
            self._ask_for(missing[0], "", lambda: None)

    def _when_agreed(self, changes: Knobs, go_on: Callable[[], None]) -> None:
        """Go on with a change; ask first for what the change needs in the user's own job, and the
        user has not allowed."""
        job, run = self._api.job, self._api.view().run
        needed = run.permissions(changes) if job is not None and run is not None else []
        missing = [what for what in needed if not getattr(job, f"allows_{what}")]
        if not missing or run is None:
            go_on()
        else:
            self._ask_for(
                missing[0],
                describe_changes(changes, run.settings),
                lambda: self._when_agreed(changes, go_on),
            )

    def _ask_for(self, permission: str, change: str, go_on: Callable[[], None]) -> None:
        from gpuconsole.tui.screens.questions import loader_question, numerics_question

        job = self._api.job
        assert job is not None
        allow, question = (
            (job.allow_loader, loader_question)
            if permission == LOADER
            else (job.allow_numerics, numerics_question)
        )

        def agreed() -> None:
            allow()
            go_on()

        self.ask(question(change, agreed))

    def end_job(self) -> None:
        """Interrupt the user's own job, and quit when it has ended."""
        if self._api.job is not None:
            self._app.quits_after_job = True
            self.report(self._api.job.interrupt())

    @property
    def _job_runs(self) -> bool:
        return self._api.job is not None and not self._api.job.ended

    def palette(self) -> None:
        self._app.action_command_palette()

    def redraw(self) -> None:
        self._app.redraw()
        if isinstance(self._app.screen, BackScreen):
            self._app.screen.redraw()

    # --- requests to the session ------------------------------------------------------------------

    def try_selected(self) -> None:
        """Try the suggestion that is selected on the main screen."""
        suggestion = self._app.main_screen.chosen()
        if suggestion is None:
            self.report("there is no suggestion to try")
        else:
            self.try_change(suggestion.changes, suggestion.predicted_speedup)

    def copy(self) -> None:
        """Copy what the screen in sight offers, or the code of the selected suggestion, by OSC 52:
        terminals pass it to the clipboard of the user's machine, also over SSH."""
        screen = self._app.screen
        if isinstance(screen, BackScreen) and (text := screen.text_to_copy()):
            self._app.copy_to_clipboard(text)
            self.report(f"copied: {text}; not every terminal allows that")
            return
        suggestion = self._app.main_screen.chosen()
        if suggestion is None:
            self.report("there is no suggestion to copy")
            return
        self._app.copy_to_clipboard(suggestion.code or describe_changes(suggestion.changes))
        self.report(
            f"copied the code for {describe_changes(suggestion.changes)}; not every terminal allows"
            " that"
        )

    def open_device(self, device: str) -> None:
        """Open the screen of the devices on this device."""
        self.open("device")
        from gpuconsole.tui.screens.device import DeviceScreen

        if isinstance(self._app.screen, DeviceScreen):
            self._app.screen.choose(device)

    def open_metric(self, metric: str) -> None:
        """Open the screen of the devices on this metric, which shows its history."""
        self.open("device")
        screen = self._app.screen
        if isinstance(screen, ListScreen):
            screen.list_zone.select(metric)
            screen.list_zone.repaint()

    def start(self, scenario: str) -> None:
        self.request(self._when_open(lambda: self._api.start(scenario, {})))

    def keep_warm(self, wanted: bool) -> None:
        """Prepare the next start while the user chooses a scenario."""
        self.request(self._when_open(lambda: self._api.keep_warm(wanted)))

    async def _when_open(self, work: Callable[[], Awaitable[None]]) -> None:
        await self._app.opened.wait()
        await work()

    def apply(self, changes: Knobs) -> None:
        """Apply changes without a trial. That they were asked for is said at once: the worker may
        be in the middle of a long step."""
        run = self._api.view().run
        what = describe_changes(changes, run.settings if run is not None else {})

        def go_on() -> None:
            self.report(f"asked: {what}", topic=CHANGE)
            self.request(
                self._api.set_knobs(changes),
                lambda _: f"{what} applied{self._at_step()}{self._way_back()}",
                CHANGE,
            )

        self._when_agreed(changes, go_on)

    def _way_back(self) -> str:
        """`, u takes it back`, where the key can."""
        return f", {keys.written()['revert']} takes it back" if self._api.view().undo else ""

    def _at_step(self) -> str:
        """` at step 412`: where the last change took effect. Empty where that is not known."""
        run = self._api.view().run
        return (
            f" at step {run.at_step}" if run is not None and run.at_step and not run.serves else ""
        )

    def try_change(self, changes: Knobs, predicted: Interval | None) -> None:
        self._when_agreed(
            changes, lambda: self.request(self._api.try_change(changes, predicted), verdict_line)
        )

    def cancel_trial(self) -> None:
        """A second Escape out of another screen cancels no trial."""
        if not keys.trial_runs(self._api.view()):
            return
        if time.monotonic() - self._back_s < ESCAPES_S:
            self._back_s = 0.0
            self.report(f"press {keys.written()['cancel_trial']} again to cancel the trial")
        else:
            self.request_now(self._api.cancel_trial)

    def went_back(self) -> None:
        """The user has left a screen by Escape."""
        self._back_s = time.monotonic()

    def tune(self) -> None:
        self.request(self._api.tune(), lambda certificate: f"tuning ended: {certificate.stopped}")

    def take_profile(self, rank: int = 0) -> None:
        self._with_probes(
            lambda: self.request(
                self._api.profile(rank=rank),
                lambda report: (
                    f"profiled {report.steps} steps"
                    + (f", trace: {report.trace}" if report.trace else "")
                ),
            )
        )

    def revert(self) -> None:
        view = self._api.view()
        what = (
            describe_changes(view.undo, view.run.settings)
            if view.undo and view.run is not None
            else "the last change"
        )
        if view.undo:
            self.report(f"asked: {what}", topic=CHANGE)
        self.request(
            self._api.revert(), lambda _: f"{what}: change taken back{self._at_step()}", CHANGE
        )

    def stop(self) -> None:
        if keys.tuning(self._api.view()):
            self.request_now(self._api.end_tuning)
        else:
            self.stop_run()

    def stop_run(self) -> None:
        if self._job_runs:
            self.open("leave_job")
        else:
            self.request(self._api.stop())

    def baseline(self) -> None:
        self.request(self._api.keep_baseline(), lambda line: line)

    def record(self, path: Path | None = None) -> None:
        """`path`: start a recording in this file; otherwise start or end one."""
        if path is not None:
            self.request_now(lambda: self._api.toggle_recording(path))
        else:
            self.request_now(
                self._api.toggle_recording,
                lambda path: f"recording to {path}" if path else "recording ended",
            )

    def control(self) -> None:
        """Take the control back from an agent, or let agents in again."""
        if self._api.remote is None:
            self.report("no agent can connect: the console was started without --control")
        elif not self._api.remote.activity:
            self.report("no agent is connected")
        else:
            self.report(self._api.remote.switch())
            self._app.tick()

    def export(self) -> None:
        self.request_now(self._api.export, lambda path: f"snapshot written to {path}")

    # --- a recording ------------------------------------------------------------------------------

    def _play(self, act: Callable[[PlayerApi], None]) -> None:
        """Ask the player of a recording for something; in a live session nothing happens."""
        if self._api.player is not None:
            act(self._api.player)
            self._app.tick()
            self._app.set_timer(ANSWER_S, self._app.tick)

    def pause(self) -> None:
        self._play(lambda player: player.pause())

    def rewind(self) -> None:
        self._seek(-SEEK_S)

    def forward(self) -> None:
        self._seek(SEEK_S)

    def _seek(self, step_s: float) -> None:
        playback = self._api.view().playback
        if playback is not None:
            self._play(lambda player: player.seek(playback.at_s + step_s))

    def jump(self, digit: str) -> None:
        playback = self._api.view().playback
        if playback is not None:
            self._play(lambda player: player.seek(playback.length_s * int(digit) / 10))

    def slower(self) -> None:
        self._play(lambda player: player.change_speed(faster=False))

    def faster(self) -> None:
        self._play(lambda player: player.change_speed(faster=True))

    # --- reports ----------------------------------------------------------------------------------

    def report(self, message: str, *, wrong: bool = False, topic: str = "") -> None:
        """Show a message above the keys for some seconds. It replaces the message about the same
        `topic`."""
        self._app.messages.add(visible(message), "alert" if wrong else "", topic)
        self._app.tick()
        self._app.set_timer(MESSAGE_S + ANSWER_S, self._app.tick)

    def request_now(self, work: Callable[[], T], report: Callable[[T], str] | None = None) -> None:
        """A request that returns at once. `report` words its result; a refusal is reported in any
        case."""
        try:
            result = work()
        except SessionError as error:
            self.report(str(error), wrong=True)
        else:
            if report is not None:
                self.report(report(result))
        self._app.tick()

    def request(
        self, work: Awaitable[T], report: Callable[[T], str] | None = None, topic: str = ""
    ) -> None:
        """A request that takes its time. The screen shows at once that it was made."""
        self._app.run_worker(self.finish(work, report, topic), group="actions", exit_on_error=False)
        self._app.set_timer(ANSWER_S, self._app.tick)

    async def finish(
        self, work: Awaitable[T], report: Callable[[T], str] | None = None, topic: str = ""
    ) -> None:
        """The same, awaited."""
        try:
            result = await work
        except SessionError as error:
            self.report(str(error), wrong=True, topic=topic)
        else:
            if report is not None:
                self.report(report(result), topic=topic)
        self._app.tick()
