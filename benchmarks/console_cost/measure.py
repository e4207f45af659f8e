"""One start of one program: its first frame, a steady window, its end."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.console_cost.peers import OWN, write_settings
from benchmarks.fake_box import FakeBox, clean_environment
from benchmarks.pty_program import Program, cpu_s, family, roles, rss_bytes

FIRST_FRAME_S = 60.0
SETTLE_S = 4.0
WARM_S = 60.0
QUIT_S = 15.0
MAIN_SCREEN = "gpuconsole"
"""In the header of the main screen, and on no other."""

Row = dict[str, float]


class Died(Exception):
    """The program ended, or showed no GPU: what is known of it, in one line."""


@dataclass(frozen=True)
class Job:
    """What is started, `word` being in its output once a GPU is on its screen."""

    name: str
    command: list[str]
    word: bytes = b"H200"


def measure(job: Job, box: FakeBox, folder: Path, seconds: float, picture: Path | None = None) -> Row:
    """Start `job` on `box` and watch it for `seconds` of steady state. Raises Died."""
    folder.mkdir(parents=True)
    write_settings(folder)
    environment = {**box.environment(), **clean_environment(folder)}
    if job.name == OWN:
        environment["PYTHONPATH"] = os.getcwd()
    with Program(job.command, environment=environment, cwd=folder) as program:
        if not program.read_until(lambda: program.time_of(job.word) is not None, FIRST_FRAME_S):
            raise Died(_last_words(program))
        first = program.time_of(job.word)
        assert first is not None
        if job.name == OWN:
            _close_picker(program)
        program.read_for(SETTLE_S)
        if job.name == OWN:
            _wait_for_calm_worker(program)
        row = _window(program, box, seconds)
        row["first_frame_s"] = first - program.begun
        if picture is not None:
            picture.write_text(program.picture() + "\n")
        if program.ended:
            raise Died(_last_words(program))
        program.press(b"q")
        row["quits_in_s"] = program.wait_end(QUIT_S) or float("nan")
    return row


def _window(program: Program, box: FakeBox, seconds: float) -> Row:
    """What the program uses in `seconds`. gpuconsole's warm worker runs no workload yet, so it is told apart and not counted."""
    parts = _parts(program.process.pid)
    cpu, calls, sent, begun = {name: cpu_s(found) for name, found in parts.items()}, box.calls(), program.bytes, time.monotonic()
    program.read_for(seconds)
    span = time.monotonic() - begun
    after = _parts(program.process.pid)
    row: Row = {}
    for name, found in after.items():
        row[f"{name}_cpu_percent"] = 100 * (cpu_s(found) - cpu.get(name, 0.0)) / span
        row[f"{name}_rss_mb"] = rss_bytes(found) / 1e6
    row["cpu_percent"] = sum(row[f"{name}_cpu_percent"] for name in after if name != "worker")
    row["tree_rss_mb"] = sum(row[f"{name}_rss_mb"] for name in after if name != "worker")
    row["bytes_per_s"] = (program.bytes - sent) / span
    row["calls_per_s"] = (box.calls() - calls) / span
    return row


def _parts(pid: int) -> dict[str, list]:
    found = roles(pid)
    return found if found["sampler"] else {"console": family(pid)}


def _close_picker(program: Program) -> None:
    """From the scenario picker, if it is there, to the monitoring screen. Raises Died."""
    for _ in range(4):
        program.read_for(1.0)
        if MAIN_SCREEN in program.picture():
            return
        program.press(b"\x1b")
    raise Died("the main screen never came")


def _wait_for_calm_worker(program: Program) -> None:
    """The worker that is kept ready imports torch first: wait until it does nothing for two seconds."""
    deadline, calm = time.monotonic() + WARM_S, 0
    while calm < 2 and time.monotonic() < deadline and not program.ended:
        before = cpu_s(roles(program.process.pid)["worker"])
        program.read_for(1.0)
        calm = calm + 1 if cpu_s(roles(program.process.pid)["worker"]) - before < 0.02 else 0


def _last_words(program: Program) -> str:
    code = program.process.poll()
    lines = [line.strip() for line in program.picture().splitlines() if line.strip()]
    return f"{'shows no GPU' if code is None else f'ended with code {code}'}: {lines[-1][:80] if lines else 'no output'}"
