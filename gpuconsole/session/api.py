"""The one interface through which a screen, or a headless command, reaches the runtime.

`View` is an immutable picture of everything there is to show; taking one is cheap. A live engine and a replayed
recording offer the same `SessionApi`, so a screen cannot tell them apart except by `View.recording`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import msgspec

from gpuconsole.model.experiments.certificate import Certificate, Tuning
from gpuconsole.model.experiments.trial import Trial
from gpuconsole.model.finding import Interval
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.machine.device import Device, Link
from gpuconsole.model.machine.process import Process
from gpuconsole.model.profile import ProfileReport
from gpuconsole.model.run import Run
from gpuconsole.model.scenario import Scenario
from gpuconsole.model.snapshot import Environment
from gpuconsole.wire.events import SourceState


class SessionError(RuntimeError):
    """An action that cannot be done now; the message is one line for the person at the screen."""


class Busy(SessionError):
    """Something else is under way that excludes it; a moment later it may be had."""


class View(msgspec.Struct, frozen=True):
    """Everything a screen shows, at one moment.

    `latest` and `unavailable` are keyed by series name (`gpu.power_w{device=gpu:0}`). `device` is the one that the
    current run uses (or would). `stage` says what a run is doing before its first step; `probing` names the probe under way.
    `runs[-1]` is the current run, if there is any. `now` is seconds on the session's own clock, and `sampled` says when each of
    `latest` was taken; `substitutes` names the source of a value that did not come from the catalogued one. `processes_missing` gives, for devices that do not tell their processes, the reason.
    `silent`: for how many seconds nothing has come of a device, where that is too long for its values to be fresh. `wall` is Unix time at `now`, 0 when it is not known. `sources` says of each source how it keeps its beat, and which one is stuck. `tuning_at`: when `tuning` was last told. `step_times` are seconds of recent steps, of a serving run E2E of recent requests.
    """

    now: float
    environment: Environment
    devices: tuple[Device, ...]
    device: str
    no_gpu_reason: str
    latest: dict[str, float]
    unavailable: dict[str, str]
    lost: dict[str, str]
    runs: tuple[Run, ...]
    trials: tuple[Trial, ...]
    state: str
    stage: str
    probing: str
    running_s: float
    notes: tuple[str, ...]
    own_cpu_ratio: float | None
    recording: bool
    recording_to: str
    ended: bool
    step_times: tuple[float, ...] = ()
    wall: float = 0.0
    sampled: dict[str, float] = {}
    substitutes: dict[str, str] = {}
    silent: dict[str, float] = {}
    processes: tuple[Process, ...] = ()
    processes_missing: dict[str, str] = {}
    links: tuple[Link, ...] = ()
    sources: dict[str, SourceState] = {}
    tuning: Tuning | None = None
    tuning_at: float = 0.0

    @property
    def run(self) -> Run | None:
        return self.runs[-1] if self.runs else None


class SessionApi(Protocol):
    """What a screen may do."""

    async def open(self) -> None:
        """Start; returns once the devices are known. Raises SessionError."""
        ...

    async def warm(self) -> None:
        """Prepare the next start, where that makes it quicker."""
        ...

    def view(self) -> View:
        """The present state."""
        ...

    def history(self, key: str, columns: int, seconds: float) -> list[float | None]:
        """Means of the series `key` in `columns` equal buckets bound to the clock, the newest last; None: no sample there."""
        ...

    def points(self, key: str) -> tuple[list[float], list[float]]:
        """The whole history of `key`: session seconds and values, downsampled where it is old."""
        ...

    def scenarios(self) -> list[Scenario]:
        """What can be run, by name."""
        ...

    async def start(self, scenario: str, overrides: Knobs) -> None:
        """Run a scenario, ending the one that runs. Raises SessionError."""
        ...

    async def stop(self) -> None:
        """End the run that runs, keeping what was measured."""
        ...

    async def set_knobs(self, changes: Knobs) -> None:
        """Change hot knobs now, without proof. Raises SessionError."""
        ...

    async def try_change(self, changes: Knobs, predicted: Interval | None = None) -> Trial:
        """Prove a change by paired blocks and keep it if it wins; returns the finished trial. Raises SessionError."""
        ...

    async def tune(self) -> Certificate:
        """Try what promises most, keep what wins, until nothing is left or time is up; returns what was proven. Raises SessionError."""
        ...

    def end_tuning(self) -> None:
        """End the tuning session that runs: what has been kept by then stays. Raises SessionError."""
        ...

    async def profile(self) -> ProfileReport:
        """Take a profiler window of the run that runs, and keep it with the run. Raises SessionError."""
        ...

    async def revert(self) -> None:
        """Undo the last kept change. Raises SessionError."""
        ...

    async def keep_baseline(self) -> str:
        """Keep the current run as a baseline, when it ends if it runs (a second call takes that back); says so in a line. Raises SessionError."""
        ...

    def signal_process(self, process: Process, number: int) -> None:
        """Send signal `number` to exactly this process, not to a later one with its pid. Raises SessionError."""
        ...

    def export(self, path: Path | None = None) -> Path:
        """Write the snapshot; returns where. Raises SessionError."""
        ...

    def toggle_recording(self, path: Path | None = None) -> Path | None:
        """Begin (returns the file) or end (returns None) a recording. Raises SessionError."""
        ...

    async def close(self) -> None:
        """End everything: children gone, files whole."""
        ...
