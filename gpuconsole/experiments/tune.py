"""A tuning session: diagnose, try what promises most, keep what is proven, diagnose again, until nothing is worth another trial."""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import Callable, Collection
from typing import Protocol

import msgspec

from gpuconsole import __version__
from gpuconsole.diagnosis.standing import in_doubt
from gpuconsole.experiments.choose import HOT_S, Candidate, candidates, in_place, trial_s, tunable_knobs, usual_s
from gpuconsole.experiments.until_diagnosed import until_diagnosed
from gpuconsole.model.experiments.certificate import Attempt, Certificate, Tuning
from gpuconsole.model.experiments.trial import Trial
from gpuconsole.model.finding import Interval
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.run import Run
from gpuconsole.model.snapshot import Environment
from gpuconsole.session.api import Busy, SessionError, View
from gpuconsole.wire.events import AnyEvent, TuningUpdate

BUSY_S = 1.0
AT_ONCE = 1.1
"""A change in place that promises this much at the least is tried at once, if that takes no longer than most: while the probes answered, the run
would go on that much slower, and of a setting that is about to go they would tell little. One that promises less is once no probe is waited for."""
LOOKED_S = 10.0
"""Seconds of steady steps without which nothing is taken to be all right: checkpoints, evaluations and ends of epochs are rare."""
TUNE_S = 300.0
"""Seconds of a session, where nobody says how many: five to fifteen trials."""


class Tunes(Protocol):
    """What a tuner needs of the engine."""

    def view(self) -> View: ...

    def environment(self) -> Environment: ...

    def probe_only_for(self, knobs: Collection[str]) -> None: ...

    async def try_change(self, changes: Knobs, predicted: Interval | None = None) -> Trial: ...


