"""Statistics of measured rates: trials (pairs of blocks), sweeps, whole runs; and the least length
of the blocks of a trial."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from statistics import NormalDist

from gpuconsole.model.comparison import BaselineVerdict, RateChange
from gpuconsole.model.experiments import Method, Speedup, Verdict
from gpuconsole.model.knobs.catalogue import CATALOGUE, Knobs
from gpuconsole.model.run import PHASES, Step
from gpuconsole.session.figures.rate import RateBlock, Work, blocks_of, work_over_time

# --- statistics of measured rates -----------------------------------------------------------------

ALPHA = 0.05
"""Probability that an interval misses the truth."""
RHO_SQUARED = 0.88
"""Makes a confidence sequence tightest near ten pairs: (-2 ln a + ln(-2 ln a) + 1) / 10
(Waudby-Smith et al. 2021, "Time-uniform central limit theory and asymptotic confidence sequences",
section 2)."""
MIN_PAIRS = 4
"""Minimum number of pairs of blocks, or of repeats of a sweep point, for a decision."""
MINIMUM_EFFECT = math.log(1.02)
"""A difference below 2 % counts as no difference: the interval of an A/A run on a shared machine
has excluded 0 by less than 2 %."""
NORMAL_975 = 1.96
"""The 97.5 % quantile of the normal distribution."""
RUN_TO_RUN = 0.02
"""Assumed standard deviation between equal runs, until three runs are known: the same as
MINIMUM_EFFECT. Six equal runs under equal load on a shared two-core VM differed by 2.7 %."""
BETWEEN: dict[Method, float] = {
    "live ABBA": 0.0,
    "live traffic": 0.0,
    "two workers ABBA": math.sqrt(2) * RUN_TO_RUN,
    "restarts ABBA": math.sqrt(2) * RUN_TO_RUN,
}
"""Standard deviation of the log ratio between the two sides of a trial that have the same settings.
Two processes differ by RUN_TO_RUN each, and this difference is the same in every pair."""
MIN_EFFECT_BETWEEN_PROCESSES = math.expm1(NORMAL_975 * BETWEEN["two workers ABBA"] + MINIMUM_EFFECT)
"""The smallest gain that a trial with one process per side can prove: 8 %."""
MIN_BLOCKS = 4
"""Minimum number of blocks of a run for a comparison with another run."""
USUAL_RUNS = 4
"""Weight of RUN_TO_RUN against that spread, in degrees of freedom: the weight of five runs."""
_T_975 = {
    1: 12.706,
    2: 4.303,
    3: 3.182,
    4: 2.776,
    5: 2.571,
    6: 2.447,
    7: 2.365,
    8: 2.306,
    9: 2.262,
    12: 2.179,
    16: 2.120,
    24: 2.064,
    40: 2.021,
}


# --- quantiles and confidence sequences -----------------------------------------------------------


def student(degrees: float) -> float:
    """The 97.5 % quantile of Student's t, for the next smaller `degrees` in a table.

    `gpuconsole tune --verify` computes the intervals of a snapshot again and expects the same
    digits: so this table must not change.
    """
    return (
        NORMAL_975
        if degrees >= 60
        else _T_975[max(tabulated for tabulated in _T_975 if tabulated <= max(1, degrees))]
    )


@lru_cache(maxsize=256)
def student_quantile(degrees: int, alpha: float) -> float:
    """t with P(|T| > t) = `alpha`, for a whole number of `degrees` of freedom >= 1; 0 < `alpha`
    < 1.

    The distribution function is the finite series of Abramowitz and Stegun (1964), 26.7.3 and
    26.7.4; it is inverted by bisection.
    """
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        if _student_within(middle, degrees) < 1 - alpha:
            low = middle
        else:
            high = middle
    return math.sqrt(degrees) * math.tan(low)


def _student_within(angle: float, degrees: int) -> float:
    """P(|T| < t), where `angle` is atan(t / sqrt(degrees))."""
    term, total = (math.cos(angle), math.cos(angle)) if degrees % 2 else (1.0, 1.0)
    for n in range(3 if degrees % 2 else 2, degrees - 1, 2):
        term *= math.cos(angle) ** 2 * (n - 1) / n
        total += term
    if degrees % 2 == 0:
        return math.sin(angle) * total
    return 2 / math.pi * (angle + (math.sin(angle) * total if degrees > 1 else 0.0))


def always_valid(n: float, alpha: float = ALPHA) -> float:
    """Half-width, in standard errors, of the confidence sequence at level 1 - `alpha` after `n`
    values.

    sqrt( 2 (n r^2 + 1) / (n r^2) ln( sqrt(n r^2 + 1) / alpha ) ) (Waudby-Smith et al. 2021, section
    2). It replaces the normal quantile if the result is evaluated after every value.
    """
    scaled = n * RHO_SQUARED + 1
    return math.sqrt(2 * scaled / (n * RHO_SQUARED) * math.log(math.sqrt(scaled) / alpha))


def confidence_sequence(values: Sequence[float], least: float = 0.0) -> tuple[float, float, float]:
    """Mean of `values` with a 95 % confidence sequence: mean, low, high.

    The interval is valid after every value and at every moment of stopping. The deviation is
    estimated from few pairs, so the interval is widened by Student's t over the normal quantile.
    `least`: the deviation is at least this (see `Trial.step_deviation`). Raises ValueError for
    fewer than two values.
    """
    n = len(values)
    errors = half_width(n)
    mean, half = (
        statistics.fmean(values),
        errors * max(least, statistics.stdev(values)) / math.sqrt(n),
    )
    return mean, mean - half, mean + half


def half_width(n: int) -> float:
    """Half-width, in estimated standard errors, of `confidence_sequence` after `n` values. Raises
    ValueError for fewer than two values."""
    if n < 2:
        raise ValueError("an interval needs at least two pairs")
    return always_valid(n) * student(n - 1) / NORMAL_975


def simultaneous_interval(values: Sequence[float], intervals: int) -> tuple[float, float] | None:
    """A confidence sequence for the mean of `values`, one of several `intervals` that must hold
    together; None for fewer than two values.

    Each interval has the level 1 - ALPHA / `intervals` (Bonferroni's inequality; Dunn 1961). So
    with 95 % probability all intervals hold, after every value, and a comparison between any two of
    them holds too. The interval is widened for few values like `confidence_sequence`.
    """
    n = len(values)
    if n < 2:
        return None
    alpha = ALPHA / max(1, intervals)
    mean, deviation = statistics.fmean(values), statistics.stdev(values)
    few = student_quantile(n - 1, alpha) / NormalDist().inv_cdf(1 - alpha / 2)
    half = deviation / math.sqrt(n) * always_valid(n, alpha) * few
    return mean - half, mean + half


def joint_interval(
    log_ratios: Sequence[float], null_log_ratios: Sequence[float], intervals: int
) -> tuple[float, float, float] | None:
    """Mean, low and high of log ratios of pairs: one of several `intervals` that must hold
    together, and at least as wide as the null pairs say (see `resolution`). None for fewer than
    MIN_PAIRS pairs."""
    if len(log_ratios) < MIN_PAIRS:
        return None
    bounds = simultaneous_interval(log_ratios, intervals)
    assert bounds is not None
    mean, (low, high) = statistics.fmean(log_ratios), bounds
    if len(null_log_ratios) >= 2:
        half = _null_half_width(null_log_ratios, len(log_ratios))
        low, high = min(low, mean - half), max(high, mean + half)
    return mean, low, high


# --- trials ---------------------------------------------------------------------------------------


def speedup(
    log_ratios: Sequence[float], between: float = 0.0, least: float = 0.0
) -> Speedup | None:
    """The effect as a ratio of throughputs with its interval; None for fewer than two pairs.
    `between`: see BETWEEN. `least`: see `confidence_sequence`."""
    if len(log_ratios) < 2:
        return None
    mean, low, high = _widened(confidence_sequence(log_ratios, least), between)
    return Speedup(*(math.exp(min(20.0, max(-20.0, value))) for value in (mean, low, high)))


def resolution(null_log_ratios: Sequence[float], pairs: int, between: float = 0.0) -> float | None:
    """The smallest effect, as a ratio, that `pairs` pairs can distinguish from no effect; None for
    fewer than two null pairs.

    The first block of a pair is compared with the latest block of the same side (see `Pairs`).
    These log ratios have the mean 0 and at least the spread of an ordinary pair. So they are an A/A
    test without extra measurements.
    """
    if len(null_log_ratios) < 2 or pairs < 1:
        return None
    return math.expm1(
        min(20.0, math.hypot(_null_half_width(null_log_ratios, pairs), NORMAL_975 * between))
    )


def pairs_needed(
    null_log_ratios: Sequence[float], between: float, speedup: float | None, most: int
) -> int:
    """The number of pairs after which a trial with this noise will probably end: MIN_PAIRS to
    `most`.

    It ends when the interval of an effect `speedup` (a ratio) excludes no effect, or when more
    pairs add little (see `exhausted`). Without null pairs the noise is unknown, and the answer is
    `most`.
    """
    if len(null_log_ratios) < 2:
        return most
    effect = abs(math.log(speedup)) if speedup else 0.0
    anyway = NORMAL_975 * between
    for pairs in range(MIN_PAIRS, most):
        half = _null_half_width(null_log_ratios, pairs)
        if math.hypot(half, anyway) + MINIMUM_EFFECT < effect or half < anyway / 2:
            return pairs
    return most


def _null_half_width(null_log_ratios: Sequence[float], pairs: int) -> float:
    spread = math.sqrt(statistics.fmean(value * value for value in null_log_ratios))
    return (
        spread / math.sqrt(pairs) * always_valid(pairs) * student(len(null_log_ratios)) / NORMAL_975
    )


def _widened(interval: tuple[float, float, float], between: float) -> tuple[float, float, float]:
    """`interval` widened by the spread between two sides with the same settings. More pairs do not
    reduce this spread."""
    mean, low, high = interval
    anyway = NORMAL_975 * between
    return mean, mean - math.hypot(mean - low, anyway), mean + math.hypot(high - mean, anyway)


def exhausted(
    log_ratios: Sequence[float],
    null_log_ratios: Sequence[float],
    between: float,
    least: float = 0.0,
) -> bool:
    """Whether the difference between the two sides makes up most of the interval, so that more
    pairs add little."""
    if len(log_ratios) < MIN_PAIRS:
        return False
    mean, _, high = confidence_sequence(log_ratios, least)
    by_nulls = (
        _null_half_width(null_log_ratios, len(log_ratios)) if len(null_log_ratios) >= 2 else 0.0
    )
    return max(high - mean, by_nulls) < NORMAL_975 * between / 2


def verdict(
    log_ratios: Sequence[float],
    null_log_ratios: Sequence[float] = (),
    between: float = 0.0,
    least: float = 0.0,
) -> Verdict | None:
    """win, no_gain or worse as soon as the interval proves the verdict; None before.

    The deviation of a few pairs can be too small by chance. So a win, or a loss, must also exceed
    the resolution by the null pairs, and the deviation is at least what the steps show (`least`).
    """
    if len(log_ratios) < MIN_PAIRS:
        return None
    mean, low, high = confidence_sequence(log_ratios, least)
    if len(null_log_ratios) >= 2:
        half = _null_half_width(null_log_ratios, len(log_ratios))
        low, high = min(low, mean - half), max(high, mean + half)
    _, low, high = _widened((mean, low, high), between)
    if low > MINIMUM_EFFECT:
        return "win"
    if high < -MINIMUM_EFFECT:
        return "worse"
    if high < MINIMUM_EFFECT:
        return "no_gain"
    return None


# --- whole runs -----------------------------------------------------------------------------------


def rate_verdict(change: RateChange, excused: float = 0.0) -> BaselineVerdict:
    """`slower` or `faster` if the whole interval is beyond 2 %, otherwise `undecided`.

    `excused`: the additional share of time that contention took from one side (above 0: from this
    run). Contention alone may explain a difference of that size.
    """
    low, high = math.log1p(change.low), math.log1p(change.high)
    explained = math.log1p(-min(0.99, abs(excused)))
    if high < -MINIMUM_EFFECT + (explained if excused > 0 else 0.0):
        return "slower"
    if low > MINIMUM_EFFECT - (explained if excused < 0 else 0.0):
        return "faster"
    return "undecided"


# --- blocks of steps ------------------------------------------------------------------------------

BASELINE, CHANGED = 1, 2
"""The arms that mark the steps of a trial; 0 is an ordinary step."""
NO_WORK = "no work was done in a whole block"
MIN_STEPS = 5
MIN_BLOCK_S = 0.35
MIN_LOADER_BLOCK_S = 0.8
MIN_SERVING_BLOCK_S = 2.0
MAX_BLOCK_S = 2.5
MAX_PERIOD = 40
PERIOD_KNOBS = {"log_every": "logging", "save_every": "checkpoint", "eval_every": "eval"}
"""Knobs that set the period of an event in steps, and the phase in which the event takes its
time."""
COST_KNOBS = {
    "logging": {"log_every", "log_gradients"},
    "checkpoint": {"save_every"},
    "eval": {"eval_every", "eval_batch_size"},
}
"""Knobs that set the share of each of these phases."""
RARER = 10
"""If an event is this many times rarer on one side, a block of that side need not contain the
event. Without any such event the gain would be overstated by a tenth at most, and some blocks do
contain the event."""
SPREAD = ("checkpoint", "eval")
"""Phases of a user's own program whose time is spread over the steps of a trial: see
`blocks.Events`."""
NEGLIGIBLE = 0.01
"""Share of step time. An event with a smaller share need not happen equally often in both blocks of
a pair."""
RUN_BLOCK_S = 1.0
MIN_RUN_BLOCK_S = 0.25
MIN_RUN_BLOCKS = 12
"""A run too short for this many blocks of RUN_BLOCK_S is cut into shorter blocks."""
MAX_RUN_BLOCKS = 60


def other_variant(arm: int) -> int:
    return CHANGED if arm == BASELINE else BASELINE


class Pairs:
    """The rates of the blocks of a trial as they are measured: `log_ratios` and `null_log_ratios`
    (see `Trial`).

    A job does the work of all blocks in the sum of their times. So the trial must compare the mean
    times of its sides, and the mean of log rates is something else if the blocks differ. Therefore
    each log rate is linearized at the mean time of its side: the mean of these log ratios is then
    the log ratio of the mean times.
    """

    def __init__(self) -> None:
        self._times: dict[int, list[float]] = {BASELINE: [], CHANGED: []}
        self._firsts: list[int] = []

    def add(self, first: int, log_rates: Mapping[int, float]) -> None:
        """Add a pair whose first block has the arm `first`. `log_rates`: by arm."""
        for arm, log_rate in log_rates.items():
            self._times[arm].append(math.exp(-log_rate))
        self._firsts.append(first)

    @property
    def log_ratios(self) -> list[float]:
        before, after = (self._log_rates(arm) for arm in (BASELINE, CHANGED))
        return [new - old for old, new in zip(before, after, strict=True)]

    @property
    def null_log_ratios(self) -> list[float]:
        """The first block of each pair compared with the latest block of its arm: the block just
        before it, or the one before that."""
        of_arm = {arm: self._log_rates(arm) for arm in self._times}
        return [
            of_arm[first][place] - of_arm[first][place - 1]
            for place, first in enumerate(self._firsts)
            if place
        ]

    def _log_rates(self, arm: int) -> list[float]:
        times = self._times[arm]
        if not times:
            return []
        mean = statistics.fmean(times)
        return [-math.log(mean) - (time - mean) / mean for time in times]


class BlockPlan:
    """The required length of a block of one side: a minimum time, in whole periods of the events on
    that side and whole rounds of its workers."""

    def __init__(
        self,
        knobs: Knobs,
        changes: Collection[str],
        phases_ratio: Mapping[str, float] | None = None,
        others: Knobs | None = None,
        *,
        of_job: bool = False,
        step_s: float | None = None,
    ) -> None:
        """`knobs` are the values on this side, `others` the values on the other side, `changes` the
        names of the knobs that differ.

        `phases_ratio`: the share of each phase in the step time before the trial, where it is
        known. `of_job`: the steps are those of the user's own program, which does not mark its
        first steps after a change. `step_s`: the mean time of a step before the trial, where it is
        known.
        """
        self.through_loader = any(CATALOGUE[name].loader for name in changes)
        self.serving = any(CATALOGUE[name].serving for name in changes)
        self.min_s = (
            MIN_SERVING_BLOCK_S
            if self.serving
            else MIN_LOADER_BLOCK_S
            if self.through_loader
            else MIN_BLOCK_S
        )
        shares = phases_ratio or {}
        # the change alters these shares
        unknown = {
            phase for phase, of_phase in COST_KNOBS.items() if not of_phase.isdisjoint(changes)
        }
        weighs = [
            name
            for name, phase in PERIOD_KNOBS.items()
            if phase in unknown or shares.get(phase, 1.0) >= NEGLIGIBLE
        ]
        every = {name: int(knobs.get(name, 0)) for name in weighs}
        rare = {
            name
            for name in weighs
            if every[name] >= RARER * int((others or knobs).get(name, 0)) > 0
        }
        periods = [
            every[name] for name in weighs if 0 < every[name] <= MAX_PERIOD and name not in rare
        ]
        period = math.lcm(*periods)
        self.period = period if period <= MAX_PERIOD else max(periods)

        self.workers = int(knobs.get("num_workers", 0))
        """Workers of a loader deliver their batches together where they wait for the same
        storage."""
        self.unit = math.lcm(self.period, max(1, self.workers))
        """Steps after which both the period and the round of the workers repeat."""
        self.settling = settling_steps(knobs, self.through_loader) if of_job else 0
        """The first steps of a block that do not count."""
        spread = [
            phase
            for phase in SPREAD
            if of_job and phases_ratio and step_s is not None and phase not in unknown
        ]
        self.events_s = {
            PHASES.index(phase): shares.get(phase, 0.0) * (step_s or 0.0) for phase in spread
        }
        """By the index of a phase, the seconds of its events in a step before the trial. See
        `blocks.Events`."""

    def without_events(self, step: Step) -> tuple[float, float]:
        """Return the seconds of a step, and the run-queue delay in it, both without the events of a
        user's own program."""
        if not self.events_s or not step.phases:
            return step.wall_s, sum(step.runq or ())
        events_s = sum(step.phases[index] for index in self.events_s)
        waited = sum(
            delay for index, delay in enumerate(step.runq or ()) if index not in self.events_s
        )
        return step.wall_s - events_s, waited

    def wall_s(self, step: Step) -> float:
        """Return the seconds of a step with the mean of its events before the trial in place of its
        own events."""
        return self.without_events(step)[0] + sum(self.events_s.values())

    def count(self, step_s: float, stretch: float = 1.0, cycle: int = 1) -> int:
        """The number of steps of a block that is `stretch` times as long as the shortest, where a
        step takes `step_s` and the times of the steps repeat after `cycle` steps.

        The number is a multiple of the period, of the workers and of the cycle, as far as that
        takes no longer than MAX_BLOCK_S.
        """
        wanted = stretch * max(MIN_STEPS, self.min_s / max(step_s, 1e-9))
        unit = self._unit(step_s, cycle, wanted)
        return math.ceil(wanted / unit) * unit

    def holds(self, step_s: float, cycle: int) -> bool:
        """Return whether each block holds whole cycles of `cycle` steps, however short the block
        is."""
        return self._unit(step_s, cycle, 0.0) % cycle == 0

    def _unit(self, step_s: float, cycle: int, wanted: float) -> int:
        """Return the number of steps of which a block with `wanted` steps has a multiple."""
        unit = 1
        for steps in (self.period, self.workers, cycle):
            common = math.lcm(unit, max(1, steps))
            if common <= MAX_PERIOD and (common * step_s <= MAX_BLOCK_S or common <= wanted):
                unit = common
        return unit

    def least_s(self, step_s: float) -> float:
        """Seconds of the shortest block, where a step takes `step_s`."""
        return self.count(step_s) * step_s


def settling_steps(knobs: Knobs, through_loader: bool) -> int:
    """Steps after a change that show the queue of a loader that was idle, not its rate; one step
    after other changes."""
    workers = int(knobs.get("num_workers", 0)) if through_loader else 0
    return workers * int(knobs.get("prefetch_factor", 2)) + 2 if workers else 1


def plans(
    knobs: Knobs,
    changes: Knobs,
    phases_ratio: Mapping[str, float] | None = None,
    *,
    of_job: bool = False,
    step_s: float | None = None,
) -> dict[int, BlockPlan]:
    """The plans of both sides of a trial of `changes` to `knobs`, by arm. The further arguments:
    see `BlockPlan`."""
    sides = {BASELINE: knobs, CHANGED: {**knobs, **changes}}
    other = {BASELINE: sides[CHANGED], CHANGED: knobs}
    return {
        arm: BlockPlan(values, changes, phases_ratio, other[arm], of_job=of_job, step_s=step_s)
        for arm, values in sides.items()
    }


def work_of_step(step: Step) -> float:
    """The work of a step: tokens if it has tokens, otherwise samples."""
    return step.tokens or step.samples


def one_step(step: Step) -> float:
    """The work of a step whose samples are not known."""
    return 1.0


def work_in(steps: Sequence[Step], changes: Collection[str]) -> Work:
    """Choose what to count as the work of a step: its tokens or samples, or the step itself if both
    are unknown. Raises ValueError if both are unknown and `changes` alter them."""
    if any(map(work_of_step, steps)):
        return work_of_step
    if altering := [name for name in changes if CATALOGUE[name].work]:
        raise ValueError(
            f"the number of samples in a step is not known, and {altering[0]} changes this number"
        )
    return one_step


def rate(steps: Sequence[Step], contention_free: bool, work: Work = work_of_step) -> float:
    """Work per second of a block. `contention_free` subtracts the run-queue delay."""
    per_s = work_over_time(steps, work)
    if not contention_free or not per_s:
        return per_s
    seconds = sum(step.wall_s for step in steps)
    return per_s * seconds / max(seconds - sum(sum(step.runq or ()) for step in steps), 1e-9)


def run_blocks(steps: Sequence[Step], work: Work = work_of_step) -> list[RateBlock]:
    """Successive blocks of a run: about a second each, at least MIN_STEPS steps, at most
    MAX_RUN_BLOCKS blocks."""
    total = sum(step.wall_s for step in steps)
    block_s = max(MIN_RUN_BLOCK_S, min(RUN_BLOCK_S, total / MIN_RUN_BLOCKS), total / MAX_RUN_BLOCKS)
    return blocks_of(steps, work, block_s, MIN_STEPS)
