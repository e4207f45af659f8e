"""`--profile`: one profiler window in a headless run."""

from __future__ import annotations

import argparse
import asyncio
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gpuconsole.cli.options.usage import UsageError
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.profile import MOST_STEPS, STEPS
from gpuconsole.session.api import SessionError

if TYPE_CHECKING:
    from gpuconsole.experiments.session import LiveSession

NSYS_S = 20
"""Seconds of the run that nsys records."""


def add_profile_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--profile", type=steps, nargs="?", const=STEPS, metavar="STEPS",
        help=f"profile this many steps of the steady run (default {STEPS}): kernel classes, top operators, a trace for Perfetto",
    )  # fmt: skip
    parser.add_argument("--profile-dir", type=Path, metavar="DIR", help="folder for traces (default: the present folder)")


def steps(text: str) -> int:
    """A number of steps to profile, for argparse."""
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= MOST_STEPS:
        raise argparse.ArgumentTypeError(f"{text}: must be 1 to {MOST_STEPS} steps")
    return int(text)


def check_folder(folder: Path | None) -> None:
    """Raises UsageError if `folder` cannot be written, before the run starts."""
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"--profile-dir {folder}: cannot be written: {error.strerror or error}") from None


async def profile_once(engine: LiveSession, wanted: int, interrupted: asyncio.Event, say: Callable[[str], None]) -> None:
    """Profile `wanted` steps; report the reason if there is no profile. Ends early when `interrupted` is set."""
    say(f"profiling {wanted} steps")
    window = asyncio.create_task(engine.profile(wanted))
    stop = asyncio.create_task(interrupted.wait())
    await asyncio.wait([window, stop], return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if not window.done():
        window.cancel()
        return
    try:
        window.result()
    except SessionError as error:
        say(f"profile: {error}")


def nsys_line(scenario: str, knobs: Knobs, device: str) -> str | None:
    """The command that profiles this run with Nsight Systems; None if Nsight Systems is not installed."""
    return f"nsys: {nsys_command(scenario, knobs, device)}" if shutil.which("nsys") else None


def nsys_command(scenario: str, changes: Knobs, device: str) -> str:
    """The command that records this scenario with Nsight Systems.

    nsys saves CUDA's data twice a second. When the worker is stopped, it ends immediately, and data in the buffer is lost.
    """
    settings = [part for name, value in changes.items() for part in ("--set", f"{name}={_text(value)}")]
    output = f"gpuconsole-nsys-{re.sub(r'[^A-Za-z0-9._-]+', '-', Path(scenario).stem)}"
    return shlex.join(
        ["nsys", "profile", "--trace=cuda,nvtx,osrt,cublas,cudnn", "--sample=none", "--cuda-flush-interval=500", f"--output={output}",
         "gpuconsole", "run", scenario, *settings, "--device", device, "--headless", "--duration", str(NSYS_S)]
    )  # fmt: skip


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
