"""`gpuconsole run --headless -- COMMAND` from a terminal: the job has the terminal as if the
console were not there."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import psutil

from tests.pty.terminal import Terminal
from tests.waiting import gone, wait_until

JOB = """
import os, sys, time
print("tty", sys.stdin.isatty(), sys.stdout.isatty(), sys.stderr.isatty(),
    os.ttyname(0) == os.ttyname(2), flush=True)
patience = int(sys.argv[1])
print("asked:", input("question? "), flush=True)
until = time.monotonic() + 90
while time.monotonic() < until:
    try:
        time.sleep(0.02)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        patience -= 1
        if patience < 0:
            sys.exit(7)
"""


def job(folder: Path, patience: int, script: str = JOB) -> Terminal:
    """The job in a shell with job control."""
    (folder / "job.py").write_text(script)
    console = [sys.executable, "-m", "gpuconsole", "run", "--headless"]
    return Terminal(
        *console,
        "--",
        sys.executable,
        "job.py",
        str(patience),
        cwd=folder,
        module="tests.pty.small_shell",
    )


def console_has_seen_it(terminal: Terminal) -> None:
    """Wait until the Ctrl-C has reached the console too. A second one before that would be the same
    signal."""
    (console,) = psutil.Process(terminal.process.pid).children()
    pending = Path(f"/proc/{console.pid}/status")
    bit = 1 << (signal.SIGINT - 1)
    wait_until(
        lambda: (
            not any(
                int(line.split()[1], 16) & bit
                for line in pending.read_text().splitlines()
                if line.startswith("ShdPnd")
            )
        ),
        20,
    )


def test_the_terminal_is_the_jobs(tmp_path: Path) -> None:
    """The job has the terminal on all three, reads a line, stops with Ctrl-Z, continues, and gets
    one Ctrl-C as one interrupt."""
    with job(tmp_path, 2) as terminal:
        terminal.wait_for("tty True True True True", "question? ")
        terminal.press(*"answer", "enter")
        terminal.wait_for("asked: answer")
        terminal.press("\x1a")
        terminal.wait_for("shell: stopped")
        terminal.scribble()
        terminal.press("enter")
        terminal.wait_for("shell: continued")
        terminal.press("\x03")
        terminal.wait_for("interrupted")
        console_has_seen_it(terminal)
        terminal.press("\x03")
        text = terminal.wait_for("SIGTERM sent to the job", f"shell: ended with {-signal.SIGTERM}")
        assert text.count("interrupted") <= 2
        assert "job.py  on" in text


STUBBORN = """
import signal, subprocess, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
worker = subprocess.Popen(["sleep", "90"], start_new_session=True)
print("ready, worker", worker.pid, flush=True)
time.sleep(90)
"""


def test_the_third_ctrl_c_kills_the_job_and_its_workers(tmp_path: Path) -> None:
    with job(tmp_path, 0, STUBBORN) as terminal:
        text = terminal.wait_for("ready, worker")
        worker = int(text.partition("ready, worker ")[2].split()[0])
        for words in ("^C", "SIGTERM sent to the job", "SIGKILL sent to the job"):
            terminal.press("\x03")
            terminal.wait_for(words)
        terminal.wait_for(f"shell: ended with {-signal.SIGKILL}")
    wait_until(lambda: gone(worker), 10, "the worker ends")
