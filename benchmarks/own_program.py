"""gpuconsole itself as a program to measure."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import psutil

from benchmarks.fake_box import FakeBox, clean_environment
from benchmarks.pty_program import Program, cpu_s, family

WARM_S = 60.0
BACK = "Esc back"
"""In the key bar of every screen but the main one."""


def own_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "gpuconsole", *arguments]


def own_environment(box: FakeBox, home: Path, checkout: Path | None = None) -> dict[str, str]:
    """The clean environment on `box` for the gpuconsole of a checkout. None: of this one."""
    return {
        **box.environment(),
        **clean_environment(home),
        "PYTHONPATH": str(checkout or os.getcwd()),
    }


def to_main_screen(program: Program) -> bool:
    """From the scenario picker, if it is there, to the main screen."""
    for _ in range(5):
        program.read_for(1.0)
        if BACK not in program.picture().splitlines()[-1]:
            return True
        program.press(b"\x1b")
    return False


def wait_for_idle_worker(program: Program) -> None:
    """The spare worker imports torch first: wait until it does nothing for two seconds."""
    deadline, idle = time.monotonic() + WARM_S, 0
    while idle < 2 and time.monotonic() < deadline and not program.ended:
        before = cpu_s(roles(program.process.pid)["worker"])
        program.read_for(1.0)
        idle = idle + 1 if cpu_s(roles(program.process.pid)["worker"]) - before < 0.02 else 0


def roles(pid: int) -> dict[str, list[psutil.Process]]:
    """The console, its sampler and the spare worker, each with the processes that it started."""
    found: dict[str, list[psutil.Process]] = {"console": [], "sampler": [], "worker": []}
    by_pid: dict[int, str] = {}
    for process in family(pid):
        try:
            words, parent = " ".join(process.cmdline()), process.ppid()
        except psutil.NoSuchProcess:
            continue
        own = (
            "sampler"
            if "telemetry.sampler" in words
            else "worker"
            if "workloads.worker" in words
            else "console"
        )
        by_pid[process.pid] = own if own != "console" else by_pid.get(parent, "console")
        found[by_pid[process.pid]].append(process)
    return found
