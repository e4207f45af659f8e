"""Experiments as plain data: a trial (a change measured against the present settings, in paired
blocks) and a sweep (throughput at several values of knobs)."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Sequence
from typing import Literal

import msgspec

from gpuconsole.model.finding import Finding, Interval, Suggestion, Tried
from gpuconsole.model.knobs.catalogue import Knobs

# --- a trial --------------------------------------------------------------------------------------

Verdict = Literal["win", "no_gain", "worse", "undecided"]
MAX_PERPLEXITY_COST = 0.05
"""A change that raises perplexity by more than 5 % is not kept."""
MAX_LOSS_RISE = 0.05
"""The upper end of the rise of the loss that a change is kept with, its noise included.
train-doctor allows 5 %."""
NOT_FINITE = "the loss is not finite"
"""The reason of a verdict, if the loss is NaN or infinite."""
MAX_LOSS_COST = 0.02
"""A change of numerics that raises the loss by more than 2 % is not kept. bf16 instead of fp32
raises the loss by some tenths of a percent."""
Clock = Literal["wall", "contention_free"]
TrialState = Literal["running", "done", "failed", "cancelled"]
Method = Literal["live ABBA", "live traffic", "two workers ABBA", "restarts ABBA"]
"""Both sides in one process, or each side in a separate process. `live traffic`: in one server,
under the load of its own clients. The names are those of files of earlier versions, whose blocks
had the order ABBA: see `Trial.way`."""


class Forecast(msgspec.Struct, frozen=True):
    """What a trial will take and what it can show. `seconds`: from its start to its verdict.
    `resolution_ratio`: the smallest change of throughput that it can tell from noise within its
    time limit; None while the noise of the run is unknown."""

    seconds: float
    resolution_ratio: float | None = None

    def resolves(self, gain_ratio: float) -> bool:
        """Whether the trial can tell a gain of this size from noise; true where the noise is
        unknown."""
        return self.resolution_ratio is None or gain_ratio >= self.resolution_ratio


class Speedup(msgspec.Struct, frozen=True):
    """Throughput with the change divided by throughput without the change, with its 95 %
    interval."""

    estimate: float
    low: float
    high: float

    @property
    def inverse(self) -> Speedup:
        """The gain of the opposite change."""
        return Speedup(1 / self.estimate, 1 / self.high, 1 / self.low)


class Perplexity(msgspec.Struct, frozen=True):
    """Perplexity of the same fixed text, without and with the change."""

    before: float
    after: float

    @property
    def cost_ratio(self) -> float:
        """How much worse the change makes the model, as a share; below 0: better."""
        return self.after / self.before - 1

    @property
    def too_high(self) -> bool:
        return not self.cost_ratio <= MAX_PERPLEXITY_COST  # true for nan too


class HeldOutLoss(msgspec.Struct, frozen=True, omit_defaults=True):
    """Loss of the same held-out batches, without and with the change; the progress of the training
    between the two measurements is subtracted. `drift`: half of the 95 % interval of the
    difference. `training`: the losses are instead those of a user's job on its own training
    batches."""

    before: float
    after: float
    drift: float = 0.0
    training: bool = False

    @property
    def cost_ratio(self) -> float | None:
        """How much worse the change makes the model, as a share; below 0: better. A loss may be
        negative. None for a loss of 0."""
        return (self.after - self.before) / abs(self.before) if self.before else None

    @property
    def too_high(self) -> bool:
        # true for nan too
        return not self.after - self.before <= MAX_LOSS_COST * abs(self.before)

    @property
    def too_noisy(self) -> bool:
        """Whether the loss may have risen by more than MAX_LOSS_RISE within its noise: no proof of
        harm is no proof of its absence."""
        return not self.after - self.before + self.drift <= MAX_LOSS_RISE * abs(self.before)


Meets = Literal["yes", "no", "unknown"]
Range = tuple[float, float | None]


class BoundMeasured(msgspec.Struct, frozen=True):
    """A bound of the user's objective (`ttft_p99`, at most `limit_s`) on both sides of a trial.
    `before_s`, `after_s`: the figure without and with the change, as far as the server's histogram
    tells: the bounds of its bucket, of which the upper one may be open; None where nothing was
    counted. `unknown`: the interval, or the bucket, has the limit inside."""

    name: str
    limit_s: float
    before_s: Range | None
    after_s: Range | None
    before_meets: Meets
    after_meets: Meets


class Trial(msgspec.Struct, frozen=True, omit_defaults=True):
    """Paired blocks of baseline and changed steps.

    `log_ratios`: one value per pair of blocks, log(changed rate / baseline rate) as
    `statistics.Pairs` takes it, on `clock`: `contention_free` subtracts the run-queue delay of the
    training thread, `wall` does not. `wall_speedup`: the same trial on the wall clock.
    `null_log_ratios`: the log ratios of successive blocks of the same side, which show the noise of
    this machine. `between`: the standard deviation of the log ratio between two sides with the same
    settings; it is part of the intervals. `resolution_ratio`: the smallest effect that this number
    of pairs can distinguish from noise. `perplexity` (model server) and `held_out_loss` (training)
    are measured where the change alters them; `checked` is false where the loss could not be
    measured. `effect`: what the change does to the numbers of a user's own job
    (`model.job.EFFECTS`). `forecast`: known before the start of a trial of slow steps, or of one
    that starts a second model server. `limit_s`: the longest time of the measurement, for
    `elapsed_s`. `begun_s`, `ended_s`: session times of the start and the end of the trial; only in
    a snapshot. `order_seed`: from it follow the order of the two sides in each pair and the lengths
    of the blocks (`block_order.order`); None in trials with the fixed order A B, B A of earlier
    versions. `spread_s`: seconds of evaluations and checkpoints of a user's own program in the
    blocks. Each step has their mean on its side in their place (`blocks.Events`). `unseen`: the
    phases of such events that take time and did not come on both sides: the trial is undecided if
    they could use up the gain. `after_switch`: the steps soon after a switch take another time than
    later ones, so only the last third of each block counts; `lasting`: this difference lasts longer
    than a third of a block, so the trial is undecided. `reason`: the reason of a verdict that does
    not follow from the pairs. `taken_back`: the change was kept, and is not kept any more, because
    the run was slower with it. `step_deviation`: the standard deviation of a pair according to the
    steps within the blocks; the intervals use at least this deviation. `stalls_from`: the trial
    would have seen a stall in one of this number of steps, or a more frequent stall, on both sides;
    0: not known. `by_steps`: the rates are steps per second, because the number of samples in a
    step is not known. Of a trial under the traffic of a server's own clients: `figure` is the name
    of what `speedup` is about, `effects` are those of the other figures (more is better: latencies
    are inverted), and `load_ratio` is the load with the change over that without it. `objective`:
    the bounds that the user wants kept (`--slo`).
    """

    id: str
    baseline_run: str
    changes: Knobs
    state: TrialState = "running"
    speedup: Speedup | None = None
    wall_speedup: Speedup | None = None
    blocks: int = 0
    predicted: Interval | None = None
    verdict: Verdict | None = None
    kept: bool = False
    taken_back: bool = False
    clock: Clock = "wall"
    method: Method = "live ABBA"
    between: float = 0.0
    log_ratios: tuple[float, ...] = ()
    null_log_ratios: tuple[float, ...] = ()
    resolution_ratio: float | None = None
    elapsed_s: float = 0.0
    error: str | None = None
    changes_training: bool = False
    perplexity: Perplexity | None = None
    held_out_loss: HeldOutLoss | None = None
    forecast: Forecast | None = None
    checked: bool = True
    begun_s: float | None = None
    ended_s: float | None = None
    limit_s: float | None = None
    effect: str = ""
    order_seed: int | None = None
    spread_s: float = 0.0
    unseen: tuple[str, ...] = ()
    after_switch: bool = False
    lasting: bool = False
    reason: str = ""
    step_deviation: float = 0.0
    stalls_from: int = 0
    by_steps: bool = False
    figure: str = ""
    effects: dict[str, Speedup] = {}
    load_ratio: float | None = None
    objective: tuple[BoundMeasured, ...] = ()

    @property
    def of_traffic(self) -> bool:
        """Whether the clients of a server sent the load."""
        return self.method == "live traffic"

    @property
    def way(self) -> str:
        """How the sides were measured, for reports."""
        return (
            f"{self.method.removesuffix(' ABBA')},"
            f" {'fixed' if self.order_seed is None else 'random'} order"
        )

    @property
    def fate(self) -> str:
        """What became of the change: `kept`, `taken back` (after it was kept), `reverted`, or the
        state of a trial that was not decided."""
        if self.state != "done":
            return self.state
        return "kept" if self.kept else "taken back" if self.taken_back else "reverted"

    @property
    def began_run(self) -> bool:
        """Whether a run began with the change, because it was kept."""
        return self.kept or self.taken_back

    @property
    def holds(self) -> bool:
        """Whether the change is kept, and nothing later has shown that its gain is gone."""
        return self.kept and self.verdict == "win"

    @property
    def worth_keeping(self) -> bool:
        """The trial is a win, and the model is not worse, where that was measured."""
        return (
            self.verdict == "win"
            and self.checked
            and not any(
                cost is not None and cost.too_high for cost in (self.perplexity, self.held_out_loss)
            )
            and not (self.held_out_loss is not None and self.held_out_loss.too_noisy)
        )


# --- what was measured in a run -------------------------------------------------------------------


def last_trial(trials: Iterable[Trial], run: str, changes: Knobs) -> Trial | None:
    """The last ended trial of exactly these changes on this run. No other function decides what was
    tried there."""
    return next(
        (
            trial
            for trial in reversed(list(trials))
            if (trial.baseline_run, trial.changes) == (run, changes) and trial.state != "running"
        ),
        None,
    )


LOST = 2
"""Trials without a gain after which the confidence of a finding is low."""


def with_trials(
    findings: Sequence[Finding], trials: Iterable[Trial], run: str, alike: Collection[str] = ()
) -> list[Finding]:
    """The findings of a run with what its trials measured: a suggestion that was measured has that
    in place of its prediction, and stands behind the others of its finding unless it gains. The
    findings that recover something change places by their weight.

    The confidence becomes low in two cases: all suggestions were measured and none gains; or at
    least LOST trials of the same knobs were measured, on this run and on the runs of `alike`, and
    none gained. `alike`: the ids of runs of the same job.
    """
    trials = [trial for trial in trials if trial.baseline_run == run or trial.baseline_run in alike]
    if not trials:
        return list(findings)
    measured = [_with_trials(finding, trials, run) for finding in findings]
    places = [
        at
        for at, finding in enumerate(measured)
        if finding.state == "fires" and not finding.note and finding.recoverable_ratio > 0
    ]
    ranked = sorted((measured[at] for at in places), key=lambda finding: -finding.weight)
    for at, finding in zip(places, ranked, strict=True):
        measured[at] = finding
    failed = {finding.rule for finding in measured if finding.failed}
    return [_beside(finding, failed) for finding in measured] if failed else measured


def _beside(finding: Finding, failed: Collection[str]) -> Finding:
    """Return the finding as an alternative only to findings that still claim time: those of
    `failed` rules gain nothing, so they claim none."""
    others = (
        ()
        if finding.failed
        else tuple(rule for rule in finding.alternative_to if rule not in failed)
    )
    return (
        finding
        if others == finding.alternative_to
        else msgspec.structs.replace(finding, alternative_to=others)
    )


def _with_trials(finding: Finding, trials: Sequence[Trial], run: str) -> Finding:
    suggestions = sorted(
        (_tried(suggestion, trials, run) for suggestion in finding.suggestions), key=_place
    )
    if not suggestions:
        return finding
    finding = msgspec.structs.replace(
        finding, suggestions=tuple(suggestions), lost_trials=_lost(finding, trials)
    )
    doubtful = finding.failed or finding.lost_trials > 0
    return msgspec.structs.replace(finding, confidence="low") if doubtful else finding


def _lost(finding: Finding, trials: Sequence[Trial]) -> int:
    """Count the measured trials of the knobs that the finding suggests. Return 0 for fewer than
    LOST trials, or if one of the trials gained."""
    if finding.resource != "time":
        return 0
    knobs = [suggestion.changes.keys() for suggestion in finding.suggestions]
    of_knobs = [
        trial.speedup
        for trial in trials
        if trial.speedup is not None and trial.state != "running" and trial.changes.keys() in knobs
    ]
    return (
        0 if len(of_knobs) < LOST or any(speedup.low > 1 for speedup in of_knobs) else len(of_knobs)
    )


def _tried(suggestion: Suggestion, trials: Sequence[Trial], run: str) -> Suggestion:
    trial = last_trial(
        (trial for trial in trials if trial.speedup is not None), run, suggestion.changes
    )
    if trial is None or trial.speedup is None:
        return suggestion
    speedup = trial.speedup
    tried = Tried(
        speedup.estimate, speedup.low, speedup.high, trial.verdict or "undecided", trial.id
    )
    return msgspec.structs.replace(suggestion, predicted_speedup=None, tried=tried)


def _place(suggestion: Suggestion) -> int:
    """First what is proven to gain, then what was not tried, then the rest."""
    if suggestion.tried is None:
        return 1
    return 0 if suggestion.tried.gains else 2


# --- a sweep --------------------------------------------------------------------------------------


MIN_RATE = 1e-40
"""Smaller rates and times are damage: they have no inverse."""


class SweepPoint(msgspec.Struct, omit_defaults=True):
    """One setting. `rates`: work per second of each repeat. `seconds`: the time of each repeat;
    empty in files of earlier versions. `steps`: of all repeats. `settled`: this point is proven not
    to be the best.

    `low` and `high`: the bounds of the mean. With 95 % probability the bounds of all points of a
    sweep are right together, after every round. None for fewer than two repeats.
    """

    knobs: Knobs
    rates: list[float] = []
    seconds: list[float] = []
    steps: int = 0
    settled: bool = False
    error: str = ""
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if self.seconds and len(self.seconds) != len(self.rates):
            raise ValueError(f"{len(self.rates)} rates and {len(self.seconds)} times of repeats")
        if min(self.rates + self.seconds, default=1.0) < MIN_RATE:
            raise ValueError("a rate or a time of a repeat is not above 0")

    @property
    def mean(self) -> float | None:
        """Work over time of all repeats."""
        return statistics.fmean(self.rates, self._times) if self.rates else None

    @property
    def linear_rates(self) -> list[float]:
        """The rates of the repeats, linearised at `mean`. The mean of these rates is `mean`, and
        their spread shows the error of `mean` (a ratio estimator: Cochran 1977, section 6.4)."""
        mean, times = self.mean or 0.0, self._times
        usual = statistics.fmean(times or [1.0])
        return [
            mean + (rate - mean) * time / usual
            for rate, time in zip(self.rates, times, strict=True)
        ]

    @property
    def std(self) -> float:
        return statistics.stdev(self.linear_rates) if len(self.rates) > 1 else 0.0

    @property
    def _times(self) -> list[float]:
        """Return the time of each repeat. Without `seconds`, all repeats did the same work."""
        return self.seconds or [1 / rate for rate in self.rates]


class Sweep(msgspec.Struct, omit_defaults=True):
    """`base` holds the knobs that were not varied too. `points` have the order of the command line.

    Repeats are interleaved: each round measures all points in random order, so that drift affects
    all points alike. From `order_seed` follow the order and the lengths of the blocks
    (`sweep.rounds`). `stalls_from`: the sweep would have seen a stall in one of this number of
    steps of each point that may be the best; 0: not known.
    """

    scenario: str
    device: str
    unit: str
    base: Knobs
    points: list[SweepPoint]
    repeats: int
    clock: Clock = "wall"
    elapsed_s: float = 0.0
    order_seed: int | None = None
    stalls_from: int = 0

    @property
    def varied(self) -> list[str]:
        """The names of the varied knobs, in the order of the command line."""
        return list(self.points[0].knobs) if self.points else []

    @property
    def best(self) -> SweepPoint | None:
        """The point with the highest mean; see `rivals` for whether it is proven."""
        return max(
            (point for point in self.points if point.rates),
            key=lambda point: point.mean or 0.0,
            default=None,
        )

    @property
    def rivals(self) -> list[SweepPoint]:
        """The other points that may be the best: their interval overlaps the interval of `best`, or
        one of the two intervals is missing."""
        best = self.best
        return [
            point
            for point in self.points
            if best is not None
            and point is not best
            and point.rates
            and (point.high is None or best.low is None or point.high >= best.low)
        ]
