"""The three sentences at the head of a report: what was slow, what it cost, and what fixed it."""

from __future__ import annotations

from typing import NamedTuple

from gpuconsole.diagnosis.claims import unexplained
from gpuconsole.diagnosis.engine import still_open, why_no_claim
from gpuconsole.model import units
from gpuconsole.model.experiments import Speedup, Sweep, Trial
from gpuconsole.model.finding import Finding
from gpuconsole.model.knobs.catalogue import Knobs, describe_changes, in_words
from gpuconsole.model.run import Run
from gpuconsole.model.snapshot import Snapshot
from gpuconsole.report.cells import Segment
from gpuconsole.report.experiments import (
    CHANGES_TRAINING,
    NO_CAUSE,
    measured,
    promised,
    setting,
    verdict,
)
from gpuconsole.report.run.diagnosis import failure, recoverable, sentence, stake
from gpuconsole.report.run.figures import client_title, doubtful, served
from gpuconsole.report.run.runs import rates_differ
from gpuconsole.report.share.document import StoryAnswer
from gpuconsole.session import facts


class RunChain(NamedTuple):
    """A run, the runs that continue it with changed knobs, and the trials on all of them."""

    runs: tuple[Run, ...]
    trials: tuple[Trial, ...]

    @property
    def first(self) -> Run:
        return self.runs[0]

    @property
    def last(self) -> Run:
        return self.runs[-1]

    @property
    def title(self) -> str:
        return (
            client_title(self.first)
            if self.first.client
            else f"{self.first.scenario} {self.first.place}"
        )

    def knobs_before(self, trial: Trial) -> Knobs:
        """The knobs of the run that a trial started from."""
        return next((run.knobs for run in self.runs if run.id == trial.baseline_run), {})

    def change(self, trial: Trial) -> str:
        """`num_workers 0 -> 4`."""
        return describe_changes(trial.changes, self.knobs_before(trial))

    @property
    def proof(self) -> Trial | None:
        """See `facts.proof`."""
        return facts.proof(self.runs, self.trials)

    @property
    def gain(self) -> Speedup | None:
        """The gain of all kept changes together, measured in one trial. None where no trial
        measured it."""
        if self.proof is not None:
            return self.proof.speedup.inverse if self.proof.speedup else None
        kept = [trial for trial in self.trials if trial.kept]
        return kept[0].speedup if len(kept) == 1 and kept[0].holds else None

    @property
    def apart(self) -> str:
        """Why the rates of the first and the last run do not have the ratio that `gain` names;
        empty where they do. See `rates_differ`."""
        trial = self.proof or next((trial for trial in self.trials if trial.kept), None)
        return (
            rates_differ(self.gain, self.first, self.last, trial.clock) if trial is not None else ""
        )


def chains(snapshot: Snapshot) -> list[RunChain]:
    """The runs of a session, divided where a run does not continue the run before it."""
    groups: list[list[Run]] = []
    for run in snapshot.runs:
        if groups and facts.continues(run, groups[-1][-1]):
            groups[-1].append(run)
        else:
            groups.append([run])
    return [RunChain(tuple(runs), _trials(snapshot, {run.id for run in runs})) for runs in groups]


def _trials(snapshot: Snapshot, runs: set[str]) -> tuple[Trial, ...]:
    return tuple(trial for trial in snapshot.trials if trial.baseline_run in runs)


def cause(chain: RunChain) -> Finding | None:
    """The finding of the first run that the first kept change cured; else the finding that the
    diagnosis ranked first."""
    firing = facts.firing(chain.first)
    kept = next(
        (trial for trial in chain.trials if trial.kept and trial.baseline_run == chain.first.id),
        None,
    )
    cured = (
        finding
        for finding in firing
        if kept and any(suggestion.changes == kept.changes for suggestion in finding.suggestions)
    )
    return next(cured, firing[0] if firing else None)


