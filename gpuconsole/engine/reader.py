"""What a `SessionApi` reads: views, history and snapshots of a session, live or recorded, with the
figures of the models."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from gpuconsole.diagnosis.models.run import MISSING, with_figures
from gpuconsole.engine import clients
from gpuconsole.engine.clients.fields import ClientFileError
from gpuconsole.host.files import read_limited, write_new, write_whole
from gpuconsole.host.folders import make_private, user_folder
from gpuconsole.model.machine import Device
from gpuconsole.model.peaks import published_of
from gpuconsole.model.run import Run
from gpuconsole.model.snapshot import (
    MAX_BYTES,
    Environment,
    Snapshot,
    SnapshotError,
    check_figures,
    decode,
    encode,
    is_snapshot,
)
from gpuconsole.session.api import SessionError, View
from gpuconsole.session.run import RunRecord
from gpuconsole.session.state import SessionState
from gpuconsole.session.view import bucketed, make_snapshot, make_view, points, run_now


class StateReader:
    """Reads `state`; `clock` is the time on the clock of its events."""

    state: SessionState

    def __init__(self) -> None:
        self._figured: dict[str, tuple[tuple[Any, ...], Run]] = {}

    def clock(self) -> float:
        return time.monotonic()

    def environment(self) -> Environment:
        return self.state.environment

    def history(self, key: str, columns: int, seconds: float) -> list[float | None]:
        return bucketed(self.state, key, self.clock(), columns, seconds)

    def points(self, key: str) -> tuple[list[float], list[float]]:
        return points(self.state, key)

    def run_now(self, record: RunRecord) -> Run:
        """The run of a record with its summary as it stands; without figures."""
        return run_now(self.state, record)

    def snapshot(self) -> Snapshot:
        """The session as it stands."""
        snapshot = make_snapshot(self.state, self.environment(), self.clock())
        snapshot.runs = [self._with_figures(run) for run in snapshot.runs]
        return snapshot

    def build_view(
        self, *, device: str, probing: str, recording: bool, recording_to: str, ended: bool
    ) -> View:
        environment = self.state.environment
        view = make_view(
            self.state,
            now=self.clock(),
            environment=environment if environment.host else self.environment(),
            device=device,
            probing=probing,
            recording=recording,
            recording_to=recording_to,
            ended=ended,
        )
        return msgspec.structs.replace(
            view, runs=tuple(self._with_figures(run) for run in view.runs)
        )

    def _with_figures(self, run: Run) -> Run:
        """`run` with its figures. They are computed again only where something changed that they
        are made from."""
        devices: Sequence[Device] = self.state.devices
        calibration = self.state.environment.calibration
        inputs = (run.knobs, run.facts, run.server, run.signals, run.summary, devices, calibration)
        cached = self._figured.get(run.id)
        if cached is None or any(
            before is not other for before, other in zip(cached[0], inputs, strict=True)
        ):
            cached = self._figured[run.id] = (
                inputs,
                with_figures(run, devices, calibration, published_of),
            )
        figured = cached[1]
        missing = {MISSING: figured.unavailable[MISSING]} if MISSING in figured.unavailable else {}
        return msgspec.structs.replace(
            run,
            figures=figured.figures,
            attainable=figured.attainable,
            unavailable={**run.unavailable, **missing},
        )


def read_snapshot(path: Path, *, regular: bool = False) -> Snapshot:
    """The session in the file `path`. `regular`: it must be a regular file, because a pipe may
    never end. Raises SnapshotError, with the path."""
    try:
        return decode(read_limited(path, MAX_BYTES, regular=regular))
    except OSError as error:
        raise SnapshotError(f"{path}: cannot be read: {error.strerror}") from None
    except SnapshotError as error:
        raise SnapshotError(f"{path}: {error}") from None


def read_measured(path: Path) -> Snapshot:
    """The session in the file `path`, or the runs in a result file of another client (see
    `clients`). Raises SnapshotError, with the path."""
    try:
        data = read_limited(path, clients.MAX_BYTES)
        if is_snapshot(data):
            if len(data) > MAX_BYTES:
                raise SnapshotError(f"the file has more than {MAX_BYTES / 2**20:g} MiB")
            return decode(data)
        runs = clients.read_runs(path, data)
        check_figures(runs)
        return runs
    except OSError as error:
        raise SnapshotError(f"{path}: cannot be read: {error.strerror}") from None
    except (SnapshotError, ClientFileError) as error:
        raise SnapshotError(f"{path}: {error}") from None


def write_snapshot(snapshot: Snapshot, path: Path | None, stem: str = "gpuconsole") -> Path:
    """Write `snapshot` whole to `path`, or to a new dated file of that stem in the current folder,
    or in the user's folder for state where that does not work; returns where. Raises
    SessionError."""
    target, data = path or Path(f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}.json"), encode(snapshot)
    try:
        if path is None:
            return write_new(target, data)
        write_whole(path, data)
        return path
    except OSError as error:
        failed = SessionError(f"{target}: cannot be written: {error.strerror}")
    if path is None:
        with contextlib.suppress(OSError):
            return write_new(make_private(user_folder("state")) / target, data)
    raise failed
