"""The live session that screens and commands use: an engine, with trials, tuning sessions and
baselines."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from gpuconsole.engine.background import BackgroundTasks
from gpuconsole.engine.children.early import EarlyChild
from gpuconsole.engine.children.pool import SPARE_S
from gpuconsole.engine.children.serving import ServingChoice
from gpuconsole.engine.children.torchrun import Launch
from gpuconsole.engine.children.worker import WorkerGone, WorkerHandle
from gpuconsole.engine.engine import Engine
from gpuconsole.engine.job import ScreenJob
from gpuconsole.engine.run_control import RunControl
from gpuconsole.experiments.rate_watch import BaselineWatch, Keeps
from gpuconsole.experiments.traffic_trial import TrafficTrial
from gpuconsole.experiments.trial import (
    USUAL,
    LiveTrial,
    TrialLimits,
    cap_s,
    forecast_line,
    forecast_restart,
    least_s,
    noise_s,
    refusal,
)
from gpuconsole.experiments.tune import TUNE_S, TuningSession
from gpuconsole.experiments.watch_kept import EVERY_S, watch
from gpuconsole.model import units
from gpuconsole.model.certificate import Certificate
from gpuconsole.model.experiments import Forecast, Trial
from gpuconsole.model.finding import Interval
from gpuconsole.model.knobs.catalogue import Knobs, describe_changes
from gpuconsole.model.run import Run, RunState, Step
from gpuconsole.model.serving import LatencyBound
from gpuconsole.session.api import Busy, SessionApi, SessionError
from gpuconsole.session.run import LIVE_STEPS
from gpuconsole.session.state import SessionState
from gpuconsole.session.view import run_now
from gpuconsole.wire.events import AnyEvent, Note, TrialUpdate

SETTLE_S = 2.0
"""Seconds that the caller of a cancelled trial waits for the worker to return to its knobs. A
worker that hangs returns never."""


class LiveSession(Engine, SessionApi):
    """One live session. All methods run on one event loop, and none blocks it."""

    job: ScreenJob | None = None

    def __init__(
        self,
        interval_s: float = 1.0,
        device: str | None = None,
        *,
        price_per_hour: float | None = None,
        dcgm: str | None = None,
        keeps: Keeps = "chosen",
        nodes: Launch | None = None,
        serving: ServingChoice | None = None,
        spare_s: float = SPARE_S,
        sampler: EarlyChild | None = None,
    ) -> None:
        """`keeps`: which runs become baselines. The other arguments are those of Engine."""
        super().__init__(
            interval_s,
            device,
            price_per_hour=price_per_hour,
            dcgm=dcgm,
            nodes=nodes,
            serving=serving,
            spare_s=spare_s,
            sampler=sampler,
        )
        self.baselines = BaselineWatch(self.state, self.emit, keeps, self.snapshot)
        self.control.on_open.append(self.baselines.begin)
        self.control.on_close.append(self.baselines.ended)
        self.services.append(self.baselines.run)
        self.before_close.append(self.baselines.settled)
        self._trials = Trials(
            self.control, self.state, self.emit, serving.bounds if serving is not None else ()
        )
        self._tuning = TuningSession(self, self.emit)

    async def close(self) -> None:
        self._tuning.close()
        await super().close()

    # --- runs and changes: a tuning session ends before its run ends, and only the tuning session
    # changes the run meanwhile ---

    async def before_end(self) -> None:
        await self._tuning.finish()

    def check_free(self) -> None:
        self._tuning.check_free()

    async def end_run(self, state: RunState, error: str | None = None) -> None:
        await super().end_run(state, error)
        await self.settled()

    async def settled(self) -> None:
        """The run has ended: wait until its trial has ended too, until its kept change is judged,
        and until its baseline is written."""
        await self._trials.settled()
        await self.baselines.settled()

    # --- experiments ------------------------------------------------------------------------------

    async def try_change(
        self,
        changes: Knobs,
        predicted: Interval | None = None,
        *,
        keep: bool = True,
        limits: TrialLimits = USUAL,
    ) -> Trial:
        """See SessionApi. Without `keep` the change is only measured. `limits` are the longest
        times of an undecided trial."""
        self.check_free()
        return await self._trials.try_change(changes, predicted, keep=keep, limits=limits)

    async def keep_trial(self) -> Trial:
        self.check_free()
        return await self._trials.keep()

    def cancel_trial(self) -> None:
        self._trials.cancel()

    async def tune(self, budget_s: float = TUNE_S) -> Certificate:
        """See SessionApi. `budget_s`: seconds for the whole tuning session."""
        record, _ = self.control.running()
        if record.run.watched:
            raise SessionError(
                "a server that is only watched is not tuned: try one limit at a time"
            )
        if self.control.lock.changing:
            raise Busy("a trial, a change or a profile is under way: wait for its end")
        return await self._tuning.run(record.run.scenario, self.control.overrides, budget_s)

    def end_tuning(self) -> None:
        self._tuning.end()

    async def keep_baseline(self) -> str:
        return await self.baselines.keep()


class Trials:
    """Tries changes on the current run of `control`, one at a time."""

    def __init__(
        self,
        control: RunControl,
        state: SessionState,
        emit: Callable[[AnyEvent], None],
        objective: Sequence[LatencyBound] = (),
    ) -> None:
        """`objective`: the latencies of a watched server that the user wants kept."""
        self._control, self._state, self._emit, self._objective = control, state, emit, objective
        self._trial: LiveTrial | TrafficTrial | None = None
        self._asked: asyncio.Task[Trial] | None = None
        """The latest trial from the moment in which it was asked for."""
        self._work: asyncio.Task[Any] | None = None
        """The latest trial from its first moment to its report."""
        self._background = BackgroundTasks(emit)
        control.on_cancel.append(self._cancel_trial)

    async def try_change(
        self, changes: Knobs, predicted: Interval | None, *, keep: bool, limits: TrialLimits
    ) -> Trial:
        """Prove a change; keep it if it wins and `keep` is true. Raises SessionError.

        When the caller is cancelled, the trial is broken off. If the worker hangs, the trial ends
        only when the run is ended.
        """
        changes = self._control.check_trial(changes)
        work = self._asked = asyncio.create_task(self._run(changes, predicted, keep, limits))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            if work.cancelled():
                raise SessionError(
                    f"the trial of {describe_changes(changes)} was cancelled before it began"
                ) from None
            if self._trial is not None:
                self._trial.cancel()
            else:  # it waits for the end of a probe
                work.cancel()
            work.add_done_callback(lambda done: done.cancelled() or done.exception())
            await asyncio.wait([work], timeout=SETTLE_S)
            raise

    async def settled(self) -> None:
        """The run has ended: wait until its trial has reported its end, and until its kept change
        is judged. Any client may have started the trial."""
        if self._work is not None:
            await asyncio.wait([self._work], timeout=SETTLE_S)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._background.settled(), SETTLE_S)

    async def keep(self) -> Trial:
        """Keep the change of the last trial, which was a win and only measured. Raises
        SessionError."""
        record, _ = self._control.running()
        trial = next(reversed(self._state.trials.values()), None)
        if trial is None or trial.state == "running":
            raise SessionError("nothing to keep: no trial has ended")
        what = describe_changes(trial.changes)
        if trial.kept:
            raise SessionError(f"{what} is kept already")
        if trial.of_traffic:
            raise SessionError(
                f"{what}: restart the server with it; a server that is only watched keeps no change"
            )
        if trial.baseline_run != record.run.id:
            raise SessionError(f"{what} was measured before other settings changed: try it again")
        if not trial.worth_keeping:
            raise SessionError(
                f"only a proven win is kept, and the trial of {what} was none:"
                f" {trial.verdict or trial.state}"
            )
        await self._control.set_knobs(trial.changes)
        trial = msgspec.structs.replace(trial, kept=True)
        self._report(trial)
        return trial

    def cancel(self) -> None:
        """End the trial as cancelled: its change is reverted, and the run goes on. A trial that has
        not begun does not begin. Raises SessionError where there is none."""
        if self._trial is not None:
            self._trial.cancel()
        elif self._control.lock.asked and self._asked is not None:
            self._asked.cancel()
        else:
            raise SessionError("no trial runs")

    def _cancel_trial(self) -> None:
        if self._trial is not None:
            self._trial.cancel()

    async def _run(
        self, changes: Knobs, predicted: Interval | None, keep: bool, limits: TrialLimits
    ) -> Trial:
        control = self._control
        async with control.lock.change(changes):
            self._work = asyncio.current_task()
            record, worker = control.running()  # the run may have ended during a probe
            run = run_now(self._state, record)
            forecast = await self._forecast(run, worker, changes, predicted, limits)
            if forecast is not None:
                self._emit(Note(time.monotonic(), forecast_line(forecast, run.serves)))
            number, effect = str(len(self._state.trials) + 1), run.effect(changes)
            trial = Trial(
                number, run.id, changes, predicted=predicted, forecast=forecast, effect=effect
            )
            if run.watched:
                self._trial = TrafficTrial(
                    trial, run, record, worker, self._report, limits, self._objective
                )
            else:
                self._trial = LiveTrial(trial, run, control, self._report, keep=keep, limits=limits)
            try:
                outcome = await self._trial.run()
            finally:
                self._trial = None
            if outcome.lost:
                await control.fail(outcome.lost)
            elif outcome.trial.kept:
                before = record.steady_steps(LIVE_STEPS)
                control.keep({name: run.knobs[name] for name in changes}, changes)
                if not run.serves:
                    self._background.start(self._watch(outcome.trial, before))
            return outcome.trial

    async def _watch(self, trial: Trial, before: Sequence[Step]) -> None:
        """Withdraw the verdict of a kept change if its gain is gone in the minute after the trial,
        and take the change back if the run is slower than before. A change that was found slower at
        the end of its run is not kept either."""
        undo = self._control.undo
        after = await watch(trial, before, lambda: self._state.record)
        if after is trial or trial.speedup is None:
            return
        what = (
            f"{describe_changes(trial.changes)}: {after.reason}, but the trial measured"
            f" {units.measured(trial.speedup.estimate, trial.speedup.low, trial.speedup.high)}"
        )
        taken_back = after.verdict == "worse" and await self._take_back(undo)
        self._report(msgspec.structs.replace(after, kept=not taken_back, taken_back=taken_back))
        end = (
            "The change is taken back"
            if taken_back
            else "The verdict is withdrawn: take the change back, or measure it again"
        )
        self._emit(Note(time.monotonic(), f"{what}. {end}", "warning"))

    async def _take_back(self, undo: Knobs | None) -> bool:
        """Take the last change back that was kept, once no trial is under way. Return whether it
        is kept no longer: it is taken back, or its run has ended. `undo`: what goes back, if
        nothing else was kept since."""
        while undo:
            record = self._state.record
            if record is None or record.run.state != "running":
                return True
            if undo != self._control.undo:
                return False
            try:
                await self._control.revert()
            except Busy:
                await asyncio.sleep(EVERY_S)
            except SessionError:
                return False
            else:
                return True
        return False

    def _report(self, trial: Trial) -> None:
        self._control.lock.asked = {}
        self._emit(TrialUpdate(time.monotonic(), trial))

    async def _forecast(
        self,
        run: Run,
        worker: WorkerHandle,
        changes: Knobs,
        predicted: Interval | None,
        limits: TrialLimits,
    ) -> Forecast | None:
        """The forecast of a trial of slow steps, and of one that starts a second model server, as
        soon as the run has shown its noise; None for other trials.

        Raises SessionError if the run ends, or if the trial cannot resolve the predicted gain. A
        trial without a prediction is the user's own choice.
        """
        record = self._state.record
        assert record is not None
        if not run.serves:
            needed_s = least_s(changes, run)
            return Forecast(needed_s) if needed_s > cap_s(changes, limits) else None
        if run.applies_live(changes) or record.start_s is None:
            return None
        needed_s = noise_s(run, changes)
        try:
            with self._control.lock.showing("noise of the run"):
                while sum(step.wall_s for step in record.steps) < needed_s:
                    await worker.next_steps()
        except WorkerGone as gone:
            raise SessionError(str(gone)) from None
        forecast = forecast_restart(
            run_now(self._state, record),
            list(record.steps),
            changes,
            predicted,
            limits,
            record.start_s,
        )
        if predicted is not None and not forecast.resolves(predicted.middle - 1):
            raise SessionError(refusal(changes, forecast, predicted))
        return forecast
