"""The machine and the console's process: fingerprint, choice of the device, overhead of the console.

This module does not import torch. The fingerprint contains no environment variables and no command lines.
"""

from __future__ import annotations

import asyncio
import os
import platform
import time
from collections.abc import Callable, Container
from importlib import metadata

import psutil

from gpuconsole.machine.calibration import figures
from gpuconsole.model.machine.device import Device
from gpuconsole.model.snapshot import Environment
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


def torch_version() -> str | None:
    """The version of the installed torch; None without torch."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


class DeviceChoiceError(ValueError):
    """The requested device does not exist; the message is one line."""


def choose_device(devices: list[Device], wanted: str | None, lost: Container[str]) -> Device:
    """The requested device. Without a request: the first GPU that is not lost, otherwise the CPU. Raises DeviceChoiceError.

    A GPU in MIG mode runs programs only on its slices, so its first slice is chosen instead of the GPU.
    """
    known = devices or [Device("cpu", "host CPU")]
    if wanted is None:
        sliced = {device.id.partition("/")[0] for device in known if device.is_mig}
        usable = (device for device in known if device.is_gpu and device.id not in lost and device.id not in sliced)
        return next(usable, known[-1])
    for device in known:
        if device.id == wanted:
            return device
    raise DeviceChoiceError(f"there is no device {wanted!r}; there are: {', '.join(device.id for device in known)}")


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
