"""One start of one program: first frame, steady window, end."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.console_cost.peers import write_settings
from benchmarks.fake_box import FakeBox, clean_environment
from benchmarks.own_program import own_environment, roles, to_main_screen, wait_for_idle_worker
from benchmarks.pty_program import Program, cpu_s, family, pss_bytes, rss_bytes

FIRST_FRAME_S = 60.0
SETTLE_S = 4.0
QUIT_S = 15.0

Row = dict[str, float]


class Died(Exception):
    """The program ended or showed no GPU; the message is one line."""


@dataclass(frozen=True)
class Job:
    """A program to start. Its screen contains `shows` as soon as it shows a GPU, and `figure` as
    soon as it shows the memory of one; without it, `shows`. `checkout`: that of a gpuconsole; None:
    another program."""

    name: str
    command: list[str]
    shows: str = "H200"
    quits_on: bytes = b"q"
    checkout: Path | None = None
    figure: str = ""


def measure(
    job: Job,
    box: FakeBox,
    folder: Path,
    seconds: float,
    settle_s: float = SETTLE_S,
    picture: Path | None = None,
) -> Row:
    """Start `job` on `box`, and watch it for `seconds` from `settle_s` after its first frame on.
    Raises Died."""
    folder.mkdir(parents=True)
    write_settings(folder)
    others = {**box.environment(), **clean_environment(folder)}
    environment = own_environment(box, folder, job.checkout) if job.checkout else others
    with Program(job.command, environment=environment, cwd=folder) as program:
        figure = job.figure or job.shows
        if not program.read_until_shown(figure, FIRST_FRAME_S):
            raise Died(_last_words(program))
        first_cpu_s = cpu_s(family(program.process.pid))
        if job.checkout and not to_main_screen(program):
            raise Died("the main screen never came")
        program.read_for(settle_s)
        if job.checkout:
            wait_for_idle_worker(program)
        row = window(program, box, seconds)
        if picture is not None:
            picture.write_text(program.picture() + "\n")
        if program.ended:
            raise Died(_last_words(program))
        program.press(job.quits_on)
        row["quits_in_s"] = program.wait_end(QUIT_S) or float("nan")
    row["first_frame_s"] = program.first_shown(job.shows) or float("nan")
    row["first_figure_s"] = program.first_shown(figure) or float("nan")
    row["first_figure_cpu_s"] = first_cpu_s
    return row


def window(program: Program, box: FakeBox, seconds: float) -> Row:
    """Resources that the program uses in `seconds`. gpuconsole's spare worker runs no workload yet;
    it is reported separately and not counted."""
    parts = _parts(program.process.pid)
    cpu, calls, sent, begun = (
        {name: cpu_s(processes) for name, processes in parts.items()},
        box.calls(),
        program.bytes,
        time.monotonic(),
    )
    program.read_for(seconds)
    span = time.monotonic() - begun
    after = _parts(program.process.pid)
    row: Row = {}
    for name, processes in after.items():
        row[f"{name}_cpu_percent"] = 100 * (cpu_s(processes) - cpu.get(name, 0.0)) / span
        row[f"{name}_rss_mb"] = rss_bytes(processes) / 1e6
    row["cpu_percent"] = sum(row[f"{name}_cpu_percent"] for name in after if name != "worker")
    row["tree_rss_mb"] = sum(row[f"{name}_rss_mb"] for name in after if name != "worker")
    row["tree_pss_mb"] = sum(
        pss_bytes(processes) / 1e6 for name, processes in after.items() if name != "worker"
    )
    row["bytes_per_s"] = (program.bytes - sent) / span
    row["calls_per_s"] = (box.calls() - calls) / span
    return row


def _parts(pid: int) -> dict[str, list[psutil.Process]]:
    by_role = roles(pid)
    return by_role if by_role["sampler"] else {"console": family(pid)}


def _last_words(program: Program) -> str:
    code = program.process.poll()
    lines = [line.strip() for line in program.picture().splitlines() if line.strip()]
    return (
        f"{'shows no GPU' if code is None else f'ended with code {code}'}:"
        f" {lines[-1][:80] if lines else 'no output'}"
    )
