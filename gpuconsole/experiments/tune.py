"""A tuning session: diagnose, try the most promising change, keep a proven change, diagnose again, until no change is worth another trial."""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import Callable, Collection

import msgspec

from gpuconsole import __version__
from gpuconsole.diagnosis.standing import in_doubt
from gpuconsole.experiments.choose import (
    LIVE_S,
    WORTH,
    Allowed,
    Candidate,
    barrier,
    candidates,
    left_alone,
    trial_s,
    tunable_knobs,
    usual_s,
)
from gpuconsole.experiments.until_diagnosed import until_diagnosed
from gpuconsole.model.experiments.certificate import Attempt, Certificate, LeftAlone, Tuning
from gpuconsole.model.experiments.trial import Trial
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.run import Run
from gpuconsole.report.facts import probes_waiting
from gpuconsole.session.api import Busy, SessionApi, SessionError
from gpuconsole.wire.events import AnyEvent, TuningUpdate

BUSY_S = 1.0
AT_ONCE = 1.1
"""A live change with at least this predicted speedup is tried immediately, before the probes have answered, if its trial takes no longer
than usual. Waiting for the probes would keep the run slow, and probe results under the old setting would soon be outdated. A change with
a smaller prediction is tried after all probes."""
SEEN_S = 10.0
"""Minimum seconds of steady steps before a run counts as healthy, because checkpoints, evaluations and ends of epochs are rare."""
MORE_BY_PROBES = "short experiments in the job may find more: --probe allows them (on the screen: P)"
TUNE_S = 300.0
"""Default length of a session in seconds: five to fifteen trials."""


