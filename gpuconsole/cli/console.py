"""`gpuconsole` and `gpuconsole run` on the screen."""

from __future__ import annotations

import argparse
import contextlib
import time
from pathlib import Path

from gpuconsole.cli.common import UsageError, device, has_screen, interval, record_path
from gpuconsole.model.knobs import Knobs


def run_console(args: argparse.Namespace) -> int:
    """The console with the scenario picker."""
    if not has_screen():
        raise UsageError("no terminal here: try `gpuconsole --help` or `gpuconsole run SCENARIO --headless`")
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
    from gpuconsole.runtime.engine import Engine
    from gpuconsole.runtime.front import FrontError
    from gpuconsole.tui.app import run_app

    engine = Engine(interval(args), device(args))

    def save() -> None:
        """Whatever ends the console, a session with runs in it is not lost."""
        if engine.store.records:
            with contextlib.suppress(FrontError):
                engine.export(snapshot or Path(f"gpuconsole-{time.strftime('%Y%m%d-%H%M%S')}.json"))

    code = run_app(
        engine, scenario=scenario, knobs=knobs or {}, duration=duration, record=recording, on_hangup=save, eco=getattr(args, "eco", False)
    )
    if snapshot is not None:
        engine.export(snapshot)
    return code
