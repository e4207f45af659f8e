"""`gpuconsole` and `gpuconsole run` on the screen."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import importlib
import signal
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from gpuconsole.cli.exits import FAILED, OK
from gpuconsole.cli.options import UsageError
from gpuconsole.cli.output import print_note, problem, screen_colors
from gpuconsole.cli.session import live_engine, log_to
from gpuconsole.cli.values import dcgm, eco, interval, serve_address, theme, writable
from gpuconsole.engine.children.early import early_sampler
from gpuconsole.host.settings import settings
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.tui import skeleton
from gpuconsole.tui.terminal import why_no_screen, why_no_terminal

SETTLED_S = 4.0
FIRST_FIGURES_S = 0.2
"""Seconds that the imports of the screen wait for the first figures of the GPUs."""
if TYPE_CHECKING:
    from gpuconsole.experiments.session import LiveSession
    from gpuconsole.wire.events import AnyEvent

WITHOUT = "gpuconsole run SCENARIO --headless"


def run_console(args: argparse.Namespace) -> int:
    """The console, with the machine overview; with --demo a recorded session."""
    if why := why_no_terminal():
        raise UsageError(f"{why}; try `gpuconsole --help` or `{WITHOUT}`")
    writable(args, "--record")
    return show_demo(args) if getattr(args, "demo", False) else open_console(args)


def show_demo(args: argparse.Namespace) -> int:
    """Replay the recorded session of the package, marked as a recording."""
    use_own_keys()
    show_first_picture()
    from gpuconsole.engine.recording import DEMO, Replay
    from gpuconsole.tui.app import run_app

    with resources.as_file(DEMO) as path, screen_colors():
        return run_app(Replay(path), eco=eco(args), theme=theme(), demo=True)


def open_console(
    args: argparse.Namespace, *, scenario: str | None = None, knobs: Knobs | None = None
) -> int:
    """Open the screen on a live engine; returns the exit code once the user quits. With a command
    of the user's own: its exit code, or minus the signal that ended it; 0 where it continues."""
    serve_address(args)  # bad usage is reported before the screen is painted
    use_own_keys()
    show_first_picture()
    is_painted = skeleton.painted()
    sampler = early_sampler(interval(args), dcgm(args)) if is_painted else None
    engine = live_engine(args, sampler)
    feed = log_to(args, engine)
    if getattr(args, "control", False):
        _open_control(engine, getattr(args, "output", None))
    session_file = SessionFile(engine, getattr(args, "snapshot", None))
    command: list[str] = getattr(args, "job", [])

    async def start_job(columns: int, rows: int) -> None:
        from gpuconsole.engine.children.job import JobCommand

        job = JobCommand(
            tuple(command),
            stored=args.store_command,
            memory=getattr(args, "memory", False),
            allows_numerics=args.allow_numerics,
            allows_loader=args.allow_loader,
        )
        await engine.start_job_on_terminal(job, columns, rows, args.output)

    async def session() -> int:
        """Run the screen. The engine starts its child processes while the screen's modules are
        imported."""
        opening = asyncio.create_task(open_checked(engine))
        # Objects that are loaded by then stay. Without gc.freeze, each full collection would scan
        # them for tens of milliseconds.
        asyncio.get_running_loop().call_later(SETTLED_S, gc.freeze)
        if is_painted and scenario is None and not command:
            await show_first_figures(engine)
        app = await asyncio.to_thread(importlib.import_module, "gpuconsole.tui.app")
        with screen_colors():
            console = app.ConsoleApp(
                engine, app.refresh_hz(interval(args)), scenario=scenario, knobs=knobs,
                duration=getattr(args, "duration", None), record=getattr(args, "record", None),
                on_hangup=session_file.save, eco=eco(args), opening=opening,
                start_job=start_job if command else None, theme=theme(),
            )  # fmt: skip
        return int(await app.show(console))

    # This replaces the handler of the first picture: the event loop ends in good order.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code = asyncio.run(session())
    finally:  # save the session also after a crash of the screen
        session_file.save()
        session_file.report()
        if engine.recording_lost:
            problem(engine.recording_lost)
        for line in feed.wait(print_note) if feed is not None else ():
            problem(line)
        if engine.job is not None:
            from gpuconsole.cli.files import patch_lines
            from gpuconsole.cli.hints import job_hints

            snapshot, goes_on = engine.snapshot(), engine.job.exit_code is None
            for line in [
                *patch_lines(snapshot, args.patch, session_file.saved),
                *([] if goes_on else job_hints(snapshot)),
            ]:
                print_note(line)
            if goes_on:
                print_note(f"{engine.job.about}; its output goes to {engine.job.kept_in}")
    if engine.job is not None:
        return engine.job.exit_code or 0
    return code or (FAILED if session_file.error else OK)


