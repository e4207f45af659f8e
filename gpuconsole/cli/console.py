"""`gpuconsole` and `gpuconsole run` on the screen."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import importlib
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gpuconsole.cli.options.console import eco, has_screen, interval, record_path
from gpuconsole.cli.options.engine import live_engine, serve_address
from gpuconsole.cli.options.usage import UsageError
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.text import visible
from gpuconsole.tui import skeleton
from gpuconsole.tui.driver.terminal import why_no_screen

SETTLED_S = 4.0
if TYPE_CHECKING:
    from gpuconsole.engine.engine import Engine

WITHOUT = "gpuconsole run SCENARIO --headless"


def run_console(args: argparse.Namespace) -> int:
    """The console with the scenario picker."""
    if not has_screen():
        raise UsageError(f"there is no terminal: try `gpuconsole --help` or `{WITHOUT}`")
    return open_console(args, recording=record_path(args))


def open_console(
    args: argparse.Namespace,
    *,
    scenario: str | None = None,
    knobs: Knobs | None = None,
    duration: float | None = None,
    snapshot: Path | None = None,
    recording: Path | None = None,
) -> int:
    """Open the screen on a live engine; returns the exit code once the user quits."""
    serve_address(args)  # bad usage is reported before the screen is painted
    show_first_picture()
    engine = live_engine(args)
    session_file = SessionFile(engine, snapshot)

    async def session() -> int:
        """The engine's children start while the screen's modules are imported."""
        opening = asyncio.create_task(open_checked(engine))
        # What is loaded by then stays: the collector need not look through it again, which takes tens of milliseconds each time.
        asyncio.get_running_loop().call_later(SETTLED_S, gc.freeze)
        app = await asyncio.to_thread(importlib.import_module, "gpuconsole.tui.app")
        console = app.ConsoleApp(
            engine, app.refresh_hz(interval(args)), scenario=scenario, knobs=knobs, duration=duration, record=recording, on_hangup=session_file.save,
            eco=eco(args), opening=opening,
        )  # fmt: skip
        return int(await app.show(console))

    signal.signal(signal.SIGINT, signal.default_int_handler)  # no longer the first picture's: the loop ends on it in good order
    try:
        code = asyncio.run(session())
    finally:  # a crash of the screen must not lose the session
        session_file.save()
        session_file.report()
    return code or (1 if session_file.error else 0)


class SessionFile:
    """Saves the session when the console ends, however it ends. `error` is the reason why it could not be saved."""

    def __init__(self, engine: Engine, path: Path | None) -> None:
        """`path`: the file that the user chose; None: a dated file in the current folder, if the session has runs."""
        self.error = ""
        self._engine, self._path = engine, path
        self._saved: Path | None = None

    def save(self) -> None:
        """Write the file; nothing happens when it was written before. A failure is kept in `error`."""
        from gpuconsole.session.api import SessionError

        if self._saved is not None or (self._path is None and not self._engine.state.records):
            return
        try:
            self._saved = self._engine.export(self._path)
            self.error = ""
        except SessionError as error:
            self.error = str(error)

    def report(self) -> None:
        """Print where the session is, or why it could not be saved."""
        with contextlib.suppress(OSError):  # the terminal is gone
            if self.error:
                print(f"gpuconsole: the session could not be saved: {visible(self.error)}", file=sys.stderr)
            elif self._saved is not None:
                print(f"gpuconsole: session saved to {visible(str(self._saved))}", file=sys.stderr)


async def open_checked(engine: Engine) -> None:
    """Raises SessionError when the device that was asked for is not there."""
    await engine.open()
    engine.device()


def show_first_picture() -> None:
    """The picture that stands until the app is loaded; raises UsageError where a full-screen program cannot draw."""
    if why := why_no_screen():
        raise UsageError(f"{why}; `{WITHOUT}` needs none")
    skeleton.paint()
