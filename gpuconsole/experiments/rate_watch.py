"""Watches the rate of the current run: compares it with its baseline, once a second and when the
run ends, and keeps runs as baselines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import msgspec

from gpuconsole import __version__
from gpuconsole.engine.background import BackgroundTasks
from gpuconsole.experiments.baselines import (
    UNREADABLE,
    BaselineError,
    baselines_folder,
    comparable,
    compare_with,
    keep_run,
    kept_runs,
    key_of,
)
from gpuconsole.experiments.throughput import DIGEST, MeasuredRun, doubts, why_no_rate
from gpuconsole.host.load import OtherLoad
from gpuconsole.model.comparison import BaselineComparison
from gpuconsole.model.run import Validity
from gpuconsole.model.snapshot import Snapshot
from gpuconsole.session.api import SessionError
from gpuconsole.session.run import RunRecord
from gpuconsole.session.state import SessionState
from gpuconsole.session.view import run_now, series_of
from gpuconsole.wire.events import AnyEvent, Compared, Note

EVERY_S = 1.0
Keeps = Literal["chosen", "all", "all but slower"]


class Lookup(NamedTuple):
    """The kept runs that a run is compared with, and a line for each file that cannot be read and
    may be one of them; or instead the reason why there is no comparison. All empty: no run of this
    work was kept."""

    kept: Sequence[MeasuredRun] = ()
    instead: BaselineComparison | None = None
    mistakes: Sequence[str] = ()


def look_up(now: MeasuredRun) -> Lookup:
    """The kept runs for a run, or the difference from the nearest one. Reads the disk."""
    mistakes: dict[str, str] = {}
    found = comparable(now, (side for _, side in kept_runs(baselines_folder(), mistakes)))
    key = key_of(now)
    lines = [
        line
        for name, line in mistakes.items()
        if name.startswith(key[:-DIGEST]) or name == UNREADABLE
    ]
    if isinstance(found, list):
        return Lookup(found, mistakes=lines)
    if found is None and lines:
        found = BaselineComparison(key=key, words=lines[0], short="baseline: not readable")
    return Lookup(instead=found, mistakes=lines)


class BaselineWatch:
    """Compares for the engine. `kept` and `failed` are lines about the runs that were, or were not,
    kept as baselines."""

    def __init__(
        self,
        state: SessionState,
        emit: Callable[[AnyEvent], None],
        keeps: Keeps,
        snapshot: Callable[[], Snapshot],
    ) -> None:
        """`snapshot`: returns the session as it stands."""
        self.kept: list[str] = []
        self.failed: list[str] = []
        self._state = state
        self._emit = emit
        self._keeps = keeps
        self._snapshot = snapshot
        self._jobs: set[str] = set()
        """Runs of the user's own job whose knobs are not known yet."""
        self._found: dict[str, Lookup] = {}
        self._others: dict[str, OtherLoad] = {}
        self._reported = ""
        self._wanted: set[str] = set()
        self._done: set[str] = set()
        self._background = BackgroundTasks(emit)

    def begin(self, record: RunRecord) -> None:
        """A run begins: read its baseline in the background. The knobs of a user's job are known
        later."""
        if record.run.is_job and not record.run.knobs:
            self._jobs.add(record.run.id)
        else:
            self._background.start(self._look_up(record))

    async def _look_up(self, record: RunRecord) -> None:
        run = record.run
        lookup = self._found[run.id] = await asyncio.to_thread(
            look_up, measured(self._state, record)
        )
        if lookup.mistakes:
            more = f" (and {len(lookup.mistakes) - 1} more)" if lookup.mistakes[1:] else ""
            self._emit(Note(time.monotonic(), f"{lookup.mistakes[0]}{more}", "warning"))
        if lookup.instead is not None:
            self._emit(Compared(time.monotonic(), run.id, lookup.instead))

    async def run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            record = self._state.record
            if record is not None and record.closed_t is None and record.steady_t is not None:
                if record.run.id in self._jobs:
                    self._jobs.discard(record.run.id)
                    await self._look_up(record)
                await self._read_load(record)
                if record.closed_t is None:
                    self._compare(record, live=True)

    async def _read_load(self, record: RunRecord) -> None:
        """The load of other programs. A failed reading is reported once; the comparison goes on
        without it."""
        others = self._others.setdefault(record.run.id, OtherLoad())
        try:
            await others.read()
        except Exception as problem:
            # whatever /proc of this machine contains must not end the comparison
            if (line := f"the load of other programs cannot be read: {problem}") != self._reported:
                self._reported = line
                self._emit(Note(time.monotonic(), line, "warning"))
        record.others_ratio = others.ratio

    def ended(self, record: RunRecord) -> None:
        """The run has ended: compare it, and keep it where the user wants it kept."""
        run = record.run
        if run.state == "failed":
            return
        self._compare(record, live=False)
        slower = run.baseline is not None and run.baseline.verdict == "slower"
        if why := doubts(self._valid(record)):
            if run.id in self._wanted or self._keeps != "chosen":
                self._report_failed(f"run {run.id} is not kept as a baseline: {why}")
        elif self._keeps == "all but slower" and slower:
            self._report_kept(
                f"run {run.id} is not kept as a baseline: it is slower than the baseline"
            )
        elif run.id in self._wanted or self._keeps != "chosen":
            self._background.start(self._keep(record))

    def _compare(self, record: RunRecord, live: bool) -> None:
        kept = self._found.get(record.run.id, Lookup()).kept
        if kept:
            comparison = compare_with(measured(self._state, record), kept, live)
            if not live or comparison.change is not None or comparison.verdict is None:
                self._emit(Compared(time.monotonic(), record.run.id, comparison))

    # --- keeping ----------------------------------------------------------------------------------

    async def keep(self) -> str:
        """Keep the current run: at its end if it is running (a second call cancels that), else at
        once. Returns a line for the user. Raises SessionError."""
        record = self._state.record
        if record is None:
            raise SessionError("there is no run to keep as a baseline")
        run = record.run
        if run.state == "failed":
            raise SessionError(f"run {run.id} failed: it cannot be a baseline")
        if run.id in self._done:
            raise SessionError(f"run {run.id} is already kept as a baseline")
        if record.closed_t is None and self._keeps != "chosen":
            return f"run {run.id} will be kept as a baseline when it ends (--save-baseline)"
        if record.closed_t is None:
            self._wanted ^= {run.id}
            return (
                f"run {run.id} will {'' if run.id in self._wanted else 'not '}be kept as a baseline"
                " when it ends"
            )
        if why := doubts(self._valid(record)):
            raise SessionError(f"run {run.id} cannot be a baseline: {why}")
        lines, failures = len(self.kept), len(self.failed)
        await self._keep(record)
        if len(self.failed) > failures:
            raise SessionError(self.failed[-1])
        return (
            self.kept[-1]
            if len(self.kept) > lines
            else f"run {run.id} is already kept as a baseline"
        )

    async def _keep(self, record: RunRecord) -> None:
        number = record.run.id
        self._done.add(number)
        try:
            session = self._snapshot()
            side = MeasuredRun(
                f"run {number}", next(run for run in session.runs if run.id == number), session
            )
            if why := why_no_rate(side):
                raise BaselineError(why)
            line = await asyncio.to_thread(keep_run, baselines_folder(), side)
        except (BaselineError, SessionError) as error:
            self._done.discard(number)
            self._report_failed(f"run {number} is not kept as a baseline: {error}")
        else:
            self._report_kept(f"run {number} {line}")

    def _valid(self, record: RunRecord) -> Validity | None:
        return run_now(self._state, record).validity

    def _report_failed(self, line: str) -> None:
        self.failed.append(line)
        self._emit(Note(time.monotonic(), line, "error"))

    def _report_kept(self, line: str) -> None:
        self.kept.append(line)
        self._emit(Note(time.monotonic(), line))

    async def settled(self) -> None:
        """Return when all runs that are to be kept are on disk."""
        await self._background.settled()


def measured(state: SessionState, record: RunRecord) -> MeasuredRun:
    """A run as it stands, with what a comparison of its throughput reads."""
    now, run = state.now, run_now(state, record)
    summary = run.summary
    if record.closed_t is None:
        # a live summary is that of the last steps, the points are those of all steady steps
        waited = record.side_work.totals.runq_ratio
        summary = msgspec.structs.replace(summary, runq_ratio=waited)
    series = series_of(state, record, now, "workload.") | series_of(
        state, record, now, "host.run_queue_delay_ratio"
    )
    session = Snapshot(
        created="",
        gpuconsole=__version__,
        environment=state.environment,
        runs=[msgspec.structs.replace(run, summary=summary, series=series)],
        trials=state.timed_trials(),
    )
    return MeasuredRun(f"run {run.id}", session.runs[0], session)
