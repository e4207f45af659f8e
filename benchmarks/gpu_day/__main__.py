"""All checks that need a GPU, the most value per second first, within the minutes that there are.

    python -m benchmarks.gpu_day [--minutes 40] [--simulated] [--only NAME ...]
        [--again failed|NAME ...] [--list] [--keep]

The first checks read the hardware counters and compare them with known loads; then come jobs as
users write them, bare and watched. Each check runs in a process of its
own with a time limit, so that a crash or a hang is a failed check. After each check the results are
written to FOLDER/results.json, and at the end FOLDER/page.md. The same command continues: after an
interruption, and in parts (--minutes 9 each). Nothing needs a network. On a machine without
gpuconsole's packages: see session.sh in this folder. To add a check, add a function to a file in
the folder `checks`.

--simulated: on the tests' simulated CUDA device (torch 2.13, C++ compiler). Its figures say nothing
about a GPU. Exit code 0: no check has failed. 1: some have. 2: wrong usage. 130: interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

from benchmarks.gpu_day.check import FAILED, Check, checks_of
from benchmarks.gpu_day.page import page
from benchmarks.gpu_day.runner import INTERRUPTED, NO_TIME, Runner, State, StateError
from benchmarks.machine import RESULTS, commit, fingerprint

PACKAGE = "benchmarks.gpu_day.checks"
DEVICES_S = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_day",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=40.0)
    parser.add_argument(
        "--simulated",
        action="store_true",
        default="SIMULATED_CUDA" in os.environ,
        help="on the tests' simulated device (also under python -m tests.fakes.cuda)",
    )
    parser.add_argument(
        "--cards", default="h100", help="with --simulated: comma-separated cards (default: h100)"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        help="results, logs and recordings (default: gpu-day, or gpu-day-simulated)",
    )
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="checks, or beginnings of their names"
    )
    parser.add_argument(
        "--again",
        nargs="+",
        default=[],
        metavar="NAME",
        help="checks that run again; 'failed': all that have failed",
    )
    parser.add_argument(
        "--list",
        action="store_true",
        help="list the checks with their expected seconds, and the seconds up to their end",
    )
    parser.add_argument(
        "--keep",
        action="store_true",
        help="write the JSON file and the page under benchmarks/results, too",
    )
    parser.add_argument("--checks", default=PACKAGE, help=argparse.SUPPRESS)
    args = parser.parse_args()
    deadline = time.monotonic() + 60 * args.minutes
    every = checks_of(args.checks)
    chosen = [one for one in every if not args.only or one.name.startswith(tuple(args.only))]
    if not chosen:
        parser.error(f"no check begins with {', '.join(args.only)}: see --list")
    if args.list:
        ends = itertools.accumulate(one.seconds for one in chosen)
        for one, end_s in zip(chosen, ends, strict=True):
            print(f"{one.seconds:5.0f} s {end_s:6.0f} s  {one.name:<28} {one.title}")
        print(f"{sum(one.seconds for one in chosen) / 60:.0f} minutes in all")
        return 0
    folder = (args.folder or Path("gpu-day-simulated" if args.simulated else "gpu-day")).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with environment(args.simulated, args.cards.split(","), folder) as env:
            return day(args, every, chosen, folder, env, deadline)
    except (StateError, NotADirectoryError) as error:
        print(f"gpu_day: {error}", file=sys.stderr)
        return 2


def day(
    args: argparse.Namespace,
    every: Sequence[Check],
    chosen: Sequence[Check],
    folder: Path,
    env: dict[str, str],
    deadline: float,
) -> int:
    state = State(folder / "results.json", machine(args.simulated, env), args.simulated)
    for name, result in list(state.results.items()):
        if name in args.again or ("failed" in args.again and result.state == FAILED):
            del state.results[name]
    code = 0
    try:
        Runner(args.checks, state, env, lambda text: print(text, flush=True), commit()).run(
            chosen, deadline
        )
    except KeyboardInterrupt:
        print("gpu_day: interrupted; the same command continues", file=sys.stderr)
        code = 130
    text = page(every, state.results, state.machine, state.simulated)
    (folder / "page.md").write_text(text)
    if args.keep:
        name = (
            f"gpu-day-{'simulated-' if args.simulated else ''}{datetime.date.today().isoformat()}"
        )
        (RESULTS / f"{name}.json").write_text(state.path.read_text())
        (RESULTS / f"{name}.md").write_text(text)
        print(f"kept in {RESULTS / name}.md, and the JSON file beside it")
    print(f"{folder / 'page.md'}")
    if left := [
        one.name
        for one in chosen
        if one.name in state.results
        and state.results[one.name].reason.startswith((NO_TIME, INTERRUPTED))
    ]:
        print(f"{len(left)} checks had no time: the same command continues")
    failed = any(
        state.results[one.name].state == FAILED for one in chosen if one.name in state.results
    )
    return code or int(failed)


@contextlib.contextmanager
def environment(simulated: bool, cards: Sequence[str], folder: Path) -> Iterator[dict[str, str]]:
    """The environment of the checks. Raises StateError where the simulated device cannot be
    built."""
    root = str(Path(__file__).parents[2])
    own = {
        **os.environ,
        "XDG_CONFIG_HOME": str(folder / "config"),
        "XDG_DATA_HOME": str(folder / "data"),
    }
    if not simulated or "SIMULATED_CUDA" in os.environ:
        yield {
            **own,
            "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH")))),
        }
        return
    from tests.fakes.cuda.build import NotHereError
    from tests.fakes.cuda.machine import SimulatedMachine

    try:
        machine = SimulatedMachine(
            folder / "machine", [*(f"card {card}" for card in cards), "values none"]
        )
    except (NotHereError, ValueError) as error:
        raise StateError(str(error)) from None
    with machine:
        yield {**own, **machine.environment()}


def machine(simulated: bool, env: dict[str, str]) -> dict[str, Any]:
    """Hardware, driver and versions. A driver that hangs costs a minute and no more. Raises
    StateError where a package is missing."""
    try:
        found = {
            name: value
            for name, value in fingerprint().items()
            if name not in ("commit", "load_before")
        }
    except PackageNotFoundError as error:
        raise StateError(
            f"{error.name} is not installed in {sys.executable}: see benchmarks/gpu_day/session.sh"
        ) from None
    command = [sys.executable, "-m", "gpuconsole", "devices", "--json"]
    try:
        seen = json.loads(
            subprocess.run(
                command, env=env, capture_output=True, timeout=DEVICES_S, check=False
            ).stdout
        )
    except (subprocess.TimeoutExpired, ValueError):
        seen = {"devices": [], "driver": "does not answer"}
    gpus = [
        device["name"]
        for device in seen["devices"]
        if device["id"].startswith("gpu:") and "/" not in device["id"]
    ]
    return {
        **({"label": "simulated device, no GPU data"} if simulated else {}),
        "gpus": gpus or ["none"],
        "driver": ("simulated, calls itself " if simulated else "") + str(seen["driver"]),
        **found,
    }


if __name__ == "__main__":
    raise SystemExit(main())
