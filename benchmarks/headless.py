"""Runs the real command line, headless, and returns the session that it measured."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

from gpuconsole.model.knobs.catalogue import Knobs, show
from gpuconsole.model.snapshot import Snapshot, decode

COMMAND_S = 400.0
"""No command takes so long, compiling included."""


class RunError(RuntimeError):
    """A run that failed; the message is its last line."""


def run_command(
    scenario: str, duration_s: float, *options: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `gpuconsole run SCENARIO --headless --json`; `duration_s` counts from the first step. Any
    exit code is accepted."""
    command = [
        sys.executable,
        "-m",
        "gpuconsole",
        "run",
        scenario,
        "--headless",
        "--json",
        "--duration",
        f"{duration_s:g}",
        *options,
    ]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
        env={**os.environ, **(env or {})},
    )


def session(
    scenario: str, duration_s: float, *options: str, env: Mapping[str, str] | None = None
) -> Snapshot:
    """The session of such a run. Raises RunError."""
    done = run_command(scenario, duration_s, *options, env=env)
    if done.returncode != 0:
        raise RunError(f"{scenario}: {last_line(done.stderr)}")
    return decode(done.stdout.encode())


def options(option: str, values: Knobs) -> list[str]:
    """`--set a=1 --set b=2`."""
    return [word for name, value in values.items() for word in (option, f"{name}={show(value)}")]


def last_line(text: str) -> str:
    """The last line of the program's output, without the program's name."""
    lines = [
        line.removeprefix("gpuconsole: ").strip() for line in text.splitlines() if line.strip()
    ]
    return lines[-1] if lines else "ended without a word"
