"""The contestants: processes that train for a block and then pause."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple, Protocol

import psutil

from benchmarks.training import LOSS_AT
from gpuconsole.engine.children.worker import WorkerHandle
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.machine import Device
from gpuconsole.wire.events import AnyEvent, Steps

START_S = 120.0
"""Importing torch on a busy machine takes its time."""


class Block(NamedTuple):
    """The work of a contestant in a block. Times are those of its training thread; `loss` is the
    loss of step LOSS_AT, once that step has run.

    `cpu_s` and `faults` (minor page faults) are those of the whole process, first step and pauses
    included.
    """

    steps: int
    wall_s: float
    runq_s: float
    loss: float | None
    threads: int
    cpu_s: float = 0.0
    faults: int = 0

    def steps_per_s(self, clock: str) -> float:
        if clock == "cpu":
            return (self.steps + 1) / self.cpu_s
        return self.steps / (self.wall_s - (self.runq_s if clock == "contention_free" else 0.0))


class Contestant(Protocol):
    @property
    def pid(self) -> int: ...

    async def start(self) -> None:
        """Import, build and train the first steps, then pause."""
        ...

    async def block(self, seconds: float) -> Block: ...

    async def stop(self) -> None: ...


async def measured_block(one: Contestant, seconds: float) -> Block:
    """A block with the resources of the whole process."""
    process = psutil.Process(one.pid)
    before, faults = process.cpu_times(), _faults(one.pid)
    block = await one.block(seconds)
    after = process.cpu_times()
    return block._replace(
        cpu_s=after.user + after.system - before.user - before.system,
        faults=_faults(one.pid) - faults,
    )


def _faults(pid: int) -> int:
    """Minor page faults so far: field 10 of /proc/PID/stat, the 8th after the name."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])


class Reference:
    """A reference loop, which listens on stdin (see referee.py)."""

    def __init__(self, python: str, module: str, knobs: Knobs, seed: int) -> None:
        text = str(files("gpuconsole") / "data/text/kjv.txt")
        names = ("d_model", "n_layer", "batch_size", "seq_len", "num_threads", "precision")
        course = [word for name in names for word in (f"--{name}", str(knobs[name]))]
        self._command = [python, "-m", module, *course, "--seed", str(seed), "--text", text]

    @property
    def pid(self) -> int:
        return self._process.pid

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.getcwd()},
        )
        await asyncio.wait_for(self._answer(), START_S)

    async def block(self, seconds: float) -> Block:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n".encode())
        return await self._answer()

    async def stop(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def _answer(self) -> Block:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError(
                f"ended with exit code {await self._process.wait()}: {' '.join(self._command)}"
            )
        return Block(**json.loads(line))


class Ours:
    """The product's worker as it always runs, measured by the Steps messages that it sends
    anyway."""

    def __init__(self, workload: str, knobs: Knobs) -> None:
        self._workload = workload
        self._knobs = knobs
        self._heard: list[Steps] = []
        self._worker = WorkerHandle(self._listen, lambda worker, code: None)
        self._loss: float | None = None

    @property
    def pid(self) -> int:
        assert self._worker.pid is not None
        return self._worker.pid

    async def start(self) -> None:
        await self._worker.launch()
        self._worker.start(self._workload, self._knobs, Device("cpu", "cpu"))
        async with asyncio.timeout(START_S):
            await self._worker.next_steps()
            await self._worker.pause()

    async def block(self, seconds: float) -> Block:
        """From the message with the step that settles to the last one: each is sent between two
        steps."""
        self._heard.clear()
        self._worker.resume(0)
        while not self._with_steps():
            await self._worker.next_steps()
        await asyncio.sleep(max(0.0, seconds - (time.perf_counter() - self._with_steps()[0].t)))
        await self._worker.pause()
        first, *others = self._with_steps()
        last = others[-1]
        started = self._worker.last_started
        threads = int(started.facts["threads"]) if started else 0
        return Block(
            sum(len(heard.steps) for heard in others),
            last.t - first.t,
            last.runq_s - first.runq_s,
            self._loss,
            threads,
        )

    async def stop(self) -> None:
        await self._worker.stop()

    def _with_steps(self) -> Sequence[Steps]:
        return [heard for heard in self._heard if heard.steps]

    def _listen(self, event: AnyEvent) -> None:
        if isinstance(event, Steps):
            self._heard.append(event)
            self._loss = next(
                (step.loss for step in event.steps if step.index == LOSS_AT), self._loss
            )
