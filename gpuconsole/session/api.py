"""The only interface between a session and a screen or a command.

`View` is an immutable snapshot of the present state, and cheap to take. A live engine and a
replayed recording offer the same `SessionApi`; only `View.recording` differs.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Protocol

import msgspec

from gpuconsole.model.certificate import Certificate, Tuning
from gpuconsole.model.experiments import Trial
from gpuconsole.model.finding import Interval, Signal
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.machine import Device, Link, Process
from gpuconsole.model.profile import STEPS, ProfileReport
from gpuconsole.model.run import Run, RunState
from gpuconsole.model.scenario import Scenario
from gpuconsole.model.snapshot import Environment, Snapshot
from gpuconsole.model.text import without_credentials
from gpuconsole.session.idle import QuietTime
from gpuconsole.session.jobs import Ports
from gpuconsole.wire.events import SourceState


class SessionError(RuntimeError):
    """An action is not possible now. The message is one line for the user, without credentials."""

    def __init__(self, message: str = "") -> None:
        super().__init__(without_credentials(message))


class Busy(SessionError):
    """Another action is in progress and excludes this action. This action may be possible a moment
    later."""


A_RECORDING = "this is a recording: nothing runs that could be changed"


class Playback(msgspec.Struct, frozen=True):
    """Which moment of a recording is shown: `at_s` of `length_s` seconds, from its first event.
    `seeking`: what is shown is still another moment, because the events before this one are being
    read again."""

    at_s: float
    length_s: float
    speed: float = 1.0
    paused: bool = False
    seeking: bool = False


class View(msgspec.Struct, frozen=True):
    """An immutable snapshot of everything that a screen shows.

    Times are seconds on the clock of the session, which starts at 0. Series have names such as
    `gpu.power_w{device=gpu:0}`.

    - `now`: the time of this state; `wall`: the same moment in Unix time, 0 if it is unknown.
    - `runs`: all runs; the last run is the current run. `state` is the state of the current run,
      empty without a run.
    - `device`: the device of the current run, or of the next run if there is none.
    - `stage`: what the current run does before its first step. `probing`: the probe or other
      measurement in progress.
    - `latest`: the present values by series, `sampled`: their times, `unavailable`: the reasons for
      missing values.
    - `substitutes`: the source of a value that did not come from its usual source.
    - `silent`: seconds since the last event of a device whose values are no longer fresh. `lost`:
      lost devices with the reason.
    - `processes_missing`: devices that do not report their processes, with the reason.
    - `sources`: for each source, its period and whether it hangs.
    - `tuning`: the tuning session, reported at `tuning_at`.
    - `step_times`: seconds of recent steps; of a serving run, end-to-end seconds of recent
      requests.
    - `own_cpu_ratio`: CPU cores that the console and its sampler use. `recording_to`: the file of a
      recording in progress.
    - `ended`: a replayed recording is at its end. `playback`: which moment of it is shown.
    - `run_times`: for each run, when it was opened. `closed_s`: when the current run ended; None
      while it goes on. `trial_times`: for each trial by id, when it began and when it was last
      reported.
    - `sides`: when the steps changed to a side of a trial, and which: `BASELINE`, `CHANGED`, or 0
      outside of trials.
    - `remote`: what an agent on the console's socket does (`RemoteApi.activity`).
    - `asked`: the changes of a trial that was asked for and has not begun: it waits for a probe, or
      its first side starts.
    - `undo`: the values that `revert` would bring back now; empty if there is nothing to take back.
    - `xids`: the worst error (XID) of each GPU since the start of the console or the last reset of
      the GPU, and its session seconds.
    - `ecc_before`: the uncorrected memory errors that each GPU had at the start of the console.
    - `quiet`: how long each GPU has done no work; GPUs that work are left out.
    - `slow`: the GPUs whose driver calls are slow or hang, each with the call.
    - `down`: the reason why the model server does not answer, for `down_s` seconds; empty while it
      answers.
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
    down: str = ""
    down_s: float = 0.0
    run_times: tuple[float, ...] = ()
    closed_s: float | None = None
    trial_times: dict[str, tuple[float, float]] = {}
    sides: tuple[tuple[float, int], ...] = ()
    remote: str = ""
    asked: Knobs = {}
    undo: Knobs = {}
    playback: Playback | None = None
    xids: dict[str, tuple[int, float]] = {}
    ecc_before: dict[str, float] = {}
    quiet: dict[str, QuietTime] = {}
    slow: dict[str, str] = {}

    @property
    def run(self) -> Run | None:
        return self.runs[-1] if self.runs else None


