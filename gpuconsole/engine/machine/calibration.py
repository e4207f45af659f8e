"""Calibrations of this machine (measured peak rates), stored in the user's cache folder for later sessions."""

from __future__ import annotations

from pathlib import Path

import msgspec
import platformdirs

from gpuconsole.model.files import write_whole
from gpuconsole.model.machine import CalibrationRecord, Machine
from gpuconsole.model.snapshot import Environment

SCHEMA = "gpuconsole.calibration/1"
KEPT = 64
"""Maximum number of records in the file; the oldest records are deleted. All nodes of a cluster may share the home folder."""


class _File(msgspec.Struct):
    schema: str
    records: list[CalibrationRecord]


def cache_path() -> Path:
    """The file of all calibrations (on Linux `~/.cache/gpuconsole/calibration.json`, or below `$XDG_CACHE_HOME`)."""
    return platformdirs.user_cache_path("gpuconsole") / "calibration.json"


def machine_of(environment: Environment) -> Machine:
    """The hardware and software that a calibration depends on. With any difference the calibration is not valid."""
    return Machine(
        host=environment.host,
        cpu=environment.cpu,
        cores=environment.cores,
        devices=tuple((device.name, device.uuid) for device in environment.devices),
        driver=environment.driver,
        torch=environment.torch,
    )


def load(environment: Environment, device: str) -> CalibrationRecord | None:
    """The calibration of `device` on this machine. None: never calibrated, or the hardware or software has changed since."""
    machine = machine_of(environment)
    return next((record for record in _records() if record.machine == machine and record.device == device), None)


def of_this_machine(environment: Environment) -> list[CalibrationRecord]:
    """The valid calibrations of all devices of this machine, the newest first."""
    machine = machine_of(environment)
    return [record for record in _records() if record.machine == machine]


def figures(environment: Environment, device: str) -> dict[str, float]:
    """The calibrated rates of `device` in SI units, by name; empty without a calibration."""
    record = load(environment, device)
    return record.figures if record else {}


def save(record: CalibrationRecord) -> Path:
    """Store `record` in place of the previous record of the same device; returns the path of the file. Raises OSError."""
    others = [other for other in _records() if (other.machine, other.device) != (record.machine, record.device)]
    path = cache_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, msgspec.json.format(msgspec.json.encode(_File(SCHEMA, [record, *others][:KEPT])), indent=1) + b"\n")
    return path


def _records() -> list[CalibrationRecord]:
    """All records, the newest first. Empty if the file is missing, damaged or of another version, because calibrating again is easy."""
    try:
        kept = msgspec.json.decode(cache_path().read_bytes(), type=_File)
    except (OSError, msgspec.DecodeError, RecursionError):
        return []
    return kept.records if kept.schema == SCHEMA else []
