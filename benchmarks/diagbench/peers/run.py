"""One case under one tool, in a folder of its own: from the command lines to a row."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path

import msgspec
import psutil

from benchmarks.diagbench.cases import Case, Half
from benchmarks.diagbench.peers.peer import Job, Peer
from benchmarks.diagbench.peers.verdict import Said
from benchmarks.diagbench.run import burning

ROOT = Path(__file__).parents[3]
BEYOND_WATCHING_S = 2.0
"""Seconds by which a tool watches a long case longer than our own console."""


class PeerRow(msgspec.Struct, omit_defaults=True):
    """One run. It keeps the tool's own words, so that a corrected mapping can be applied without a
    new run."""

    tool: str
    version: str
    case: str
    name: str
    half: str
    seed: int
    truth: tuple[str, ...]
    said: tuple[Said, ...] = ()
    error: str = ""
    """Why there is no verdict."""
    elapsed_s: float = 0.0
    """From the first command to the verdict, the training itself included."""

    @property
    def key(self) -> tuple[str, str, str, int]:
        return self.tool, self.case, self.half, self.seed

    @property
    def family(self) -> str:
        return self.truth[0].partition(".")[0] if self.truth else "healthy"


def diagnose(
    peer: Peer,
    version: str,
    python: str,
    case: Case,
    half: Half,
    seed: int,
    seconds: float,
    limit_s: float,
) -> PeerRow:
    """Run the case and return its row. A failure is in `error`."""
    row = PeerRow(peer.name, version, case.id, case.name, half, seed, case.truth)
    begun = time.monotonic()
    with (
        burning(case.neighbours),
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
    ):
        watched_s = max(seconds, case.watch_s + BEYOND_WATCHING_S)
        job = Job(python, Path(folder), case.id, half, seed, watched_s, limit_s)
        try:
            for command in peer.commands(job):
                execute(
                    command, job.folder, environment(python), begun + limit_s - time.monotonic()
                )
            row.said = tuple(peer.read(job.folder))
        except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
            row.error = f"{type(error).__name__}: {error}" + last_words(job.folder)
    row.elapsed_s = round(time.monotonic() - begun, 1)
    return row


def execute(command: list[str], folder: Path, env: dict[str, str], limit_s: float) -> None:
    """Run one command to its end; its standard output goes to `output.txt`. Raises SubprocessError
    if it fails or takes too long."""
    with (folder / "output.txt").open("wb") as output, (folder / "errors.txt").open("wb") as errors:
        process = subprocess.Popen(
            command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=errors
        )
        try:
            code = process.wait(timeout=max(1.0, limit_s))
        finally:
            end(process)
    if code:
        raise subprocess.CalledProcessError(code, Path(command[0]).name)


def last_words(folder: Path) -> str:
    """The last line that the last command wrote to its standard error."""
    path = folder / "errors.txt"
    lines = (
        path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        if path.exists()
        else []
    )
    return f"; {lines[-1][:200]}" if lines else ""


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process that was given up, with all processes that it started: some start processes in
    sessions of their own."""
    if process.poll() is not None:
        return
    parent = psutil.Process(process.pid)
    for one in [*parent.children(recursive=True), parent]:
        try:
            one.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait()


def environment(python: str) -> dict[str, str]:
    """Our environment, with the benchmark importable, the tool's programs first on the PATH, and no
    GPU."""
    programs = str(Path(python).parent)
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}",
        "CUDA_VISIBLE_DEVICES": "",
    }


def installed_version(python: str, package: str) -> str:
    """The version of the package in that environment; raises OSError or CalledProcessError if it is
    missing."""
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run(
        [python, "-c", code], check=True, capture_output=True, text=True, timeout=60
    ).stdout.strip()
