"""One check of each kind. Each start leaves a line in the file `starts`."""

from __future__ import annotations

import os
import signal
import subprocess
import time

from benchmarks.gpu_day.check import Day, NotHereError, add_by_hand, check


def started(day: Day, name: str) -> None:
    with (day.folder / "starts").open("a") as file:
        print(name, file=file)


@check(value=1, seconds=0.1)
def last(day: Day) -> None:
    """Is the least valuable."""
    started(day, "last")


@check(value=9, seconds=0.1)
def good(day: Day) -> None:
    """Holds its bounds."""
    started(day, "good")
    day.expect("ratio", 0.97, low=0.9, high=1.0)
    day.note("simulated", str(day.simulated))


@check(value=8, seconds=0.1)
def bad(day: Day) -> None:
    """Is outside of its bounds."""
    started(day, "bad")
    day.expect("ratio", 0.5, "of the peak", low=0.9)
    day.expect("missing", None, low=0.0)


@check(value=7, seconds=0.1)
def crash(day: Day) -> None:
    """Dies in the driver."""
    started(day, "crash")
    print("the last words", flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


@check(value=6, seconds=0.1, limit_s=0.6)
def hang(day: Day) -> None:
    """Never ends, and has started a program."""
    started(day, "hang")
    child = subprocess.Popen(["sleep", "1000"])
    (day.folder / "pid").write_text(str(child.pid))
    time.sleep(1000)


@check(value=5, seconds=0.1)
def absent(day: Day) -> None:
    """Cannot be answered here."""
    started(day, "absent")
    raise NotHereError("nvidia-smi is not installed")


@check(value=4, seconds=3600)
def long(day: Day) -> None:
    """Does not fit into any day."""
    started(day, "long")


@check(value=3, seconds=0.1)
def wrong(day: Day) -> None:
    """Raises."""
    started(day, "wrong")
    raise RuntimeError("the driver does not answer")


@check(value=2, seconds=0.1, limit_s=60)
def gate(day: Day) -> None:
    """Waits for the file `open`, and has started a program."""
    child = subprocess.Popen(["sleep", "1000"])
    (day.folder / "pid").write_text(str(child.pid))
    started(day, "gate")
    while not (day.folder / "open").exists():
        time.sleep(0.02)
    child.kill()


add_by_hand("person", "A person looks at it", "needs root")
