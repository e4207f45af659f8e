"""Describe this machine (the fingerprint), and store its calibrations.

This module does not import torch. The fingerprint contains no environment variables and no command
lines."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import msgspec
import psutil

from gpuconsole.host.cores import allowed_cores
from gpuconsole.host.files import read_limited, write_whole
from gpuconsole.host.folders import make_private, user_folder
from gpuconsole.host.installation import torch_version
from gpuconsole.host.torch_build import Card, Driver, TorchBuild, why_unusable
from gpuconsole.model import encoding
from gpuconsole.model.machine import CalibrationRecord, Device, Machine
from gpuconsole.model.snapshot import Environment

SCHEMA = "gpuconsole.calibration/1"
MAX_BYTES = 4 * 2**20
"""The largest file of calibrations that is read."""
KEPT = 64
"""Maximum number of records in the file; the oldest records are deleted. All nodes of a cluster may
share the home folder."""


class _File(msgspec.Struct):
    schema: str
    records: list[CalibrationRecord]


def cache_path() -> Path:
    """Return the path of the file with all calibrations (on Linux
    `~/.cache/gpuconsole/calibration.json`, or below `$XDG_CACHE_HOME`)."""
    return user_folder("cache") / "calibration.json"


def machine_of(environment: Environment) -> Machine:
    """Return the hardware and software that a calibration depends on. If anything of this differs,
    the calibration is not valid."""
    return Machine(
        host=environment.host,
        cpu=environment.cpu,
        cores=environment.cores,
        devices=tuple((device.name, device.uuid) for device in environment.devices),
        driver=environment.driver,
        torch=environment.torch,
    )


def load(environment: Environment, device: str) -> CalibrationRecord | None:
    """Return the calibration of `device` on this machine. None: the device was never calibrated, or
    the hardware or software has changed since the calibration."""
    machine = machine_of(environment)
    return next(
        (record for record in _records() if record.machine == machine and record.device == device),
        None,
    )


def of_this_machine(environment: Environment) -> list[CalibrationRecord]:
    """Return the valid calibrations of all devices of this machine, the newest first."""
    machine = machine_of(environment)
    return [record for record in _records() if record.machine == machine]


def figures(environment: Environment, device: str) -> dict[str, float]:
    """Return the calibrated rates of `device` in SI units, by name; empty without a calibration."""
    record = load(environment, device)
    return record.figures if record else {}


def save(record: CalibrationRecord) -> Path:
    """Store `record` in place of the previous record of the same device. Return the path of the
    file. Raises OSError."""
    others = [
        other
        for other in _records()
        if (other.machine, other.device) != (record.machine, record.device)
    ]
    path = cache_path()
    make_private(path.parent)
    write_whole(
        path,
        msgspec.json.format(msgspec.json.encode(_File(SCHEMA, [record, *others][:KEPT])), indent=1)
        + b"\n",
    )
    return path


def _records() -> list[CalibrationRecord]:
    """Return all records, the newest first. Empty if the file is missing, damaged or of another
    version, because calibrating again is easy."""
    try:
        kept = msgspec.json.decode(read_limited(cache_path(), MAX_BYTES, regular=True), type=_File)
    except (OSError, *encoding.UNREADABLE):
        return []
    return kept.records if kept.schema == SCHEMA else []


def fingerprint(
    devices: list[Device], driver: str | None, cuda: str = "", device: str = ""
) -> Environment:
    """Describe this machine as it is now, with the calibration of `device` if there is one.
    `driver` and `cuda` are versions."""
    cpu = next((device.name for device in devices if device.id == "cpu"), platform.processor())
    environment = Environment(
        host=platform.node(),
        os=f"{platform.system()} {platform.release()}",
        cpu=cpu,
        cores=allowed_cores(),
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


def installed_torch() -> TorchBuild | None:
    """Read the build of the installed torch from the files of torch. Return None without torch.
    Does not import torch."""
    try:
        torch = metadata.distribution("torch")
    except metadata.PackageNotFoundError:
        return None
    return TorchBuild(torch.version, cuda_of(Path(str(torch.locate_file("torch/version.py")))))


def cuda_of(version_file: Path) -> str:
    """Return the CUDA version in torch's generated version.py; empty for a build without CUDA."""
    try:
        text = version_file.read_text(encoding="utf-8")
    except OSError:
        return ""
    version = re.search(r"^cuda\b[^=]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return version[1] if version else ""


def unusable_gpus(
    torch: TorchBuild, driver: Driver, devices: Iterable[Device]
) -> dict[str, list[str]]:
    """Find the GPUs of this machine that this torch cannot use. Return the ids of these GPUs for
    each reason (one line). Empty if no reason is known."""
    gpus: dict[str, list[str]] = {}
    for device in devices:
        if device.is_gpu and not device.is_mig:
            card = Card(device.name, device.facts.get("compute_capability", ""))
            if why := why_unusable(torch, driver, card):
                gpus.setdefault(why, []).append(device.id)
    return gpus
