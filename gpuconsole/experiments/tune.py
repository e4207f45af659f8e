"""A tuning session: wait for the diagnosis, try the change with the largest expected gain per
second, keep a proven change, and again, until none is worth another trial."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

import msgspec

from gpuconsole.diagnosis.engine import DiagnosisStatus, in_doubt, probes_waiting
from gpuconsole.diagnosis.rule import TRIAL_ERROR
from gpuconsole.experiments.statistics import MIN_EFFECT_BETWEEN_PROCESSES
from gpuconsole.experiments.trial import least_s
from gpuconsole.model.certificate import Attempt, Certificate, LeftAlone, Tuning
from gpuconsole.model.experiments import Trial
from gpuconsole.model.finding import CONFIDENCE_WEIGHT, Finding, Interval, Suggestion
from gpuconsole.model.job import CHANGES_NUMERICS, EFFECTS, LOADER, MAY_DIFFER, NUMERICS
from gpuconsole.model.knobs.catalogue import CATALOGUE, GROUPS, Knobs, show
from gpuconsole.model.run import Run
from gpuconsole.session.api import Busy, SessionApi, SessionError, View
from gpuconsole.wire.events import AnyEvent, TuningUpdate

# --- chooses the next trial of a tuning session ---------------------------------------------------

WORTH = 0.05
"""A change with a smaller predicted gain is not worth a trial: 5 % is the smallest gain that the
diagnosis benchmark counts as a cause."""
LIVE_S = 8.0
LOADER_S = 20.0
LIVE_SERVER_S = 20.0
RESTART_S = 40.0
SERVER_S = 60.0
"""Usual duration of a trial in seconds: in the running process; of a DataLoader; on a running model
server (MIN_PAIRS pairs of blocks of MIN_SERVING_BLOCK_S, and settling time); with a second worker;
with a second model server."""
UNPREDICTED = 0.5
"""Expected gain of a change without a prediction, as a share of the time at stake."""


class Allowed(NamedTuple):
    """What the user allows a session to try: changes of what the model learns per step; changes
    that alter the numbers of the user's own job; new workers of its DataLoader; changes of the
    knobs in `only` (empty: of all settings)."""

    training: bool = False
    numerics: bool = False
    loader: bool = False
    only: Collection[str] = ()


ALLOWED = Allowed()
"""What every session may try."""


class Candidate(msgspec.Struct, frozen=True):
    """A suggestion that may be tried. `gain`: expected gain of throughput (0.2: one fifth more);
    `worth`: gain times probability, per second of trial."""

    rule: str
    suggestion: Suggestion
    gain: float
    worth: float

    @property
    def changes(self) -> Knobs:
        return self.suggestion.changes


def candidates(
    run: Run, tried: Sequence[tuple[Knobs, Knobs]], allowed: Allowed = ALLOWED
) -> list[Candidate]:
    """The suggestions of the run's findings, each once, the best first. `tried`: pairs of the knobs
    at that time and the changes.

    Changes that may not be tried (see `barrier`) are excluded, and changes that promise too little
    (see `promising`).
    """
    return [
        candidate
        for candidate in promising(run, tried)
        if not barrier(run, candidate.changes, allowed)
    ]


def left_alone(
    run: Run, tried: Sequence[tuple[Knobs, Knobs]], allowed: Allowed = ALLOWED
) -> list[LeftAlone]:
    """The promising changes that may not be tried, the best first, each with the reason."""
    barred = [
        (candidate, barrier(run, candidate.changes, allowed)) for candidate in promising(run, tried)
    ]
    return [
        LeftAlone(candidate.rule, candidate.changes, why, candidate.suggestion.predicted_speedup)
        for candidate, why in barred
        if why
    ]


def barrier(run: Run, changes: Knobs, allowed: Allowed = ALLOWED) -> str:
    """Why a session may not try `changes`, with the option that allows it; empty where it may. The
    users of a model server decide its load."""
    if reason := run.why_not(changes):
        return reason
    load = {knob.name for knob in GROUPS["load"]}
    if name := next((name for name in changes if name in load), ""):
        return (
            f"the users of the server decide its load; --set {name}={show(changes[name])} starts"
            " with it"
        )
    if not allowed.training and any(CATALOGUE[name].changes_training for name in changes):
        return "it changes what the model learns per step; --allow-training-changes allows it"
    needed = run.permissions(changes)
    if not allowed.loader and LOADER in needed:
        return f"{EFFECTS[MAY_DIFFER]}; --allow-loader allows it (on the screen: N)"
    if not allowed.numerics and NUMERICS in needed:
        return (
            f"it changes numerics ({EFFECTS[CHANGES_NUMERICS]}); --allow-numerics allows it (on the"
            " screen: N)"
        )
    if missing := [name for name in changes if allowed.only and name not in allowed.only]:
        return f"--only leaves it out; --only {','.join([*allowed.only, *missing])} allows it"
    return ""


def promising(run: Run, tried: Sequence[tuple[Knobs, Knobs]]) -> list[Candidate]:
    """The suggestions of the run's findings, each once, the best first.

    Left out: changes that were tried under the same knobs; changes whose predicted gain is below
    WORTH, or too small for their trial to prove.
    """
    by_changes: dict[str, Candidate] = {}
    for finding in run.findings:
        if finding.state != "fires" or finding.resource != "time":
            continue
        for suggestion in finding.suggestions:
            if not suggestion.changes.keys() <= run.knobs.keys():
                continue  # not known in the user's own program
            if any(
                changes == suggestion.changes and before == run.knobs for before, changes in tried
            ):
                continue
            gain, most = promise(finding, suggestion.predicted_speedup)
            if most < (
                WORTH if run.applies_live(suggestion.changes) else MIN_EFFECT_BETWEEN_PROCESSES
            ):
                continue
            worth = gain * CONFIDENCE_WEIGHT[finding.confidence] / trial_s(suggestion.changes, run)
            key = repr(sorted(suggestion.changes.items()))
            if key not in by_changes or by_changes[key].worth < worth:
                by_changes[key] = Candidate(finding.rule, suggestion, gain, worth)
    return sorted(by_changes.values(), key=lambda candidate: -candidate.worth)


def promise(finding: Finding, predicted: Interval | None) -> tuple[float, float]:
    """Expected and largest gain of throughput that the model predicts, without the margin for the
    error of a trial."""
    if predicted is not None:
        model = Interval(predicted.low, max(predicted.low, predicted.high / (1 + TRIAL_ERROR)))
        return model.middle - 1, model.high - 1
    at_stake = min(0.95, finding.recoverable_ratio)
    most = at_stake / (1 - at_stake)
    return UNPREDICTED * most, most


def trial_s(changes: Knobs, run: Run) -> float:
    """Expected duration of a trial of `changes` to `run`: the usual duration, or more if blocks
    need many steps or slow steps."""
    return max(usual_s(changes, run), least_s(changes, run))


def usual_s(changes: Knobs, run: Run) -> float:
    """Usual duration of a trial of this kind."""
    knobs, live = [CATALOGUE[name] for name in changes], run.applies_live(changes)
    if any(knob.serving for knob in knobs):
        return LIVE_SERVER_S if live else SERVER_S
    if not live:
        return RESTART_S
    return LOADER_S if any(knob.loader for knob in knobs) else LIVE_S


def tunable_knobs(knobs: Iterable[str], allowed: Allowed = ALLOWED) -> set[str]:
    """The names in `knobs` that a tuning session may change."""
    load = {knob.name for knob in GROUPS["load"]}
    return {
        name
        for name in knobs
        if name not in load
        and (allowed.training or not CATALOGUE[name].changes_training)
        and (not allowed.only or name in allowed.only)
    }


# --- waits until the diagnosis of a run is final --------------------------------------------------

READ_EVERY_S = 0.25


async def until_diagnosed(
    api: SessionApi,
    enough: Callable[[], bool],
    seen: Callable[[View], None] = lambda view: None,
    tunable: Collection[str] = (),
) -> Run:
    """The run, as soon as its diagnosis is final (see `DiagnosisStatus`) or `enough` returns True.
    `seen` receives every state that was read.

    With `tunable`, only rules and probes for one of these knobs delay the result. Raises
    SessionError when the run ends.
    """
    standing = DiagnosisStatus(time.monotonic(), tunable)
    while True:
        await asyncio.sleep(READ_EVERY_S)
        view = api.view()
        run = view.run
        if run is None or run.state not in ("starting", "running"):
            raise SessionError(
                run.error or f"the run has {run.state}" if run else "nothing is running"
            )
        seen(view)
        if standing.evaluate(run, bool(view.probing), time.monotonic()) or (
            run.state != "starting" and enough()
        ):
            return run


# --- a tuning session -----------------------------------------------------------------------------

BUSY_S = 1.0
AT_ONCE = 1.1
"""A live change with at least this predicted speedup is tried immediately, before the probes have
answered, if its trial takes no longer than usual. Waiting for the probes would keep the run slow,
and probe results under the old setting would soon be outdated. A change with a smaller prediction
is tried after all probes."""
SEEN_S = 10.0
"""Minimum seconds of steady steps before a run counts as healthy, because checkpoints, evaluations
and ends of epochs are rare."""
MORE_BY_PROBES = "probes in the job may find more: --probe allows them (on the screen: P)"
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
        allow_loader: Callable[[], bool] = lambda: False,
        only: Collection[str] = (),
        on_change: Callable[[Certificate], None] = lambda certificate: None,
        resumed: Certificate | None = None,
    ) -> None:
        """`scenario`: the user's name or path of the scenario; `overrides`: the knobs that the user
        set. `allow_numerics`: whether the user now allows changes that alter the numbers of the
        user's own job; `allow_loader`: new workers of its DataLoader. `only`: the knobs that may
        change ((): all tunable knobs). `on_change` receives the certificate after every attempt.
        `resumed`: the certificate of an earlier session; its attempts are not repeated.
        """
        self._engine, self._budget_s = engine, budget_s
        self._allow_training, self._allow_numerics, self._allow_loader = (
            allow_training_changes,
            allow_numerics,
            allow_loader,
        )
        self._on_change = on_change
        self._begun = time.monotonic()
        run = engine.view().run
        assert run is not None
        self.certificate = (
            msgspec.structs.replace(resumed, proof=None, stopped="")
            if resumed
            else Certificate(
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
        """Tune until no change is worth another trial, or the budget is spent. Raises SessionError
        when the run ends on its own."""
        tunable = tunable_knobs(self.certificate.start, self._allowed)
        if not tunable:
            return await self._end(
                "none of these settings may change: they alter what the model learns per step"
                " (--allow-training-changes)"
            )
        self._engine.probe_only_for(tunable)
        try:
            return await self._search(tunable)
        finally:
            self._engine.probe_only_for(())

    async def _search(self, tunable: Collection[str]) -> Certificate:
        widened = False
        while True:
            self._look_again()
            run = await until_diagnosed(
                self._engine, lambda: self._enough(tunable), tunable=tunable
            )
            if not self.certificate.end.keys() <= run.knobs.keys():
                raise SessionError(f"{run.scenario} runs now")
            candidates = self._candidates(run)
            if not candidates and self._left_s() > LIVE_S:
                if run.steady_from_s is not None and run.duration_s - run.steady_from_s < SEEN_S:
                    continue
                if (more := self._training_knobs(run) - set(tunable)) and not widened:
                    widened = True
                    self._engine.probe_only_for({*tunable, *more})
                    await until_diagnosed(
                        self._engine, lambda: self._left_s() <= LIVE_S, tunable=more
                    )
                    self._engine.probe_only_for(tunable)
                    continue
                decided = run.steady_from_s is not None and any(
                    finding.state != "cant_tell" for finding in run.findings
                )
                return await self._end(
                    self._nothing_left(run)
                    if decided
                    else "the run never became steady: no diagnosis was possible"
                )
            fitting = [
                candidate
                for candidate in candidates
                if trial_s(candidate.changes, run) <= self._left_s()
            ]
            if not fitting:
                return await self._end(
                    f"the budget of {self._budget_s:.0f} s has no room for another trial"
                )
            await self._attempt(run, fitting[0])

    def _candidates(self, run: Run) -> list[Candidate]:
        return candidates(run, self._tried(), self._allowed)

    @property
    def _allowed(self) -> Allowed:
        return Allowed(
            self._allow_training,
            self._allow_numerics(),
            self._allow_loader(),
            self.certificate.only,
        )

    def _training_knobs(self, run: Run) -> set[str]:
        """The knobs that are excluded only because they alter training, and that a rule may still
        suggest after its probe."""
        only = self.certificate.only
        knobs = tunable_knobs(self.certificate.start, Allowed(True, only=only)) - tunable_knobs(
            self.certificate.start, Allowed(only=only)
        )
        return knobs if knobs and in_doubt(run, knobs) else set()

    def _nothing_left(self, run: Run) -> str:
        """The reason for the end of the search, and what the session could not find out without the
        user's permission."""
        other = "other" if left_alone(run, self._tried(), self._allowed) else "further"
        sentence = f"no {other} change is predicted to gain {WORTH * 100:g} %"
        return f"{sentence}; {MORE_BY_PROBES}" if probes_waiting(run) else sentence

    def _left_alone(self, run: Run) -> list[LeftAlone]:
        """What the session may not try, and what it has no time for."""
        remaining = left_alone(run, self._tried(), self._allowed)
        for candidate in self._candidates(run):
            needed_s = trial_s(candidate.changes, run)
            why = f"its trial takes about {needed_s:.0f} s; a larger --budget allows it"
            remaining.append(
                LeftAlone(
                    candidate.rule, candidate.changes, why, candidate.suggestion.predicted_speedup
                )
            )
        return remaining

    def _enough(self, tunable: Collection[str]) -> bool:
        """Whether the tuner can continue without a complete diagnosis: no time is left for a trial,
        or a known change is worth an immediate trial."""
        return self._left_s() <= LIVE_S or self._worth_at_once(tunable)

    def _worth_at_once(self, tunable: Collection[str]) -> bool:
        view = self._engine.view()
        run = view.run
        if (
            run is None
            or run.steady_from_s is None
            or "step_s" not in run.signals
            or run.serves
            or view.probing
        ):
            return False
        best = next(iter(self._candidates(run)), None)
        if best is None or not run.applies_live(best.changes):
            return False
        predicted = best.suggestion.predicted_speedup
        much = predicted is not None and predicted.low >= AT_ONCE
        return not in_doubt(run, tunable) or (
            much and trial_s(best.changes, run) <= usual_s(best.changes, run)
        )

    async def _attempt(self, run: Run, chosen: Candidate) -> None:
        try:
            trial = await self._engine.try_change(
                chosen.changes, chosen.suggestion.predicted_speedup
            )
        except Busy:  # a trial or a change by the user is in progress and will end
            await asyncio.sleep(BUSY_S)
            return
        except SessionError as refused:
            # this change is not possible here; continue with another change
            now = self._engine.view().run
            if now is None or now.state != "running":
                raise
            # it needs permission, as the attempt has shown: left alone
            if barrier(now, chosen.changes, self._allowed):
                return
            number = f"refused {len(self.certificate.attempts) + 1}"
            trial = Trial(
                number, run.id, chosen.changes, "failed", verdict="undecided", error=str(refused)
            )
        attempt = Attempt(
            chosen.rule, dict(run.knobs), trial, chosen.suggestion.code, round(self._elapsed_s(), 1)
        )
        self.certificate.attempts.append(attempt)
        if trial.kept:
            self.certificate.end = {**self.certificate.end, **trial.changes}
            self.certificate.proof = None
        self._report()

    async def _end(self, why: str) -> Certificate:
        """The last trial: all kept changes together, compared with the start."""
        self._look_again()
        self.certificate.stopped = why
        if (run := self._engine.view().run) is not None:
            self.certificate.left_alone = self._left_alone(run)
        back: Knobs = {name: self.certificate.start[name] for name in self.certificate.changed}
        kept = [attempt for attempt in self.certificate.attempts if attempt.trial.kept]
        # the trial of the only kept change has already measured the total gain
        if len(kept) == 1 and not self._earlier_s:
            back = {}
        run = self._engine.view().run
        if back and run is not None and self._left_s() >= trial_s(back, run):
            self.certificate.proof = proof = await self._engine.try_change(back)
            if proof.kept:
                self.certificate.end = dict(self.certificate.start)
                self.certificate.stopped += (
                    "; all changes together were slower than the start, so the start is in force"
                    " again"
                )
        self._report()
        return self.certificate

    def _tried(self) -> list[tuple[Knobs, Knobs]]:
        return [(attempt.knobs, attempt.trial.changes) for attempt in self.certificate.attempts]

    def _elapsed_s(self) -> float:
        return self._earlier_s + time.monotonic() - self._begun

    def _left_s(self) -> float:
        return self._budget_s - (time.monotonic() - self._begun)

    def _look_again(self) -> None:
        """Take over what was found out about kept changes after their trials."""
        self.certificate = self.certificate.with_later(self._engine.view().trials)

    def _report(self) -> None:
        self._look_again()
        self.certificate.elapsed_s = round(self._elapsed_s(), 1)
        self._on_change(msgspec.structs.replace(self.certificate))


