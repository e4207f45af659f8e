"""The console on the screen: one app over one `SessionApi`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TypeVar

from textual.app import App, SystemCommand
from textual.binding import Binding
from textual.screen import Screen
from textual.timer import Timer

from gpuconsole.model.finding import Interval
from gpuconsole.model.knobs.catalogue import Knobs, describe_changes
from gpuconsole.model.text import visible
from gpuconsole.report import facts
from gpuconsole.report.experiments.trial import verdict_line
from gpuconsole.session.api import SessionApi, SessionError
from gpuconsole.tui import skeleton
from gpuconsole.tui.driver import driver_class
from gpuconsole.tui.driver.screen import Cost
from gpuconsole.tui.driver.terminal import terminal
from gpuconsole.tui.opening import Opens, Warms
from gpuconsole.tui.screens.base import BackScreen
from gpuconsole.tui.screens.main import MainScreen
from gpuconsole.tui.widgets.zone import Zone

T = TypeVar("T")


ECO_S = 2.0
FIRST_LOOK_S = 0.05
CLOSE_S = 3.0
HANG_UP_S = 8.0
"""After a hang-up the terminal may be gone and anything may block: then the process ends all the same."""


class ConsoleApp(App[int]):
    """Shows `api` and sends the keys to it. Colours are the terminal's own, also under NO_COLOR."""

    TITLE = "gpuconsole"
    BINDINGS = [
        Binding("q", "quit", "Quit", show=False),
        Binding("ctrl+c", "quit", "Quit", show=False, priority=True),
        Binding("question_mark", "open('help')", "Help", show=False),
        Binding("ctrl+l", "redraw", "Draw again", show=False),
    ]
    CSS = """
    Screen { background: ansi_default; }
    Input { height: 1; border: none; padding: 0; }
    Toast { padding: 0 1; margin-top: 0; }
    """

    def __init__(
        self,
        api: SessionApi,
        refresh_hz: float = 2.0,
        scenario: str | None = None,
        *,
        knobs: Knobs | None = None,
        duration: float | None = None,
        record: Path | None = None,
        on_hangup: Callable[[], None] | None = None,
        eco: bool = False,
        opening: Awaitable[None] | None = None,
    ) -> None:
        """`eco`: one update in `ECO_S` seconds; keys are answered at once all the same. `opening`: the api is being opened already."""
        able = terminal()  # before Textual takes NO_COLOR out of the environment
        super().__init__(driver_class=driver_class(), ansi_color=True)
        self.able = able
        self.theme = "ansi-dark"
        self.api = api
        self.closed = False
        self._period = ECO_S if eco else 1.0 / refresh_hz
        self._scenario = scenario
        self._knobs = knobs or {}
        self._duration = duration
        self._running_since: float | None = None
        self._record = record
        self._on_hangup = on_hangup
        self._opening = opening
        self._since_shown = self._rest_s = 0.0
        self._timer: Timer | None = None
        self._watchdog: threading.Timer | None = None
        self._leaving = False
        Zone.ascii_only = able.ascii_only

    # --- life -----------------------------------------------------------------------------------------------

    def get_default_screen(self) -> Screen[None]:
        return MainScreen(self.api, self.try_change)

    def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGHUP, signal.SIGTERM):
            with contextlib.suppress(ValueError, RuntimeError):  # not in the main thread
                loop.add_signal_handler(number, self._hang_up, number)
        self._timer = self.set_interval(self._period, self._beat)
        self._first_look = self.set_interval(FIRST_LOOK_S, self._look_for_data)
        self.run_worker(self._begin(), exit_on_error=True)

    def on_unmount(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGHUP, signal.SIGTERM):
            with contextlib.suppress(ValueError, RuntimeError):
                loop.remove_signal_handler(number)

    async def _begin(self) -> None:
        """Open the api; then start what was asked for, or ask."""
        if self._opening is not None:
            try:
                await self._opening
            except SessionError as error:  # asked for what is not there
                self.exit(2, message=f"gpuconsole: {visible(str(error))}")
                return
        elif isinstance(self.api, Opens):
            await self.api.open()
        if self._record is not None:
            self._do(lambda: self.api.toggle_recording(self._record))
        if self._scenario is not None:
            await self._guarded(self.api.start(self._scenario, self._knobs), None)
        elif not self.api.view().runs and not self.api.view().recording:
            self.action_open("scenarios")
            if isinstance(self.api, Warms):
                await self.api.warm()
        self.tick()

    def _look_for_data(self) -> None:
        """The first numbers are shown as soon as they are there."""
        if self._leaving or self.api.view().latest:
            self._first_look.stop()
            self.tick()

    def _beat(self) -> None:
        """While nothing runs there is nothing to show more often than the sources are read."""
        self._since_shown += self._period
        if self._since_shown >= self._rest_s:
            self.tick()

    def tick(self) -> None:
        """Show the present state on the screen in sight; hidden ones do no work."""
        if self._leaving or not self.screen_stack:
            return
        if self._duration is not None:
            self._watch_duration(self._duration)
        view, screen = self.api.view(), self.screen
        self._since_shown = 0.0
        self._rest_s = 0.0 if facts.active(view) else min((state.period_s for state in view.sources.values()), default=0.0)
        if isinstance(screen, MainScreen | BackScreen):
            screen.show(view)

    def _watch_duration(self, seconds: float) -> None:
        """Stop the run once it has run for as long as was asked; kept changes do not begin the time anew."""
        view = self.api.view()
        if self._running_since is None:
            if view.state == "running":
                self._running_since = view.now
        elif view.now - self._running_since >= seconds:
            self._duration = None
            self.action_stop()

    async def action_quit(self) -> None:
        await self._leave(0)

    async def _leave(self, code: int) -> None:
        """Close the api, then the screen. A second call changes nothing."""
        if self._leaving:
            return
        self._leaving = True
        if self._timer is not None:
            self._timer.stop()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.api.close(), CLOSE_S)
        self.closed = True
        self.exit(code)

    def _hang_up(self, number: int) -> None:
        """The terminal is gone, or somebody wants us gone: keep what was measured, then leave."""
        if self._watchdog is not None:
            return
        self._watchdog = threading.Timer(HANG_UP_S, _give_up, (128 + number,))
        self._watchdog.daemon = True
        self._watchdog.start()
        if self._on_hangup is not None:
            self._on_hangup()
        self.run_worker(self._leave(128 + number), exit_on_error=False)

    @property
    def line_cost(self) -> Cost | None:
        """What the screen has sent to the terminal; None with a driver that does not count."""
        return getattr(self._driver, "cost", None)

    def action_redraw(self) -> None:
        """Something else has written to the terminal."""
        redraw = getattr(self._driver, "redraw", None)
        if redraw is not None:
            redraw()

    def call_off_watchdog(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()

    # --- screens --------------------------------------------------------------------------------------------

    def action_open(self, name: str) -> None:
        """Put a screen on top of the main one; one at a time, but help on top of any."""
        if isinstance(self.screen, BackScreen):
            from gpuconsole.tui.screens.help import HelpScreen

            if name != "help" or isinstance(self.screen, HelpScreen):
                return
        self.push_screen(self._screen(name))

    def _screen(self, name: str) -> BackScreen:
        """Each screen is imported when it is first opened, so that the main one is there the sooner."""
        api = self.api
        match name:
            case "scenarios":
                from gpuconsole.tui.screens.scenarios import ScenariosScreen

                return ScenariosScreen(api, self.start)
            case "knobs":
                from gpuconsole.tui.screens.knobs import KnobsScreen

                return KnobsScreen(api, self.apply, self.try_change)
            case "details":
                from gpuconsole.tui.screens.details import DetailsScreen

                return DetailsScreen(api)
            case "history":
                from gpuconsole.tui.screens.history import HistoryScreen

                return HistoryScreen(api)
            case "device":
                from gpuconsole.tui.screens.device import DeviceScreen

                return DeviceScreen(api)
            case "processes":
                from gpuconsole.tui.screens.processes import ProcessesScreen

                return ProcessesScreen(api)
            case "models":
                from gpuconsole.tui.screens.models import ModelsScreen

                return ModelsScreen(api)
            case "profile":
                from gpuconsole.tui.screens.profile import ProfileScreen

                return ProfileScreen(api, self.take_profile)
            case "tuning":
                from gpuconsole.tui.screens.tuning import TuningScreen

                return TuningScreen(api, self.tune, self.end_tuning)
            case "topology":
                from gpuconsole.tui.screens.topology import TopologyScreen

                return TopologyScreen(api)
        from gpuconsole.tui.screens.help import HelpScreen

        return HelpScreen(api)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The command palette: what the keys do, by name."""
        for title, help_text, name in (
            ("Scenarios", "Choose what to run", "scenarios"),
            ("Knobs", "Edit the settings of the run", "knobs"),
            ("Details", "Findings with their evidence", "details"),
            ("History", "Charts of the session", "history"),
            ("Models", "Formulas beside the measurement, and all processes", "models"),
            ("Tune", "Try what promises most, keep what wins", "tuning"),
            ("Profile", "Kernel classes, roofline, a trace", "profile"),
            ("Devices", "All metrics with their sources", "device"),
            ("Processes", "Who holds the GPUs; send a signal", "processes"),
            ("Topology", "How the GPUs are linked", "topology"),
            ("Help", "Keys, and how to read the screen", "help"),
        ):
            yield SystemCommand(title, help_text, lambda name=name: self.action_open(name))
        yield SystemCommand("Revert", "Undo the last change that was kept", self.action_revert)
        yield SystemCommand("Baseline", "Keep the run as a baseline for later ones", self.action_keep_baseline)
        yield SystemCommand("Record", "Begin or end a recording", self.action_record)
        yield SystemCommand("Export", "Write a snapshot", self.action_export)
        yield SystemCommand("Stop", "End the run", self.action_stop)
        yield SystemCommand("Quit", "End everything", self.action_quit)

    # --- actions --------------------------------------------------------------------------------------------

    def start(self, scenario: str) -> None:
        self._act(self.api.start(scenario, {}))

    def apply(self, changes: Knobs) -> None:
        self._act(self.api.set_knobs(changes), lambda _: f"applied {describe_changes(changes)}, without proof")

    def try_change(self, changes: Knobs, predicted: Interval | None) -> None:
        self._act(self.api.try_change(changes, predicted), verdict_line)

    def tune(self) -> None:
        self._act(self.api.tune(), lambda certificate: f"tuning ended: {certificate.stopped}")

    def end_tuning(self) -> None:
        self._do(self.api.end_tuning)

    def take_profile(self) -> None:
        self._act(
            self.api.profile(), lambda report: f"profiled {report.steps} steps" + (f", trace: {report.trace}" if report.trace else "")
        )

    def action_revert(self) -> None:
        self._act(self.api.revert(), lambda _: "reverted the last kept change")

    def action_stop(self) -> None:
        self._act(self.api.stop())

    def action_keep_baseline(self) -> None:
        self._act(self.api.keep_baseline(), lambda line: line)

    def action_record(self) -> None:
        self._do(lambda: self.api.toggle_recording(), lambda path: f"recording to {path}" if path else "recording ended")

    def action_export(self) -> None:
        self._do(lambda: self.api.export(), lambda path: f"snapshot written to {path}")

    def tell(self, message: str, *, wrong: bool = False) -> None:
        """One line, as plain text whatever is in it."""
        self.notify(visible(message), markup=False, severity="error" if wrong else "information", timeout=6)

    def _do(self, work: Callable[[], T], says: Callable[[T], str] | None = None) -> None:
        """An action that is done at once."""
        try:
            result = work()
        except SessionError as error:
            self.tell(str(error), wrong=True)
        else:
            if says is not None:
                self.tell(says(result))
        self.tick()

    def _act(self, work: Awaitable[T], says: Callable[[T], str] | None = None) -> None:
        """An action that takes its time: in the background, so that keys are answered."""
        self.run_worker(self._guarded(work, says), group="actions", exit_on_error=False)

    async def _guarded(self, work: Awaitable[T], says: Callable[[T], str] | None) -> None:
        try:
            result = await work
        except SessionError as error:
            self.tell(str(error), wrong=True)
        else:
            if says is not None:
                self.tell(says(result))
        self.tick()


def _give_up(code: int) -> None:
    """The app hangs: end the process, with the terminal given back if it still takes anything."""
    last_words = threading.Thread(target=skeleton.restore_by_force, daemon=True)
    last_words.start()
    last_words.join(0.5)
    os._exit(code)


def run_app(api: SessionApi, *, eco: bool = False) -> int:
    """Show the console until the user quits. 0: all well, 1: the last run failed, 128 + n: ended by signal n."""
    return asyncio.run(show(ConsoleApp(api, eco=eco)))


async def show(app: ConsoleApp) -> int:
    """`run_app` on a running loop."""
    try:
        code = await app.run_async()
    finally:
        if not app.closed:
            await app.api.close()
    app.call_off_watchdog()
    if app.return_code:  # the screen itself failed
        return app.return_code
    run = app.api.view().run
    return code or (1 if run is not None and run.state == "failed" else 0)
