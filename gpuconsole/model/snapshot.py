"""A session written as JSON: schema `gpuconsole.snapshot/1`."""

from __future__ import annotations

from typing import Any

import msgspec

from gpuconsole.model import encoding
from gpuconsole.model.experiments import Sweep, Trial
from gpuconsole.model.machine import Device
from gpuconsole.model.run import Run

SCHEMA = "gpuconsole.snapshot/1"
MOST_BYTES = 128 * 2**20
"""The largest file that is read as a snapshot."""


class SnapshotError(ValueError):
    """A file that is not a readable snapshot. The message is one line."""


class Environment(msgspec.Struct, omit_defaults=True):
    """The machine and software of a session, without environment variables and command lines. `price_per_hour` comes from the user, in any
    currency."""

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
    """A session: runs and trials in order, with their environment. `recording`: the session is a replay of a recorded session."""

    schema: str = SCHEMA
    created: str
    gpuconsole: str
    environment: Environment
    runs: list[Run]
    trials: list[Trial]
    unavailable: dict[str, str] = {}
    sweeps: list[Sweep] = []
    recording: bool = False


def encode(snapshot: Snapshot) -> bytes:
    """Pretty JSON, UTF-8, ending in a newline."""
    return msgspec.json.format(encoding.encode(snapshot), indent=1) + b"\n"


def decode(data: bytes) -> tuple[Snapshot, dict[str, Any]]:
    """A snapshot and its JSON with all unknown fields; raises SnapshotError."""
    try:
        raw = msgspec.json.decode(data)
    except encoding.UNREADABLE as error:
        raise SnapshotError(f"not JSON: {error}") from None
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if not isinstance(schema, str) or not schema.startswith("gpuconsole.snapshot/"):
        raise SnapshotError('not a gpuconsole snapshot (no "schema": "gpuconsole.snapshot/1")')
    if schema != SCHEMA:
        raise SnapshotError(f"written by a newer gpuconsole ({schema}; this one reads {SCHEMA}): upgrade gpuconsole")
    try:
        return msgspec.convert(raw, Snapshot), raw
    except (msgspec.ValidationError, RecursionError) as error:
        raise SnapshotError(f"not a valid snapshot: {error}") from None


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a snapshot."""
    schema = msgspec.json.schema(Snapshot)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = SCHEMA
    return schema