class TuningSession:
    """Runs a Tuner for the engine: one session at a time. Every change of the session is emitted as
    an event."""

    def __init__(self, engine: SessionApi, emit: Callable[[AnyEvent], None]) -> None:
        self._engine, self._emit = engine, emit
        self._task: asyncio.Task[Certificate] | None = None

    async def run(self, scenario: str, overrides: Knobs, budget_s: float) -> Certificate:
        """Tune; returns the certificate, also after `end`. `overrides`: the knobs that the user set
        at the start. Raises SessionError."""
        self.check_free()
        tuner = Tuner(
            self._engine,
            scenario,
            budget_s,
            overrides=overrides,
            allow_numerics=lambda: (
                self._engine.job is not None and self._engine.job.allows_numerics
            ),
            allow_loader=lambda: self._engine.job is not None and self._engine.job.allows_loader,
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
        """Raises SessionError while a session is running, because only the session may change the
        run. A call by the session itself is allowed."""
        if self._task is not None and asyncio.current_task() is not self._task:
            raise SessionError("a tuning session is running: x on its screen (t) ends it")

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _report(self, certificate: Certificate, budget_s: float, under_way: bool) -> None:
        whole = msgspec.structs.replace(certificate, attempts=list(certificate.attempts))
        self._emit(TuningUpdate(time.monotonic(), Tuning(whole, budget_s, under_way)))