class Output(Protocol):
    """The output of a job as lines of text, the oldest first."""

    version: int
    """Grows when there is more output."""

    def text(self) -> list[str]: ...


class JobApi(Protocol):
    """What a screen can do with the user's own job, which runs on a terminal of its own."""

    @property
    def lines(self) -> Output:
        """The last lines of the output."""
        ...

    @property
    def ended(self) -> bool:
        """Whether the job has ended, or the console has left it."""
        ...

    @property
    def about(self) -> str:
        """The job in one line, for a question: its name and its pid."""
        ...

    @property
    def kept_in(self) -> Path:
        """The file that gets the output after the console has left the job."""
        ...

    def interrupt(self) -> str:
        """Send SIGINT to the job; the second call sends SIGTERM, the third SIGKILL. Returns what
        was done, for the user."""
        ...

    def signal(self, number: int) -> None:
        """Send a signal to the job. Nothing happens when the job has ended."""
        ...

    @property
    def allows_numerics(self) -> bool:
        """Whether the user has allowed changes that alter the numbers of the job."""
        ...

    def allow_numerics(self) -> None:
        """Allow changes that alter the numbers of the job."""
        ...

    @property
    def allows_loader(self) -> bool:
        """Whether the user has allowed new workers of the DataLoader, which load ahead, from copies
        of the dataset."""
        ...

    def allow_loader(self) -> None:
        """Allow new workers of the DataLoader."""
        ...

    @property
    def allows_probes(self) -> bool:
        """Whether the user has allowed probes and the profiler in the job."""
        ...

    def allow_probes(self) -> None:
        """Allow probes in the job."""
        ...

    def type(self, text: str) -> None:
        """Send `text` to the job's stdin."""
        ...

    def resize(self, columns: int, rows: int) -> None:
        """Change the size of the job's terminal."""
        ...

    def leave(self) -> None:
        """Leave the job: its processes continue without the console."""
        ...


class RemoteApi(Protocol):
    """What a screen can do with an agent that works on the session through the console's socket."""

    @property
    def activity(self) -> str:
        """What the agent does, or that agents are refused, in a clause; empty while no agent is
        connected."""
        ...

    def switch(self) -> str:
        """Take the control back from the agent, whose trial is taken back; the second call lets
        agents in again. Returns what was done."""
        ...


class PlayerApi(Protocol):
    """What a screen can do with a recording that plays."""

    def pause(self) -> None:
        """Pause, or go on. At the end of the recording: play it again from its beginning."""
        ...

    def seek(self, at_s: float) -> None:
        """Go to the moment `at_s` seconds after the first event, or to the nearest end."""
        ...

    def change_speed(self, *, faster: bool) -> None:
        """Play at the next higher or lower speed."""
        ...