class Tuner:
    """Tunes the run of a started engine. `certificate` is complete after every attempt."""

    def __init__(
        self,
        engine: SessionApi,
        scenario: str,
        budget_s: float,
        *,
        overrides: Knobs | None = None,
        allow_training_changes: bool = False,
        allow_numerics: Callable[[], bool] = lambda: False,
        only: Collection[str] = (),
        on_change: Callable[[Certificate], None] = lambda certificate: None,
        resumed: Certificate | None = None,
    ) -> None:
        """`scenario`: the user's name or path of the scenario; `overrides`: the knobs that the user set. `allow_numerics`: whether the user now
        allows changes that alter the numbers of the user's own job. `only`: the knobs that may change ((): all tunable knobs). `on_change` receives the certificate after every attempt. `resumed`: the certificate of an earlier session;
        its attempts are not repeated.
        """
        self._engine, self._budget_s = engine, budget_s
        self._allow_training, self._allow_numerics = allow_training_changes, allow_numerics
        self._on_change = on_change
        self._begun = time.monotonic()
        run = engine.view().run
        assert run is not None
        self.certificate = (
            msgspec.structs.replace(resumed, proof=None, stopped="")
            if resumed
            else Certificate(
                created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                gpuconsole=__version__,
                environment=engine.environment(),
                scenario=scenario,
                device=run.device,
                start=dict(run.knobs),
                end=dict(run.knobs),
                given=overrides or {},
                only=list(only),
            )
        )
        self._earlier_s = self.certificate.elapsed_s

    async def run(self) -> Certificate:
        """Tune until no change is worth another trial, or the budget is spent. Raises SessionError when the run ends on its own."""
        tunable = tunable_knobs(self.certificate.start, self._allowed)
        if not tunable:
            return await self._end("none of these knobs may change: they alter what the model learns per step (--allow-training-changes)")
        self._engine.probe_only_for(tunable)
        try:
            return await self._search(tunable)
        finally:
            self._engine.probe_only_for(())

    async def _search(self, tunable: Collection[str]) -> Certificate:
        widened = False
        while True:
            run = await until_diagnosed(self._engine, lambda: self._enough(tunable), tunable=tunable)
            if not self.certificate.end.keys() <= run.knobs.keys():
                raise SessionError(f"{run.scenario} runs now")
            found = self._candidates(run)
            if not found and self._left_s() > LIVE_S:
                if run.steady_from_s is not None and run.duration_s - run.steady_from_s < SEEN_S:
                    continue
                if (more := self._training_knobs(run) - set(tunable)) and not widened:
                    widened = True
                    self._engine.probe_only_for({*tunable, *more})
                    await until_diagnosed(self._engine, lambda: self._left_s() <= LIVE_S, tunable=more)
                    self._engine.probe_only_for(tunable)
                    continue
                known = run.steady_from_s is not None and any(one.state != "cant_tell" for one in run.findings)
                return await self._end(self._nothing_left(run) if known else "the run never became steady: no diagnosis was possible")
            fitting = [one for one in found if trial_s(one.changes, run) <= self._left_s()]
            if not fitting:
                return await self._end(f"the budget of {self._budget_s:.0f} s has no room for another trial")
            await self._attempt(run, fitting[0])

    def _candidates(self, run: Run) -> list[Candidate]:
        return candidates(run, self._tried(), self._allowed)

    @property
    def _allowed(self) -> Allowed:
        return Allowed(self._allow_training, self._allow_numerics(), self.certificate.only)

    def _training_knobs(self, run: Run) -> set[str]:
        """The knobs that are excluded only because they alter training, and that a rule may still suggest after its probe."""
        only = self.certificate.only
        knobs = tunable_knobs(self.certificate.start, Allowed(True, only=only)) - tunable_knobs(self.certificate.start, Allowed(only=only))
        return knobs if knobs and in_doubt(run, knobs) else set()

    def _nothing_left(self, run: Run) -> str:
        """The reason for the end of the search, and what the session could not find out without the user's permission."""
        other = "other" if left_alone(run, self._tried(), self._allowed) else "further"
        words = f"no {other} change is predicted to gain {WORTH * 100:g} %"
        return f"{words}; {MORE_BY_PROBES}" if probes_waiting(run) else words

    def _left_alone(self, run: Run) -> list[LeftAlone]:
        """What the session may not try, and what it has no time for."""
        found = left_alone(run, self._tried(), self._allowed)
        for one in self._candidates(run):
            needed_s = trial_s(one.changes, run)
            why = f"its trial takes about {needed_s:.0f} s; a larger --budget allows it"
            found.append(LeftAlone(one.rule, one.changes, why, one.suggestion.predicted_speedup))
        return found

    def _enough(self, tunable: Collection[str]) -> bool:
        """Whether the tuner can continue without a complete diagnosis: no time is left for a trial, or a known change is worth an immediate trial."""
        return self._left_s() <= LIVE_S or self._worth_at_once(tunable)

    def _worth_at_once(self, tunable: Collection[str]) -> bool:
        view = self._engine.view()
        run = view.run
        if run is None or run.steady_from_s is None or "step_s" not in run.signals or run.serves or view.probing:
            return False
        best = next(iter(self._candidates(run)), None)
        if best is None or not run.applies_live(best.changes):
            return False
        predicted = best.suggestion.predicted_speedup
        much = predicted is not None and predicted.low >= AT_ONCE
        return not in_doubt(run, tunable) or (much and trial_s(best.changes, run) <= usual_s(best.changes, run))

    async def _attempt(self, run: Run, chosen: Candidate) -> None:
        try:
            trial = await self._engine.try_change(chosen.changes, chosen.suggestion.predicted_speedup)
        except Busy:  # a trial or a change by the user is in progress and will end
            await asyncio.sleep(BUSY_S)
            return
        except SessionError as refused:  # this change is not possible here; continue with another change
            now = self._engine.view().run
            if now is None or now.state != "running":
                raise
            if barrier(now, chosen.changes, self._allowed):  # it needs permission, as the attempt has shown: left alone
                return
            number = f"refused {len(self.certificate.attempts) + 1}"
            trial = Trial(number, run.id, chosen.changes, "failed", verdict="undecided", error=str(refused))
        attempt = Attempt(chosen.rule, dict(run.knobs), trial, chosen.suggestion.code, round(self._elapsed_s(), 1))
        self.certificate.attempts.append(attempt)
        if trial.kept:
            self.certificate.end = {**self.certificate.end, **trial.changes}
            self.certificate.proof = None
        self._report()

    async def _end(self, why: str) -> Certificate:
        """The last trial: all kept changes together, compared with the start."""
        self.certificate.stopped = why
        if (run := self._engine.view().run) is not None:
            self.certificate.left_alone = self._left_alone(run)
        back: Knobs = {name: self.certificate.start[name] for name in self.certificate.changed}
        kept = [one for one in self.certificate.attempts if one.trial.kept]
        if len(kept) == 1 and not self._earlier_s:  # the trial of the only kept change has already measured the total gain
            back = {}
        run = self._engine.view().run
        if back and run is not None and self._left_s() >= trial_s(back, run):
            self.certificate.proof = proof = await self._engine.try_change(back)
            if proof.kept:
                self.certificate.end = dict(self.certificate.start)
                self.certificate.stopped += "; all changes together were slower than the start, so the start is in force again"
        self._report()
        return self.certificate

    def _tried(self) -> list[tuple[Knobs, Knobs]]:
        return [(one.knobs, one.trial.changes) for one in self.certificate.attempts]

    def _elapsed_s(self) -> float:
        return self._earlier_s + time.monotonic() - self._begun

    def _left_s(self) -> float:
        return self._budget_s - (time.monotonic() - self._begun)

    def _report(self) -> None:
        self.certificate.elapsed_s = round(self._elapsed_s(), 1)
        self._on_change(msgspec.structs.replace(self.certificate))


