"""The terminal of a job, with real processes: the job keeps its terminal whatever happens to the
console."""

from __future__ import annotations

import asyncio
import itertools
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpuconsole.engine.children.terminal.holder import Holder
from gpuconsole.engine.children.terminal.pty import JobTerminal
from tests.waiting import gone, until, wait_until

ROOT = Path(__file__).parents[3]
CONSOLE = """
import asyncio, subprocess, sys
from pathlib import Path
from gpuconsole.engine.children.terminal.pty import JobTerminal

async def main():
    terminal = JobTerminal(80, 24, None, Path("job.log"))
    await terminal.hold()
    subprocess.Popen([*terminal.leader, *sys.argv[1:]], stdin=terminal.slave, stdout=terminal.slave,
        stderr=terminal.slave, start_new_session=True)
    terminal.job_started()
    while terminal.lines.last != "ready":
        await asyncio.sleep(0.01)
    print("started", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@asynccontextmanager
async def job(
    folder: Path, *words: str, output: Path | None = None
) -> AsyncIterator[tuple[JobTerminal, subprocess.Popen[bytes]]]:
    """A job on a terminal of 90 x 20."""
    terminal = JobTerminal(90, 20, output, folder / "job.log")
    await terminal.hold()
    slave = terminal.slave
    process = subprocess.Popen(
        [*terminal.leader, *words],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        cwd=folder,
    )
    terminal.job_started()
    try:
        yield terminal, process
    finally:
        process.kill()
        process.wait()
        await terminal.close(ended=True)


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(work())


def test_a_job_has_a_terminal_of_the_given_size_as_its_own(tmp_path: Path) -> None:
    async def work() -> None:
        async with job(
            tmp_path,
            "sh",
            "-c",
            "tty -s && stty size; echo own > /dev/tty; read word; echo got $word; stty size",
        ) as (
            terminal,
            _,
        ):
            await until(
                lambda: terminal.lines.last == "own", 10, "the terminal is the controlling terminal"
            )
            assert terminal.lines.text() == ["20 90", "own"]
            terminal.resize(70, 30)
            terminal.type("hello\n")
            await until(lambda: terminal.lines.last == "30 70", 10, "the new size")
            assert terminal.lines.text()[2:] == ["hello", "got hello", "30 70"]

    run(work)


def test_output_is_the_bytes_of_the_job_and_goes_to_a_file_too(tmp_path: Path) -> None:
    async def work() -> None:
        words = ["seq 1 20000; printf '50%%\\r100%%\\nend'"]
        async with job(tmp_path, "sh", "-c", *words, output=tmp_path / "all.txt") as (
            terminal,
            process,
        ):
            await until(lambda: process.poll() == 0, 10, "the job ends")
            await until(lambda: terminal.lines.last == "end", 60, "the last output")
        assert terminal.lines.text()[-3:] == ["20000", "100%", "end"]
        assert terminal.lines[0] == "10003"
        assert not (tmp_path / "job.log").exists()

    run(work)
    assert (tmp_path / "all.txt").read_bytes() == subprocess.run(
        ["sh", "-c", "seq 1 20000; printf '50%%\\r100%%\\nend'"], capture_output=True
    ).stdout
    assert (tmp_path / "all.txt").stat().st_mode & 0o777 == 0o600


def test_a_job_that_prints_without_end_is_not_slowed_and_its_newest_lines_are_shown(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        async with job(tmp_path, "sh", "-c", "seq 1 3000000; echo end") as (terminal, process):
            await until(
                lambda: process.poll() == 0, 60, "the job ends although the console reads slowly"
            )
            await until(lambda: terminal.lines.last == "end", 60, "the last output")
        assert terminal.lines.text()[-2] == "3000000"

    run(work)


@pytest.mark.parametrize("hangs_up", [False, True])
def test_a_job_survives_the_end_of_the_console_and_its_output_goes_to_a_file(
    tmp_path: Path, hangs_up: bool
) -> None:
    """`hangs_up`: the job is detached by the console; otherwise the console is killed."""
    script = (
        "echo ready; for n in $(seq 1000); do [ -e go ] && break; sleep 0.02; done; echo still"
        " here; tty -s && echo done > finished"
    )

    async def detach() -> None:
        terminal = JobTerminal(80, 24, None, tmp_path / "job.log")
        await terminal.hold()
        slave = terminal.slave
        subprocess.Popen(
            [*terminal.leader, "sh", "-c", script],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            cwd=tmp_path,
        )
        terminal.job_started()
        await until(lambda: terminal.lines.last == "ready", 10, "the job runs")
        await terminal.close(ended=False)

    if hangs_up:
        run(detach)
    else:
        command = [sys.executable, "-c", CONSOLE, "sh", "-c", script]
        console = subprocess.Popen(
            command,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert console.stdout is not None and console.stdout.readline() == b"started\n"
        holder = next(
            child
            for child in psutil.Process(console.pid).children()
            if "holder.py" in " ".join(child.cmdline())
        )
        console.send_signal(signal.SIGKILL)
        console.wait()
        console.stdout.close()
    (tmp_path / "go").touch()
    wait_until(lambda: (tmp_path / "finished").exists(), 10, "the job goes on to its end")
    wait_until(
        lambda: (tmp_path / "job.log").read_text() == "ready\nstill here\n",
        10,
        "its output, with what came before",
    )
    if not hangs_up:
        wait_until(lambda: gone(holder.pid), 10, "the holder ends with the job")


def test_a_command_that_cannot_be_run_has_the_exit_code_of_a_shell(tmp_path: Path) -> None:
    (tmp_path / "plain.sh").write_text("echo no first line; exit 5")
    (tmp_path / "plain.sh").chmod(0o755)
    (tmp_path / "data.txt").write_text("")

    async def work() -> None:
        for word, code, says in (
            ("./plain.sh", 5, "no first line"),
            ("./data.txt", 126, "Permission denied"),
            ("no-such-program", 127, "No such file"),
        ):
            async with job(tmp_path, word) as (terminal, process):
                await until(lambda process=process: process.poll() is not None, 10, "the end")
                await until(
                    lambda terminal=terminal, says=says: says in terminal.lines.last, 10, says
                )
                assert process.returncode == code

    run(work)


@pytest.mark.parametrize("typed", [True, False], ids=["after typing", "nothing typed"])
def test_a_terminal_with_nothing_to_read_after_all_is_not_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: bool
) -> None:
    """The last process of the job that has the terminal open closes it, and another one opens it
    again between the holder's look and its read. The holder goes on: its end would end the job by
    SIGHUP. What it has read already goes to the console without waiting for more. `typed`: the
    console has typed a line before, which makes reads of the terminal return at once."""
    master, slave = os.openpty()
    name, slaves = os.ttyname(slave), [slave]
    ours, theirs = socket.socketpair()
    really_select, looks = select.select, itertools.count(1)

    def look(*files: Any) -> tuple[list[Any], list[Any], list[Any]]:
        if next(looks) != 2:
            return really_select(*files)
        os.close(slaves.pop())
        ready = really_select(*files)
        slaves.append(os.open(name, os.O_RDWR | os.O_NOCTTY))
        return ready

    monkeypatch.setattr(select, "select", look)
    holder = Holder(master, theirs, -1, str(tmp_path / "job.log"))
    if typed:
        os.set_blocking(master, False)
    holding = threading.Thread(target=holder.run, daemon=True)
    ours.settimeout(5)
    os.write(slave, b"before")
    holding.start()
    try:
        assert ours.recv(100) == b"before"
        os.write(slaves[0], b"after")
        assert ours.recv(100) == b"after", "the holder reads on"
    finally:
        os.close(slaves[0])
        holding.join(5)
        os.close(master)
        ours.close()
        theirs.close()
    assert not holding.is_alive(), "the holder ends with the job"


def test_a_console_that_reads_slowly_gets_the_last_output_whole(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    master, slave = os.openpty()
    holder = Holder(master, theirs, -1, str(tmp_path / "job.log"))
    printed = b"x" * (1 << 21)
    holder._pending += printed
    os.close(slave)  # the job has ended
    received = bytearray()

    def read() -> None:
        while chunk := ours.recv(1 << 16):
            received.extend(chunk)
            threading.Event().wait(0.05)

    reader = threading.Thread(target=read)
    reader.start()
    holder.run()
    theirs.close()
    reader.join()
    assert received == printed
    ours.close()
    os.close(master)


def test_the_end_of_the_output_says_what_is_left_out_and_goes_to_the_log_if_the_console_goes(
    tmp_path: Path,
) -> None:
    for reads in (True, False):
        ours, theirs = socket.socketpair()
        master, slave = os.openpty()
        log = tmp_path / f"{reads}.log"
        holder = Holder(master, theirs, -1, str(log))
        holder._pending += b"tail"
        holder._left_out = 5
        os.close(slave)
        if not reads:
            ours.close()
        holder._send_rest()
        theirs.close()
        if reads:
            assert b"5 bytes of output are not shown" in ours.recv(1000)
            ours.close()
        else:
            assert log.read_bytes().endswith(b"tail")
        os.close(master)
