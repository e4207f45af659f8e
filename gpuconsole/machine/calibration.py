"""What this machine was measured to reach, kept in the user's cache folder for every later session."""

from __future__ import annotations

from pathlib import Path

import msgspec
import platformdirs

from gpuconsole.model.files import write_whole
from gpuconsole.model.machine.calibration import CalibrationRecord, Machine
from gpuconsole.model.snapshot import Environment

SCHEMA = "gpuconsole.calibration/1"
KEPT = 64
"""Records in the file, the newest: a home folder may be shared by all nodes of a cluster."""


class _File(msgspec.Struct):
    schema: str
    records: list[CalibrationRecord]


def cache_path() -> Path:
    """The file of all calibrations (on Linux `~/.cache/gpuconsole/calibration.json`, or below `$XDG_CACHE_HOME`)."""
    return platformdirs.user_cache_path("gpuconsole") / "calibration.json"


def machine_of(environment: Environment) -> Machine:
    """What must be the same for a calibration to hold."""
    return Machine(
        host=environment.host,
        cpu=environment.cpu,
        cores=environment.cores,
        devices=tuple((device.name, device.uuid) for device in environment.devices),
        driver=environment.driver,
        torch=environment.torch,
    )


def load(environment: Environment, device: str) -> CalibrationRecord | None:
    """The calibration of `device` on this very machine; None where it was never taken, or where something has changed since."""
    machine = machine_of(environment)
    return next((record for record in _records() if record.machine == machine and record.device == device), None)


def of_this_machine(environment: Environment) -> list[CalibrationRecord]:
    """Of all its devices that have been calibrated, the newest first."""
    machine = machine_of(environment)
    return [record for record in _records() if record.machine == machine]


def figures(environment: Environment, device: str) -> dict[str, float]:
    """What `device` reaches, by name in SI units; empty where it was not calibrated."""
    record = load(environment, device)
    return record.figures if record else {}


def save(record: CalibrationRecord) -> Path:
    """Keep `record` in place of the one before it; returns where. Raises OSError."""
    others = [other for other in _records() if (other.machine, other.device) != (record.machine, record.device)]
    path = cache_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, msgspec.json.format(msgspec.json.encode(_File(SCHEMA, [record, *others][:KEPT])), indent=1) + b"\n")
    return path


def _records() -> list[CalibrationRecord]:
    """The newest first. A file that is not there, damaged or another version's holds none: it can be measured anew."""
    try:
        kept = msgspec.json.decode(cache_path().read_bytes(), type=_File)
    except (OSError, msgspec.DecodeError):
        return []
    return kept.records if kept.schema == SCHEMA else []
