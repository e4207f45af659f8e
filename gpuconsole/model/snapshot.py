"""A session written as JSON: schema `gpuconsole.snapshot/1`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from gpuconsole.model import encoding
from gpuconsole.model.certificate import Certificate
from gpuconsole.model.experiments import Sweep, Trial
from gpuconsole.model.machine import Device
from gpuconsole.model.run import Distribution, Run, SeriesData

SCHEMA = "gpuconsole.snapshot/1"
MAX_BYTES = 16 * 2**20
"""The largest file that is read as a snapshot. A long session has 50 KB."""
MAX_BITS = 1000
"""A longer integer is no float, and cannot be shown as one."""
MAX_FLOPS_PER_S, MAX_BYTES_PER_S, MAX_PER_S = 1e24, 1e20, 1e15
MAX_SECONDS, MAX_COUNT, MAX_OF_BYTES = 1e11, 1e15, 1e20
"""No machine has more: a million GPUs have 1e22 FLOP/s, and 1e11 s are 3 000 years. Our choice."""
LIMITS = (
    ("flops_per_s", MAX_FLOPS_PER_S),
    ("bytes_per_s", MAX_BYTES_PER_S),
    ("_per_s", MAX_PER_S),
    ("rates", MAX_PER_S),
    ("_bytes", MAX_OF_BYTES),
    ("_s", MAX_SECONDS),
    ("seconds", MAX_SECONDS),
    ("steps", MAX_COUNT),
    ("requests", MAX_COUNT),
)
"""The largest possible number of a figure whose name has this end. The first end counts."""


class SnapshotError(ValueError):
    """A file that is not a readable snapshot. The message is one line."""


class Environment(msgspec.Struct, omit_defaults=True):
    """The machine and software of a session, without environment variables and command lines.
    `price_per_hour` comes from the user, in any currency."""

    host: str = ""
    os: str = ""
    cpu: str = ""
    cores: int = 0
    memory_bytes: int = 0
    python: str = ""
    torch: str | None = None
    cuda: str | None = None
    driver: str | None = None
    devices: list[Device] = []
    calibration: dict[str, float] = {}
    price_per_hour: float | None = None


class Snapshot(msgspec.Struct, kw_only=True):
    """A session: runs and trials in order, with their environment. `recording`: the session is a
    replay of a recorded session. `tuning`: what `gpuconsole tune` has proven; None in the snapshots
    of other commands."""

    schema: str = SCHEMA
    created: str
    gpuconsole: str
    environment: Environment
    runs: list[Run]
    trials: list[Trial]
    unavailable: dict[str, str] = {}
    sweeps: list[Sweep] = []
    recording: bool = False
    tuning: Certificate | None = None

    def with_tuning(self, certificate: Certificate | None) -> Snapshot:
        """Return the snapshot of a tuning session: its certificate as the trials of the snapshot
        show it."""
        made = certificate and certificate.with_later(self.trials)
        return msgspec.structs.replace(self, tuning=made)


def encode(snapshot: Snapshot) -> bytes:
    """Pretty JSON, UTF-8, ending in a newline."""
    return msgspec.json.format(encoding.encode(snapshot), indent=1) + b"\n"


class _Head(msgspec.Struct):
    schema: Any = None


SAYS_SO = re.compile(rb'\s*\{\s*"schema"\s*:\s*"gpuconsole\.snapshot/')


def is_snapshot(data: bytes) -> bool:
    """Whether `data` says that it is a snapshot, of any version. A damaged file says so too."""
    try:
        schema = msgspec.json.decode(data, type=_Head).schema
    except encoding.UNREADABLE:
        return SAYS_SO.match(data) is not None
    return isinstance(schema, str) and schema.startswith("gpuconsole.snapshot/")


def decode(data: bytes) -> Snapshot:
    """The snapshot in `data`; raises SnapshotError. Unknown fields are skipped, and take no memory:
    a file from elsewhere may have millions."""
    try:
        schema = msgspec.json.decode(data, type=_Head).schema
    except msgspec.ValidationError:  # JSON, but no object
        schema = None
    except encoding.UNREADABLE as error:
        raise SnapshotError(f"not JSON: {error}") from None
    if not isinstance(schema, str) or not schema.startswith("gpuconsole.snapshot/"):
        raise SnapshotError('not a gpuconsole snapshot (no "schema": "gpuconsole.snapshot/1")')
    if schema != SCHEMA:
        raise SnapshotError(
            f"written by a newer gpuconsole ({schema}; this one reads {SCHEMA}): upgrade gpuconsole"
        )
    try:
        snapshot = msgspec.json.decode(data, type=Snapshot)
    except encoding.UNREADABLE as error:
        raise SnapshotError(f"not a valid snapshot: {error}") from None
    check_figures(snapshot)
    return snapshot


def check_figures(value: object, where: str = "$", most: float = encoding.MAX_NUMBER) -> None:
    """Raises SnapshotError where a number in `value` is above `most`, where a rate, a time or a
    count is above what is possible, or where a time, a rate or a weight is negative."""
    match value:
        case float() | int():
            _check_range([value], where, most)
        case list() | tuple():
            if all(isinstance(item, float) for item in value):
                _check_range(value, where, most)
            else:
                for number, item in enumerate(value):
                    check_figures(item, f"{where}[{number}]", most)
        case dict():
            for name, item in value.items():
                inside = f"{where}[{name!a}]"
                if isinstance(item, SeriesData) and str(name).partition("{")[0].endswith("_s"):
                    _check_range(item.v, f"{inside}.v", most, 0.0)
                check_figures(item, inside, _most(str(name), most))
        case _:
            if isinstance(value, Distribution):
                _check_range((value.mean, value.std, value.n, value.p50), where, most, 0.0)
            elif isinstance(value, SeriesData):
                _check_range(value.w, f"{where}.w", most, 0.0)
            of_kind = type(value)
            plain = getattr(of_kind, "__dataclass_fields__", ())
            for name in getattr(of_kind, "__struct_fields__", plain):
                check_figures(getattr(value, name), f"{where}.{name}", _most(name, most))


def _most(name: str, most: float) -> float:
    """Return the largest possible number of the figure `name`; `most`, where its name does not
    tell."""
    plain = name.partition("{")[0]
    return next((limit for end, limit in LIMITS if plain.endswith(end)), most)


def _check_range(
    values: Sequence[float], where: str, most: float, least: float = -encoding.MAX_NUMBER
) -> None:
    for value in (min(values, default=0.0), max(values, default=0.0)):
        if not least <= value <= most:
            is_long = isinstance(value, int) and value.bit_length() > MAX_BITS
            shown = "300 digits or more" if is_long else f"{value:.3g}"
            raise SnapshotError(f"a number is out of range: {shown} at {where}")


def decode_with_unknown(data: bytes) -> tuple[Snapshot, dict[str, Any]]:
    """A snapshot and its JSON with all unknown fields, to be written back; raises SnapshotError."""
    snapshot = decode(data)
    try:
        return snapshot, msgspec.json.decode(data)
    except encoding.UNREADABLE as error:
        raise SnapshotError(f"not JSON: {error}") from None


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a snapshot."""
    schema = msgspec.json.schema(Snapshot)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = SCHEMA
    return schema
