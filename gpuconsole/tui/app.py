"""The console on the screen: one app over one `SessionApi`."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from textual import constants, events
from textual.app import SystemCommand
from textual.geometry import Size
from textual.screen import Screen
from textual.theme import BUILTIN_THEMES, Theme
from textual.timer import Timer

from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.text import visible
from gpuconsole.session import facts
from gpuconsole.session.api import SessionApi, SessionError, View
from gpuconsole.tui import keys, skeleton
from gpuconsole.tui.actions import Actions, ActionsApp
from gpuconsole.tui.driver.posix import CellDriver
from gpuconsole.tui.driver.screen import Cost
from gpuconsole.tui.keyboard import Keyboard
from gpuconsole.tui.screens.base import BackScreen
from gpuconsole.tui.screens.main import MainScreen
from gpuconsole.tui.screens.output import CHROME_ROWS
from gpuconsole.tui.terminal import Colours, terminal
from gpuconsole.tui.theme import CONTRAST, DARK, LIGHT, THEMES
from gpuconsole.tui.widgets.bars import KeyBar, Messages
from gpuconsole.tui.widgets.live import Zone

REFRESH_HZ = 2.0
MAX_HZ = 20.0
BUSY_SHARE = 0.3
"""Share of the time that periodic frames may take of the line, or of this thread. Above this share
the screen is drawn less often, down to REFRESH_HZ, so that a key need not wait for frames."""
ECO_S = 2.0
FIRST_DATA_S = 0.05
FIRST_READINGS_S = 2.0
"""Seconds in which new metrics are shown as soon as they arrive."""
CLOSE_S = 3.0
ENDING = (signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT)
"""On each of these signals, the console saves the session and restores the terminal."""
JOB_TERM_S = 4.0
"""Seconds that a job of the user's own gets to end after SIGTERM, before the console leaves it."""
THEME_HELP = {
    DARK: "For a dark terminal.",
    CONTRAST: "For a dark terminal, with more contrast.",
    LIGHT: "For a light terminal.",
}
HANG_UP_S = 8.0
"""After a hang-up the terminal may be gone and any call may block. The process then ends after this
time in any case."""


def refresh_hz(interval_s: float) -> float:
    """How often to draw when the devices are sampled every `interval_s` seconds: not less often
    than they are sampled."""
    return min(MAX_HZ, max(REFRESH_HZ, 1.0 / interval_s))


