"""Compares the current run with its baseline, once a second and when the run ends, and keeps runs as baselines."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

from gpuconsole import __version__
from gpuconsole.engine.background import BackgroundTasks
from gpuconsole.engine.machine.load import OtherLoad
from gpuconsole.experiments.baselines import BaselineError, baselines_folder, compare, doubts, keep_run, nearest_baseline, read_all, unlike
from gpuconsole.experiments.statistics import MIN_BLOCKS, run_blocks
from gpuconsole.model.baseline import Baseline, BaselineComparison, BaselineKey, BaselineRun
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.machine import Device
from gpuconsole.model.metrics import series_key
from gpuconsole.model.run import Run, Step, Validity
from gpuconsole.model.scenario import Scenario
from gpuconsole.model.snapshot import Environment
from gpuconsole.session.api import SessionError
from gpuconsole.session.figures.account import runq_ratio
from gpuconsole.session.figures.summary import summarized
from gpuconsole.session.run import LIVE_STEPS, RunRecord
from gpuconsole.session.state import SessionState
from gpuconsole.session.view import run_now
from gpuconsole.wire.events import AnyEvent, Compared, Note

EVERY_S = 1.0
Keeps = Literal["chosen", "all", "all but slower"]


class Lookup(NamedTuple):
    """The baseline of a run at its start, or instead the reason why there is no comparison. Both None: no run of the scenario was kept."""

    baseline: Baseline | None = None
    instead: BaselineComparison | None = None


def key_of(scenario: Scenario, run: Run, device: Device, environment: Environment) -> BaselineKey:
    """The key of a run. A job of the user's own counts with its command; all its knobs are its own."""
    usual, knobs = scenario.knobs_on(device), run.knobs
    return BaselineKey(
        scenario=f"{scenario.name} {run.command_digest}" if run.is_job else scenario.name,
        changed={name: value for name, value in knobs.items() if usual.get(name) != value},
        device=device.name,
        cpu=environment.cpu,
        cores=environment.cores,
        torch=environment.torch or "",
        driver=(environment.driver or "").partition(".")[0] if device.is_gpu else "",
    )


def look_up(key: BaselineKey, knobs: Knobs) -> Lookup:
    """The baseline for a run of `key` with `knobs`, or the difference from the nearest baseline. Reads the disk; raises BaselineError where
    the file of `key` is not a valid baseline."""
    baselines, mistakes = read_all(baselines_folder())
    own = mistakes.get(key.name)
    if own is not None:
        raise BaselineError(own)
    nearest = nearest_baseline(key, knobs, baselines)
    if nearest is None:
        return Lookup()
    other, parts = nearest
    return Lookup(instead=unlike(key, other, parts)) if parts else Lookup(other)