class Tuner:
    """Works on an engine on which a run has been started. `certificate` is whole after every attempt."""

    def __init__(
        self,
        engine: Tunes,
        scenario: str,
        budget_s: float,
        *,
        given: Knobs | None = None,
        allow_training_changes: bool = False,
        only: Collection[str] = (),
        on_change: Callable[[Certificate], None] = lambda certificate: None,
        resumed: Certificate | None = None,
    ) -> None:
        """`scenario` as it was asked for: a name or a path, with the knobs `given`. `only`: the knobs that may be turned, where not all may.

        `on_change` hears of every attempt. `resumed`: a session that was broken off; its attempts are not made again.
        """
        self._engine, self._budget_s, self._allow = engine, budget_s, allow_training_changes
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
                given=given or {},
                only=list(only),
            )
        )
        self._earlier_s = self.certificate.elapsed_s

    async def run(self) -> Certificate:
        """Until nothing is worth another trial, or the budget is used up. Raises SessionError when the run ends by itself."""
        tunable = tunable_knobs(self.certificate.start, self._allow, self.certificate.only)
        if not tunable:
            return await self._end("none of these knobs may be turned: they change what is learnt per step")
        self._engine.probe_only_for(tunable)
        try:
            return await self._search(tunable)
        finally:
            self._engine.probe_only_for(())

    async def _search(self, tunable: Collection[str]) -> Certificate:
        while True:
            run = await until_diagnosed(self._engine, lambda: self._enough(tunable), tunable=tunable)
            if not self.certificate.end.keys() <= run.knobs.keys():
                raise SessionError(f"{run.scenario} runs now")
            found = self._candidates(run)
            if not found and self._left_s() > HOT_S:
                if run.steady_from_s is not None and run.duration_s - run.steady_from_s < LOOKED_S:
                    continue  # and looks again
                known = run.steady_from_s is not None and any(one.state != "cant_tell" for one in run.findings)
                left = "nothing that is left promises 5 %" + (" with these knobs" if self.certificate.only else "")
                return await self._end(left if known else "it never became steady: nothing could be diagnosed")
            fitting = [one for one in found if trial_s(one.changes, run) <= self._left_s()]
            if not fitting:
                return await self._end(f"the budget of {self._budget_s:.0f} s has no room for another trial")
            await self._attempt(run, fitting[0])

    def _candidates(self, run: Run) -> list[Candidate]:
        return candidates(run, self._tried(), self._allow, self.certificate.only)

    def _enough(self, tunable: Collection[str]) -> bool:
        """Whether the rest is not waited for: there is no time for a trial anyway, or what is known by now is worth one at once."""
        return self._left_s() <= HOT_S or self._worth_at_once(tunable)

    def _worth_at_once(self, tunable: Collection[str]) -> bool:
        view = self._engine.view()
        run = view.run
        if run is None or run.steady_from_s is None or "step_s" not in run.signals or run.serves or view.probing:
            return False
        best = next(iter(self._candidates(run)), None)
        if best is None or not in_place(best.changes):
            return False
        predicted = best.suggestion.predicted_speedup
        much = predicted is not None and predicted.low >= AT_ONCE
        return not in_doubt(run, tunable) or (much and trial_s(best.changes, run) <= usual_s(best.changes))

    async def _attempt(self, run: Run, chosen: Candidate) -> None:
        try:
            trial = await self._engine.try_change(chosen.changes, chosen.suggestion.predicted_speedup)
        except Busy:  # by somebody at the keys: it will end
            await asyncio.sleep(BUSY_S)
            return
        except SessionError as refused:  # this change cannot be had here; another may
            now = self._engine.view().run
            if now is None or now.state != "running":
                raise
            number = f"refused {len(self.certificate.attempts) + 1}"
            trial = Trial(number, run.id, chosen.changes, "failed", verdict="undecided", error=str(refused))
        attempt = Attempt(chosen.rule, dict(run.knobs), trial, chosen.suggestion.code, round(self._elapsed_s(), 1))
        self.certificate.attempts.append(attempt)
        if trial.kept:
            self.certificate.end = {**self.certificate.end, **trial.changes}
            self.certificate.proof = None
        self._tell()

    async def _end(self, why: str) -> Certificate:
        """The last word: all that was kept against the start, in turn."""
        self.certificate.stopped = why
        back: Knobs = {name: self.certificate.start[name] for name in self.certificate.changed}
        kept = [one for one in self.certificate.attempts if one.trial.kept]
        if len(kept) == 1 and not self._earlier_s:  # its own trial has shown just that
            back = {}
        run = self._engine.view().run
        if back and run is not None and self._left_s() >= trial_s(back, run):
            self.certificate.proof = proof = await self._engine.try_change(back)
            if proof.kept:
                self.certificate.end = dict(self.certificate.start)
                self.certificate.stopped += "; all together it was slower than the start, which stands again"
        self._tell()
        return self.certificate

    def _tried(self) -> list[tuple[Knobs, Knobs]]:
        return [(one.knobs, one.trial.changes) for one in self.certificate.attempts]

    def _elapsed_s(self) -> float:
        return self._earlier_s + time.monotonic() - self._begun

    def _left_s(self) -> float:
        return self._budget_s - (time.monotonic() - self._begun)

    def _tell(self) -> None:
        self.certificate.elapsed_s = round(self._elapsed_s(), 1)
        self._on_change(msgspec.structs.replace(self.certificate))


class TuningSession:
    """Drives a Tuner for the engine."""

    def __init__(self, engine: Tunes, emit: Callable[[AnyEvent], None]) -> None:
        self._engine, self._emit = engine, emit
        self._task: asyncio.Task[Certificate] | None = None

    async def run(self, scenario: str, given: Knobs, budget_s: float) -> Certificate:
        """What was proven; also where it was ended by hand. `given`: with which knobs the run was started. Raises SessionError."""
        self.check_free()
        tuner = Tuner(self._engine, scenario, budget_s, given=given, on_change=lambda certificate: self._tell(certificate, budget_s, True))
        self._tell(tuner.certificate, budget_s, True)
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
            self._tell(tuner.certificate, budget_s, False)

    def end(self) -> None:
        """Raises SessionError where there is none."""
        if self._task is None:
            raise SessionError("no tuning session is under way")
        if not self._task.cancelling():
            self._task.cancel()

    async def finish(self) -> None:
        """End it, if there is one, before its run does."""
        if self._task is not None:
            self.end()
            await asyncio.wait([self._task])

    def check_free(self) -> None:
        """Raises SessionError where a session is under way, unless it is the session that asks: what it proves must be what is in force."""
        if self._task is not None and asyncio.current_task() is not self._task:
            raise SessionError("a tuning session is under way: x on its screen (t) ends it")

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _tell(self, certificate: Certificate, budget_s: float, under_way: bool) -> None:
        whole = msgspec.structs.replace(certificate, attempts=list(certificate.attempts))
        self._emit(TuningUpdate(time.monotonic(), Tuning(whole, budget_s, under_way)))