class ConsoleApp(ActionsApp):
    """Shows the state of `api` and sends the keys to it. Colours are the terminal's own, also under
    NO_COLOR."""

    TITLE = "gpuconsole"
    BINDINGS = keys.app_bindings()
    CSS = """
    Screen { background: ansi_default; }
    Input { height: 1; border: none; padding: 0; }
    """

    def __init__(
        self,
        api: SessionApi,
        refresh_hz: float = REFRESH_HZ,
        scenario: str | None = None,
        *,
        knobs: Knobs | None = None,
        duration: float | None = None,
        record: Path | None = None,
        on_hangup: Callable[[], None] | None = None,
        eco: bool = False,
        opening: Awaitable[None] | None = None,
        start_job: Callable[[int, int], Awaitable[None]] | None = None,
        theme: str = DARK,
    ) -> None:
        """`scenario` starts with `knobs` at once, and stops after `duration` seconds; without it
        the machine overview opens. `start_job`: start the user's own job in place of a scenario, on
        a terminal of so many columns and rows.

        `theme`: `dark`, `dark-contrast` or `light`, for the background of the terminal. `eco`: one
        update in `ECO_S` seconds; keys are answered at once in any case. `opening`: somebody has
        called `api.open` already.
        `record`: the file of a recording that begins at once. `on_hangup` is called when the
        terminal is gone.
        """
        able = terminal()  # before Textual takes NO_COLOR out of the environment
        # Textual's variable TEXTUAL_DRIVER names another driver
        own_driver = None if constants.DRIVER else CellDriver
        super().__init__(driver_class=own_driver, ansi_color=True)
        self.able = able
        for name in THEMES:
            base = BUILTIN_THEMES["ansi-light" if name == LIGHT else "ansi-dark"]
            self.register_theme(dataclasses.replace(base, name=name))
        self.theme = theme
        self.api = api
        self.messages = Messages()
        self.actions = Actions(self, api)
        self.keyboard = Keyboard(self)
        self.main_screen = MainScreen(api, self.actions)
        self.main_screen.expects_run = scenario is not None or start_job is not None
        self.closed = False
        self.opened = asyncio.Event()
        self._period = ECO_S if eco else 1.0 / refresh_hz
        self._scenario, self._start_job = scenario, start_job
        self._knobs = knobs or {}
        self._duration = duration
        self._running_since: float | None = None
        self._record = record
        self._on_hangup = on_hangup
        self._opening = opening
        self._since_shown = self._rest_s = 0.0
        self._used_before = self._used_s()
        self._timer: Timer | None = None
        self._watchdog: threading.Timer | None = None
        self._leaving = False
        self._known = 0
        Zone.ascii_only, Zone.sixteen = able.ascii_only, able.colours <= Colours.SIXTEEN

    # --- life -------------------------------------------------------------------------------------

    def get_default_screen(self) -> Screen[None]:
        return self.main_screen

    def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        for number in ENDING:
            with contextlib.suppress(ValueError, RuntimeError):  # not in the main thread
                loop.add_signal_handler(number, self._hang_up, number)
        self._timer = self.set_interval(self._period, self._on_timer)
        self._first_data = self.set_interval(FIRST_DATA_S, self._await_data)
        self.run_worker(self._begin(), exit_on_error=True)

    def on_unmount(self) -> None:
        loop = asyncio.get_running_loop()
        for number in ENDING:
            with contextlib.suppress(ValueError, RuntimeError):
                loop.remove_signal_handler(number)

    async def _begin(self) -> None:
        """Open the api, then start the recording and the scenario of the command line."""
        try:
            await (self._opening if self._opening is not None else self.api.open())
        except SessionError as error:  # the device of the command line does not exist
            self.exit(2, message=f"gpuconsole: {visible(str(error))}")
            return
        self.opened.set()
        if self._record is not None:
            self.actions.record(self._record)
        if self._scenario is not None:
            await self.actions.finish(self.api.start(self._scenario, self._knobs))
        elif self._start_job is not None:
            await self.actions.finish(self._start_job(*_job_size(self.size)))
        self.main_screen.expects_run = False
        self.tick()

    def on_resize(self, event: events.Resize) -> None:
        if self.api.job is not None:
            self.api.job.resize(*_job_size(event.size))

    def _await_data(self) -> None:
        """Show the first numbers as soon as they arrive, those of the second reading too."""
        view = self.api.view()
        if self._leaving or view.now > FIRST_READINGS_S:
            self._first_data.stop()
        elif len(view.latest) > self._known:
            self._known = len(view.latest)
            self.tick()

    def _on_timer(self) -> None:
        """While nothing runs, draw only as often as the sources are read. Draw less often while
        frames take much of the time."""
        self._since_shown += self._period
        busy_s = max(
            used - before for used, before in zip(self._used_s(), self._used_before, strict=True)
        )
        if self._since_shown >= max(self._rest_s, min(1.0 / REFRESH_HZ, busy_s / BUSY_SHARE)):
            self.tick()

    def _used_s(self) -> tuple[float, float]:
        """Seconds that writes to the terminal have taken, and CPU seconds of this thread."""
        return self.line_cost.writing_s if self.line_cost is not None else 0.0, time.thread_time()

    def tick(self) -> None:
        """Show the present state on the screen in sight; hidden screens do no work."""
        if self._leaving or not self.screen_stack:
            return
        if self._duration is not None:
            self._watch_duration(self._duration)
        if self.quits_after_job and (self.api.job is None or self.api.job.ended):
            self.actions.leave()
            return
        view, screen = self.api.view(), self.screen
        self._since_shown, self._used_before = 0.0, self._used_s()
        self._rest_s = (
            0.0
            if facts.active(view)
            else min((state.period_s for state in view.sources.values()), default=0.0)
        )
        if isinstance(screen, MainScreen | BackScreen):
            screen.show(view)

    def _watch_duration(self, seconds: float) -> None:
        """Stop the run after `seconds` of running. A change that is kept does not start the time
        again."""
        view = self.api.view()
        if self._running_since is None:
            if view.state == "running":
                self._running_since = view.now
        elif view.now - self._running_since >= seconds:
            self._duration = None
            self.actions.stop_run()

    async def action_quit(self) -> None:
        await self.leave(0)

    async def leave(self, code: int) -> None:
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
        """The terminal is gone, or the process was asked to end: save what was measured, then
        leave. A job of the user's own continues when the terminal is gone; it gets SIGTERM too."""
        if self._watchdog is not None:
            return
        self._watchdog = threading.Timer(HANG_UP_S, _give_up, (128 + number,))
        self._watchdog.daemon = True
        self._watchdog.start()
        if self._on_hangup is not None:
            self._on_hangup()
        self.run_worker(self._leave_with_job(number), exit_on_error=False)

    async def _leave_with_job(self, number: int) -> None:
        job = self.api.job
        if job is not None and number == signal.SIGTERM:
            job.signal(number)
            until = time.monotonic() + JOB_TERM_S
            while not job.ended and time.monotonic() < until:
                await asyncio.sleep(0.05)
        await self.leave(128 + number)

    def stop_watchdog(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()

    @property
    def line_cost(self) -> Cost | None:
        """What the screen has sent to the terminal; None with a driver that does not count."""
        return getattr(self._driver, "cost", None)

    def redraw(self) -> None:
        """Send the whole screen again: another program has written to the terminal."""
        redraw = getattr(self._driver, "redraw", None)
        if redraw is not None:
            redraw()

    # --- keys -------------------------------------------------------------------------------------

    async def on_event(self, event: events.Event) -> None:
        if not isinstance(event, events.Key) or event.is_forwarded:
            await super().on_event(event)
        elif self.keyboard.take(event):
            try:
                await super().on_event(event)
            finally:
                self.keyboard.delivered()

    # --- actions ----------------------------------------------------------------------------------

    async def action_do(self, name: str, *digit: str) -> None:
        """An action of `keys.ACTIONS` that is one of `Actions`."""
        await self.actions.do(name, *digit)

    @property
    def available_themes(self) -> dict[str, Theme]:
        """The console's own themes. Other themes of Textual would paint over the terminal's own
        background."""
        return {
            name: theme for name, theme in super().available_themes.items() if name in THEMES
        } or super().available_themes

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The command palette: what the keys do, by name and with the key, as far as it can be done
        now. Actions of the screen in sight come first."""
        view = self.api.view()
        for action in self._offered(screen, view):
            title = f"{action.title}   {action.bar or action.written}"
            if action.id == "quit":  # the key only leaves a sub-screen
                yield SystemCommand(title, action.help, self.actions.quit_console)
            elif action.of_app or not action.screens:
                yield SystemCommand(title, action.help, partial(self.actions.do, action.id))
            else:
                of_screen = isinstance(screen, BackScreen) and screen.NAME in action.screens
                place = (
                    screen
                    if of_screen
                    else self.main_screen
                    if "main" in action.screens
                    else self.main_screen.overview
                )
                yield SystemCommand(title, action.help, partial(self.run_action, action.id, place))
        yield SystemCommand(
            "Theme", f"Colours of the console. Now: {self.theme}.", self.action_change_theme
        )

    def _offered(self, screen: Screen[object], view: View) -> Iterator[keys.Action]:
        """The actions for the palette. A move of a list has a key only, and a digit is one."""
        own = (
            [action for action in keys.on(screen.NAME) if screen.offers(action)]
            if isinstance(screen, BackScreen)
            else []
        )
        if screen is self.main_screen and self.main_screen.overview.has_focus:
            own = keys.on(keys.MACHINE)
        for action in dict.fromkeys((*own, *keys.on(MainScreen.NAME), *keys.everywhere())):
            named = (
                action.label
                and action.id not in ("up", "down", "palette")
                and action.keys != keys.DIGITS
            )
            if named and action.makes_sense(view):
                yield action

    def search_themes(self) -> None:
        """The console's own themes; the present one is marked."""
        rows = [
            (
                f"{name}   (now)" if name == self.theme else name,
                partial(self._use_theme, name),
                THEME_HELP[name],
            )
            for name in self.available_themes
        ]
        self.search_commands(rows, placeholder="Search for themes…")

    def _use_theme(self, name: str) -> None:
        self.theme = name


def _job_size(screen: Size) -> tuple[int, int]:
    """Columns and rows of the job's terminal: its output fills the screen."""
    return screen.width, max(1, screen.height - CHROME_ROWS)


def _give_up(code: int) -> None:
    """The app hangs: give the terminal back if the terminal still takes bytes, and end the
    process."""
    last_words = threading.Thread(target=skeleton.restore_by_force, daemon=True)
    last_words.start()
    last_words.join(0.5)
    os._exit(code)


def run_app(api: SessionApi, *, eco: bool = False, theme: str = DARK, demo: bool = False) -> int:
    """Show the console until the user quits. 0: all well, 1: the last run failed or is invalid,
    128 + n: ended by signal n. `demo`: a hint line narrates the session."""
    KeyBar.demo = demo
    return asyncio.run(show(ConsoleApp(api, eco=eco, theme=theme)))


async def show(app: ConsoleApp) -> int:
    """`run_app` on a running loop."""
    try:
        code = await app.run_async()
    finally:
        if not app.closed:
            await app.api.close()
    app.stop_watchdog()
    if app.return_code:  # the screen itself failed
        return app.return_code
    run = app.api.view().run
    invalid = run is not None and run.validity is not None and run.validity.verdict == "invalid"
    return code or (1 if invalid or (run is not None and run.state == "failed") else 0)