class BaselineWatch:
    """Compares for the engine. `kept` and `failed` are lines about the runs that were, or were not, kept as baselines."""

    def __init__(self, state: SessionState, emit: Callable[[AnyEvent], None], keeps: Keeps) -> None:
        self.kept: list[str] = []
        self.failed: list[str] = []
        self._state = state
        self._emit = emit
        self._keeps = keeps
        self._keys: dict[str, BaselineKey] = {}
        self._jobs: dict[str, tuple[Scenario, Device]] = {}
        """Runs of the user's own job whose knobs are not known yet."""
        self._found: dict[str, Lookup] = {}
        self._others: dict[str, OtherLoad] = {}
        self._reported = ""
        self._wanted: set[str] = set()
        self._done: set[str] = set()
        self._background = BackgroundTasks(emit)

    def begin(self, scenario: Scenario, device: Device) -> None:
        """A run begins: read its baseline in the background. The knobs of a user's job are known later."""
        record = self._state.record
        assert record is not None
        if record.run.is_job and not record.run.knobs:
            self._jobs[record.run.id] = scenario, device
        else:
            self._identify(record, scenario, device)
            self._background.start(self._look_up(record))

    def _identify(self, record: RunRecord, scenario: Scenario, device: Device) -> None:
        self._keys[record.run.id] = key_of(scenario, record.run, device, self._state.environment)

    async def _look_up(self, record: RunRecord) -> None:
        run = record.run
        try:
            lookup = await asyncio.to_thread(look_up, self._keys[run.id], run.knobs)
        except BaselineError as error:
            self._emit(Note(time.monotonic(), str(error), "warning"))
            lookup = Lookup(instead=BaselineComparison(key=self._keys[run.id].name, words=str(error), short="baseline: not readable"))
        self._found[run.id] = lookup
        if lookup.instead is not None:
            self._emit(Compared(time.monotonic(), run.id, lookup.instead))

    async def run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            record = self._state.record
            if record is not None and record.closed_t is None and record.steady_t is not None:
                if (job := self._jobs.pop(record.run.id, None)) is not None:
                    self._identify(record, *job)
                    await self._look_up(record)
                await self._read_load(record)
                if record.closed_t is None:
                    self._compare(record, live=True)

    async def _read_load(self, record: RunRecord) -> None:
        """The load of other programs. A failed reading is reported once; the comparison goes on without it."""
        others = self._others.setdefault(record.run.id, OtherLoad())
        try:
            await others.read()
        except Exception as problem:  # whatever /proc of this machine contains must not end the comparison
            if (line := f"the load of other programs cannot be read: {problem}") != self._reported:
                self._reported = line
                self._emit(Note(time.monotonic(), line, "warning"))
        record.others_ratio = others.ratio

    def ended(self, record: RunRecord) -> None:
        """The run has ended: compare it, and keep it where the user wants it kept."""
        run = record.run
        if (job := self._jobs.pop(run.id, None)) is not None:
            self._identify(record, *job)
        if run.state == "failed":
            return
        self._compare(record, live=False)
        slower = run.baseline is not None and run.baseline.verdict == "slower"
        if why := doubts(self._valid(record)):
            if run.id in self._wanted or self._keeps != "chosen":
                self._report_failed(f"run {run.id} is not kept as a baseline: {why}")
        elif self._keeps == "all but slower" and slower:
            self._report_kept(f"run {run.id} is not kept as a baseline: it is slower than the baseline")
        elif run.id in self._wanted or self._keeps != "chosen":
            self._background.start(self._keep(record, self._measured(record, None)))

    def _compare(self, record: RunRecord, live: bool) -> None:
        baseline = self._found.get(record.run.id, Lookup()).baseline
        if baseline is not None:
            now = self._measured(record, LIVE_STEPS if live else None)
            if now.rates or not live:
                self._emit(Compared(time.monotonic(), record.run.id, compare(now, baseline, live, self._valid(record))))

    def _measured(self, record: RunRecord, limit: int | None) -> BaselineRun:
        others = self._others.get(record.run.id)
        return measured(record, self._state, limit, others.ratio if others else None)

    # --- keeping --------------------------------------------------------------------------------------------

    async def keep(self) -> str:
        """Keep the current run: at its end if it is running (a second call cancels that), else at once. Returns a line for the user. Raises
        SessionError."""
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
            return f"run {run.id} will {'' if run.id in self._wanted else 'not '}be kept as a baseline when it ends"
        if why := doubts(self._valid(record)):
            raise SessionError(f"run {run.id} cannot be a baseline: {why}")
        lines, failures = len(self.kept), len(self.failed)
        await self._keep(record, self._measured(record, None))
        if len(self.failed) > failures:
            raise SessionError(self.failed[-1])
        return self.kept[-1] if len(self.kept) > lines else f"run {run.id} is already kept as a baseline"

    async def _keep(self, record: RunRecord, measurement: BaselineRun) -> None:
        run = record.run
        self._done.add(run.id)
        try:
            if len(measurement.rates) < MIN_BLOCKS:
                raise BaselineError(f"too few steady steps ({MIN_BLOCKS} blocks are needed)")
            key, unit = self._keys[run.id], run_now(self._state, record).throughput[1]
            line = await asyncio.to_thread(keep_run, baselines_folder(), key, run.knobs, unit, measurement)
        except BaselineError as error:
            self._done.discard(run.id)
            self._report_failed(f"run {run.id} is not kept as a baseline: {error}")
        else:
            self._report_kept(f"run {run.id} {line}")

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


def measured(record: RunRecord, state: SessionState, limit: int | None, others: float | None) -> BaselineRun:
    """The figures of a run over its last `limit` steady steps (None: all). `others`: the load of other programs. No rates before the run is
    steady."""
    steps, run = record.steady_steps(limit), summarized(record, state.devices, state.environment, limit)
    summary, blocks = run.summary, run_blocks(steps)
    return BaselineRun(
        date=run.started,
        gpuconsole=__version__,
        rates=_rounded(block.rate for block in blocks),
        seconds=_rounded(block.seconds for block in blocks),
        on_cpu=run.device == "cpu",
        duration_s=round(sum(step.wall_s for step in steps), 3),
        step_time_s=summary.step_time_s.p50 if summary.step_time_s else None,
        phases_ratio={name: round(share, 5) for name, share in summary.phases_ratio.items()},
        mfu_ratio=summary.mfu_ratio,
        memory_peak_bytes=summary.memory_peak_bytes,
        energy_per_token_j=1 / summary.tokens_per_j if summary.tokens_per_j else None,
        run_queue_ratio=runq_ratio(steps),
        waiting_ratio=_mean(state, "host.run_queue_delay_ratio", steps),
        others_ratio=others,
    )


def _rounded(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(float(f"{value:.6g}") for value in values)


def _mean(state: SessionState, metric: str, steps: list[Step]) -> float | None:
    """Mean of a host metric over the time of `steps`; None where it was not measured."""
    series = state.readings.series.get(series_key(metric, "cpu"))
    if series is None or not steps:
        return None
    end = state.session_time(steps[-1].t)
    inside = [sample for sample in series.weighed(state.session_time(steps[0].t)) if sample.t <= end]
    return statistics.fmean([sample.value for sample in inside], [sample.weight for sample in inside]) if inside else None
