"""One calibration: the child that measures, from its start to its end, and what else ran meanwhile."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from gpuconsole.machine.other_load import busy_s
from gpuconsole.model.machine.calibration import Reached
from gpuconsole.model.machine.device import Device
from gpuconsole.processes.child import Child
from gpuconsole.processes.worker import SCRATCH, sweep_scratch
from gpuconsole.wire.events import AnyEvent, Calibrated, Failed, Progress

MODULE = "gpuconsole.workloads.calibration.child"


class CalibrationError(RuntimeError):
    """The child ended without measuring everything; the message is one line."""


class Interrupted(Exception):
    """Someone wanted it to end."""


async def calibrate(device: Device, budget_s: float, tell: Callable[[Progress], None], stop: asyncio.Event) -> list[Reached]:
    """Measure what `device` reaches, each figure for about `budget_s`. Raises CalibrationError, and Interrupted once `stop` is set.

    Neither a process nor a file is left behind, however it ends.
    """
    reached: list[Reached] = []
    failed: list[str] = []
    codes: list[int] = []

    def heard(event: AnyEvent) -> None:
        if isinstance(event, Calibrated):
            reached.append(event.reached)
        elif isinstance(event, Progress):
            tell(event)
        elif isinstance(event, Failed):
            failed.append(event.cause)

    sweep_scratch()
    scratch = Path(tempfile.mkdtemp(prefix=f"{SCRATCH}{os.getpid()}-"))
    arguments = ["--scratch", str(scratch), "--device", device.id, "--uuid", device.uuid, "--budget", str(budget_s)]
    child = Child(MODULE, arguments, heard, codes.append)
    try:
        await child.start()
        ends = [asyncio.ensure_future(child.exited.wait()), asyncio.ensure_future(stop.wait())]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
    finally:
        child.kill()
        if child.alive:
            await child.exited.wait()
        shutil.rmtree(scratch, ignore_errors=True)
    if stop.is_set():
        raise Interrupted
    if failed or codes != [0]:
        words = next((line for line in reversed(child.last_words) if line.strip()), "no last words")
        raise CalibrationError(failed[0] if failed else f"the calibration process ended with exit code {codes[0]}: {words}")
    return reached


class OthersUse:
    """CPU cores that processes other than this one and its ended children use, of those that this one may use, since it was made."""

    def __init__(self) -> None:
        self._since, self._busy_s, self._own_s = time.monotonic(), busy_s(), _own_s()

    def cores(self) -> float:
        wall_s = time.monotonic() - self._since
        return max(0.0, (busy_s() - self._busy_s - (_own_s() - self._own_s)) / wall_s)


def _own_s() -> float:
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system