def _open_control(engine: LiveSession, output: Path | None) -> None:
    """Let an agent connect by a private socket while the engine is open. `output`: the file with
    the output of the job."""
    from gpuconsole.cli.files import patch_of
    from gpuconsole.mcp.control import ControlServer
    from gpuconsole.mcp.tools import Tools

    engine.remote = control = ControlServer(Tools(engine, patch_of, output=output), engine.note)
    engine.services.append(control.serve)


def use_own_keys() -> None:
    """Take the keys of the settings, before the screens are imported. Raises SettingsError."""
    if settings().keys:
        from gpuconsole.tui import keys

        try:
            keys.use(settings().keys)
        except ValueError as problem:
            raise settings().mistake("keys", str(problem)) from None


class SessionFile:
    """Saves the session when the console ends, also after a crash. `saved` is the file once it is
    written, and `error` the reason why it could not be written."""

    def __init__(self, engine: LiveSession, path: Path | None) -> None:
        """`path`: the file that the user chose; None: a dated file in the current folder, if the
        session has runs."""
        self.error = ""
        self._engine, self._path = engine, path
        self.saved: Path | None = None

    def save(self) -> None:
        """Write the file once; a second call does nothing. A failure is stored in `error`."""
        from gpuconsole.session.api import SessionError

        if self.saved is not None or (self._path is None and not self._engine.state.records):
            return
        try:
            self.saved = self._engine.export(self._path)
            self.error = ""
        except SessionError as error:
            self.error = str(error)

    def report(self) -> None:
        """Print the path of the saved session, or the reason why the session could not be saved."""
        if self.error:
            problem(f"the session could not be saved: {self.error}")
        elif self.saved is not None:
            print_note(f"session saved to {self.saved}")


async def open_checked(engine: LiveSession) -> None:
    """Open the engine. Raises SessionError if the requested device does not exist."""
    await engine.open()
    engine.device()


async def show_first_figures(engine: LiveSession) -> None:
    """Draw the GPUs as soon as all of them have a figure, at the latest after FIRST_FIGURES_S: the
    screen itself takes longer."""
    from gpuconsole.tui.first import paint_first_figures

    came = asyncio.Event()

    def look(event: AnyEvent) -> None:
        state = engine.state
        gpus = {device.id for device in state.devices if device.is_gpu}
        if gpus <= state.readings.reported.keys() and state.devices:
            came.set()

    engine.listeners.append(look)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(came.wait(), FIRST_FIGURES_S)
    engine.listeners.remove(look)
    if came.is_set() and any(device.is_gpu for device in engine.state.devices):
        with contextlib.suppress(OSError):  # the terminal has gone
            skeleton.show(paint_first_figures(engine, *skeleton.size()))


def show_first_picture() -> None:
    """Draw the first picture, which is visible until the app is loaded. Raises UsageError if a
    full-screen program cannot run."""
    if why := why_no_screen():
        raise UsageError(f"{why}; `{WITHOUT}` needs none")
    skeleton.paint()
