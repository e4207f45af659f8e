"""The machine and the console's process: fingerprint, overhead of the console.

This module does not import torch. The fingerprint contains no environment variables and no command lines.
"""

from __future__ import annotations

import asyncio
import os
import platform
import time
from collections.abc import Callable

import psutil

from gpuconsole.engine.machine.calibration import figures
from gpuconsole.model.machine import Device
from gpuconsole.model.snapshot import Environment
from gpuconsole.telemetry.other_gpus import torch_version
from gpuconsole.wire.events import AnyEvent, Sample

MEMORY_EVERY = 10
"""Number of rounds between two readings of the memory size. This reading is the most expensive system call of a round."""


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def fingerprint(devices: list[Device], driver: str | None, cuda: str = "", device: str = "") -> Environment:
    """The machine now, with the calibration of `device`, if there is one. `driver` and `cuda` are versions."""
    cpu = next((device.name for device in devices if device.id == "cpu"), platform.processor())
    environment = Environment(
        host=platform.node(),
        os=f"{platform.system()} {platform.release()}",
        cpu=cpu,
        cores=cores(),
        memory_bytes=psutil.virtual_memory().total,
        python=platform.python_version(),
        torch=torch_version(),
        cuda=cuda or None,
        driver=driver,
        devices=devices,
    )
    if device:
        environment.calibration = figures(environment, device)
    return environment


async def watch_self(emit: Callable[[AnyEvent], None]) -> None:
    """Report the CPU use of the console once a second, and its memory in every tenth report, until cancelled."""
    process = psutil.Process()
    used, since, rounds = time.process_time(), time.monotonic(), 0
    while True:
        await asyncio.sleep(1.0)
        now, spent = time.monotonic(), time.process_time()
        values = {"console.cpu_ratio": (spent - used) / (now - since)}
        if rounds % MEMORY_EVERY == 0:
            values["console.memory_bytes"] = float(process.memory_info().rss)
        emit(Sample(now, "console", values))
        used, since, rounds = spent, now, rounds + 1
