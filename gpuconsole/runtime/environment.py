"""The environment fingerprint. Looked up without importing torch; no environment variables, no command lines."""

from __future__ import annotations

import os
import platform
from importlib import metadata

import psutil

from gpuconsole.model.device import Device
from gpuconsole.model.snapshot import Environment


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def fingerprint(devices: list[Device], driver: str | None) -> Environment:
    cpu = next((device.name for device in devices if device.id == "cpu"), platform.processor())
    return Environment(
        host=platform.node(),
        os=f"{platform.system()} {platform.release()}",
        cpu=cpu,
        cores=cores(),
        memory_bytes=psutil.virtual_memory().total,
        python=platform.python_version(),
        torch=torch_version(),
        driver=driver,
        devices=devices,
    )


def torch_version() -> str | None:
    """The installed torch, or None."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None