def answer(chain: RunChain) -> StoryAnswer:
    """The answer of a chain of runs."""
    run, finding = chain.first, cause(chain)
    fixes = _fixes(chain)
    if chain.last.state == "failed":
        return StoryAnswer(f"Run {chain.last.id} {failure(chain.last)}", "", fixes, "alert")
    kept = next((trial for trial in chain.trials if trial.kept), None)
    if finding is None and kept is not None:
        return StoryAnswer(
            f"{sentence(in_words(kept.changes))}: {measured(kept)}  {verdict(kept)}",
            "no rule had named the cause",
            fixes,
            "good",
        )
    if (
        (finding is None or finding.note)
        and (gap := unexplained(run)) is not None
        and run.steady_from_s is not None
    ):
        return StoryAnswer(gap.words, f"possible causes: {gap.fits}", fixes, "wait")
    if finding is None or still_open(run):
        why = why_no_claim(run)
        if run.client and not doubtful(run):
            return StoryAnswer(served(run), why, fixes)
        if why:
            return StoryAnswer(f"No conclusion: {why}", "", fixes, "alert")
        return StoryAnswer("No rule found time that can be recovered", "", fixes, "good")
    return StoryAnswer(
        finding.title,
        _cost(finding, run),
        fixes or _untried(finding, run),
        "good" if finding.note else "wait",
    )


def _cost(finding: Finding, run: Run) -> str:
    """`54 % recoverable: 89.1 of the 165 ms of each step`."""
    return ": ".join(filter(None, (stake(finding), recoverable(finding, run))))


def _fixes(chain: RunChain) -> list[list[Segment]]:
    """One row for each trial, the kept changes first; then the gain of all kept changes, where one
    trial measured it."""
    tried = [trial for trial in chain.trials if trial is not chain.proof]
    rows = [_outcome(chain, trial) for trial in sorted(tried, key=lambda trial: not trial.kept)]
    if chain.proof is not None and (gain := chain.gain) is not None:
        total = units.measured(gain.estimate, gain.low, gain.high)
        rows.append(
            [
                ("all kept changes together", "title"),
                ("  ", ""),
                (total, "good"),
                ("  against the start", ""),
            ]
        )
    return rows


def _outcome(chain: RunChain, trial: Trial) -> list[Segment]:
    style = "good" if trial.holds else ""
    outcome = (
        (trial.error or NO_CAUSE)
        if trial.state == "failed"
        else measured(trial)
        if trial.speedup
        else ""
    )
    row = [
        *_change(trial.changes, chain.change(trial)),
        (f"  {outcome}" if outcome else "", style),
        (f"  {verdict(trial)}", style),
    ]
    return [*row, (f"  {CHANGES_TRAINING}", "dim")] if trial.changes_training else row


def _change(changes: Knobs, flags: str) -> list[Segment]:
    """`use 4 DataLoader workers (num_workers 0 -> 4)`."""
    return [(in_words(changes), "title"), (f" ({flags})", "")]


def _untried(finding: Finding, run: Run) -> list[list[Segment]]:
    """The first suggestion, where no trial belongs to the story."""
    if not finding.suggestions:
        return []
    first = finding.suggestions[0]
    return [
        [
            ("" if first.tried is not None else "not tried: ", ""),
            (describe_changes(first.changes, run.settings), "title"),
            (f"  {promised(first)}", ""),
        ]
    ]


def sweep_answer(sweep: Sweep) -> StoryAnswer:
    """The best setting of a sweep, and whether it is proven."""
    best = sweep.best
    if best is None or best.mean is None:
        return StoryAnswer(f"No setting of {sweep.scenario} could be measured", style="alert")
    rate = f"{units.spread(best.mean, best.std, 0)} {sweep.unit}"
    if sweep.rivals:
        others = ", ".join(setting(rival, sweep.varied) for rival in sweep.rivals)
        return StoryAnswer(
            f"{setting(best, sweep.varied)} has the highest rate: not proven",
            f"{rate}; {others} may be the best too",
            style="wait",
        )
    if sweep.stalls_from > 1:
        rate += f"; too short to see a stall rarer than one in {sweep.stalls_from} steps"
    return StoryAnswer(
        f"{setting(best, sweep.varied)} is the best of {len(sweep.points)} settings",
        rate,
        style="good",
    )