class SessionApi(Protocol):
    """What a screen or a command can do with a session. All methods are called on one event
    loop."""

    job: JobApi | None = None
    """The user's own job, if the session has started one on a terminal."""
    remote: RemoteApi | None = None
    """The agent on the console's socket, if the user has opened one (`--control`)."""
    player: PlayerApi | None = None
    """The player of a recording; None in a live session."""

    async def open(self) -> None:
        """Begin the session; returns once the devices are known, or after some seconds. Raises
        SessionError."""
        ...

    async def close(self) -> None:
        """End the session: end all child processes and complete all files. A second call changes
        nothing."""
        ...

    def view(self) -> View:
        """The present state."""
        ...

    def environment(self) -> Environment:
        """The machine and its software."""
        ...

    def history(self, key: str, columns: int, seconds: float) -> list[float | None]:
        """Means of the series `key` in `columns` equal time buckets of the last `seconds`, the
        newest last; None: no sample in the bucket."""
        ...

    def points(self, key: str) -> tuple[list[float], list[float]]:
        """The whole history of `key`: session seconds and values. Old parts are downsampled."""
        ...

    def snapshot(self) -> Snapshot:
        """The session so far, in the form of a snapshot file."""
        ...

    def scenarios(self) -> list[Scenario]:
        """The scenarios that can be started, by name."""
        ...

    async def keep_warm(self, wanted: bool) -> None:
        """Keep a spare worker ready while the user chooses a scenario (`wanted`); a start is then 3
        s faster."""
        ...

    async def start(self, scenario: str, overrides: Knobs) -> None:
        """Start a scenario; the current run ends first. Raises SessionError."""
        ...

    async def stop(self) -> None:
        """End the current run, if any; its measurements stay."""
        ...

    async def end_run(self, state: RunState, error: str | None = None) -> None:
        """End the current run, if any, as `state`, with the cause of a failure."""
        ...

    async def set_knobs(self, changes: Knobs) -> None:
        """Apply live changes now, without proof. Raises SessionError."""
        ...

    async def try_change(
        self, changes: Knobs, predicted: Interval | None = None, *, keep: bool = True
    ) -> Trial:
        """Prove a change by paired blocks and keep the change if it wins; returns the finished
        trial. Without `keep` the change is only measured. Raises SessionError."""
        ...

    async def keep_trial(self) -> Trial:
        """Keep the change of the last trial, which was a win and only measured; returns the trial.
        Raises SessionError."""
        ...

    def cancel_trial(self) -> None:
        """End the running trial and revert its change. The run goes on; the trial is recorded as
        cancelled. Raises SessionError where no trial runs."""
        ...

    async def tune(self) -> Certificate:
        """Try the most promising changes one by one and keep those that win, until none is left or
        the time is up. Raises SessionError."""
        ...

    def end_tuning(self) -> None:
        """End the tuning session; the changes kept so far stay. Raises SessionError when there is
        none."""
        ...

    def probe_only_for(self, knobs: Collection[str]) -> None:
        """Run only probes that can lead to a change of one of these knobs; empty: all probes."""
        ...

    async def profile(self, steps: int = STEPS, rank: int = 0) -> ProfileReport:
        """Profile `steps` steps of the current run, and keep the report with the run. `rank`: the
        process, in a user's job of several. Raises SessionError."""
        ...

    async def probe_server(self) -> dict[str, Signal]:
        """Send a few requests to the server that is watched, and return what they show. The caller
        has asked the user. Raises SessionError."""
        ...

    async def revert(self) -> None:
        """Undo the last change that was kept, or applied without a trial. Raises SessionError."""
        ...

    async def keep_baseline(self) -> str:
        """Keep the current run as a baseline; returns a line about it. Raises SessionError.

        A run that is active is kept when it ends; a second call before that takes the request back.
        """
        ...

    def signal_process(self, process: Process, number: int) -> None:
        """Send signal `number` to exactly this process, and not to a later process with the same
        pid. Raises SessionError."""
        ...

    def ports(self, pids: Collection[int]) -> Ports:
        """The TCP ports at which these processes listen, as last read. Asking begins a new reading;
        a recording has none."""
        ...

    def export(self, path: Path | None = None) -> Path:
        """Write the snapshot to `path`, or to a dated file in the current folder; returns the file.
        Raises SessionError."""
        ...

    def toggle_recording(self, path: Path | None = None) -> Path | None:
        """Begin a recording (returns the file), or end it (returns None). Raises SessionError."""
        ...
