"""The proven results of a tuning session, in a form that other people can check. The snapshot of
`tune` has them as `tuning`."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gpuconsole.model.experiments import Speedup, Trial
from gpuconsole.model.finding import Interval
from gpuconsole.model.knobs.catalogue import Knobs, show


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """A trial of a change that `rule` suggested. `knobs`: the knobs before the trial. `at_s`:
    seconds from the start of the session to the end of the trial."""

    rule: str
    knobs: Knobs
    trial: Trial
    code: str = ""
    at_s: float = 0.0


class LeftAlone(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change that promised a gain and was not tried. `why` names the option that allows it, where
    there is one."""

    rule: str
    changes: Knobs
    why: str
    predicted: Interval | None = None


class Certificate(msgspec.Struct, kw_only=True):
    """`start` and `end`: all settings before and after the session. `given`: the knobs that the
    user set. `only`: the knobs that the session was allowed to change; empty: all tunable knobs.
    `stopped`: why the session ended. `command_digest` is set for a job of the user's own:
    `scenario` is the name of its script then. `left_alone`: promising changes of the last diagnosis
    that were not tried, the best first.

    `proof` is one trial of all kept changes together. Its change goes from `end` back to `start`,
    so the total gain is 1 / its speedup. None where no change was kept, or where no time was left.
    """

    scenario: str
    device: str
    start: Knobs
    end: Knobs
    given: Knobs = {}
    only: list[str] = []
    attempts: list[Attempt] = []
    proof: Trial | None = None
    stopped: str = ""
    elapsed_s: float = 0.0
    command_digest: str = ""
    left_alone: list[LeftAlone] = []

    @property
    def gain(self) -> Speedup | None:
        """The gain of all kept changes together; None if no trial measured all changes together."""
        kept = [attempt.trial for attempt in self.attempts if attempt.trial.kept]
        if self.proof is not None and self.proof.speedup is not None:
            return self.proof.speedup.inverse
        single = len(kept) == 1 and self.proof is None and kept[0].holds
        return kept[0].speedup if single else None

    def with_later(self, trials: Iterable[Trial]) -> Certificate:
        """Return the certificate with what was found out about its kept changes after their
        trials. `trials`: the trials of the session, as they are now."""
        now = {(trial.id, trial.log_ratios): trial for trial in trials if trial.began_run}
        attempts = [
            msgspec.structs.replace(attempt, trial=_later(attempt.trial, now))
            for attempt in self.attempts
        ]
        proof = self.proof and _later(self.proof, now)
        gone = any(
            was.trial.kept and not attempt.trial.kept
            for was, attempt in zip(self.attempts, attempts, strict=True)
        )
        if not gone and proof is not None and proof == self.proof:
            return msgspec.structs.replace(self, attempts=attempts)
        end = dict(self.start)
        if proof is None or not proof.kept:
            for attempt in attempts:
                end |= attempt.trial.changes if attempt.trial.kept else {}
        # the trial of all changes together has measured the one that is gone too
        proof = None if gone else proof
        return msgspec.structs.replace(self, attempts=attempts, proof=proof, end=end)

    @property
    def flags(self) -> str:
        """The options that start the scenario with the settings of the end."""
        return " ".join(
            f"--set {name}={show(value)}" for name, value in {**self.given, **self.changed}.items()
        )

    @property
    def changed(self) -> Knobs:
        """The knobs whose values at the end differ from the start."""
        return {name: value for name, value in self.end.items() if self.start.get(name) != value}


def _later(trial: Trial, now: dict[tuple[str, tuple[float, ...]], Trial]) -> Trial:
    """Return `trial` with the fate that it has in `now`."""
    known = now.get((trial.id, trial.log_ratios), trial)
    return msgspec.structs.replace(
        trial,
        verdict=known.verdict,
        reason=known.reason,
        kept=known.kept,
        taken_back=known.taken_back,
    )


class Tuning(msgspec.Struct, frozen=True):
    """A tuning session for the screen. `certificate` is complete after every attempt."""

    certificate: Certificate
    budget_s: float
    under_way: bool