class TuningSession:
    """Runs a Tuner for the engine: one session at a time. Every change of the session is emitted as an event."""

    def __init__(self, engine: SessionApi, emit: Callable[[AnyEvent], None]) -> None:
        self._engine, self._emit = engine, emit
        self._task: asyncio.Task[Certificate] | None = None

    async def run(self, scenario: str, overrides: Knobs, budget_s: float) -> Certificate:
        """Tune; returns the certificate, also after `end`. `overrides`: the knobs that the user set at the start. Raises SessionError."""
        self.check_free()
        tuner = Tuner(
            self._engine,
            scenario,
            budget_s,
            overrides=overrides,
            allow_numerics=lambda: self._engine.job is not None and self._engine.job.allows_numerics,
            on_change=lambda certificate: self._report(certificate, budget_s, True),
        )
        self._report(tuner.certificate, budget_s, True)
        self._task = task = asyncio.create_task(tuner.run())
        try:
            await asyncio.wait([task])
            if task.cancelled():
                tuner.certificate.stopped = "ended by hand"
            elif (error := task.exception()) is not None:
                tuner.certificate.stopped = str(error)
                raise error
            return tuner.certificate
        finally:
            task.cancel()
            self._task = None
            self._report(tuner.certificate, budget_s, False)

    def end(self) -> None:
        """Raises SessionError if no session is running."""
        if self._task is None:
            raise SessionError("no tuning session is running")
        if not self._task.cancelling():
            self._task.cancel()

    async def finish(self) -> None:
        """End the session, if there is one, and wait for its end. Call this before the run ends."""
        if self._task is not None:
            self.end()
            await asyncio.wait([self._task])

    def check_free(self) -> None:
        """Raises SessionError while a session is running, because only the session may change the run. A call by the session itself is allowed."""
        if self._task is not None and asyncio.current_task() is not self._task:
            raise SessionError("a tuning session is running: x on its screen (t) ends it")

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _report(self, certificate: Certificate, budget_s: float, under_way: bool) -> None:
        whole = msgspec.structs.replace(certificate, attempts=list(certificate.attempts))
        self._emit(TuningUpdate(time.monotonic(), Tuning(whole, budget_s, under_way)))
