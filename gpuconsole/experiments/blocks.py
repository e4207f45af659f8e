"""The blocks of a trial so far: the rates of their pairs, and the events of the job in them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from gpuconsole.experiments.statistics import (
    BASELINE,
    CHANGED,
    MIN_PAIRS,
    NEGLIGIBLE,
    BlockPlan,
    Pairs,
    other_variant,
    student_quantile,
)
from gpuconsole.model.run import PHASES, Step
from gpuconsole.session.figures.rate import Work

# --- evaluations and checkpoints of a user's own program ------------------------------------------

EVENT_NOISE = 0.1
"""The least relative standard deviation of the time of an event: a few events agree by chance."""
SLOWER = 5.0
"""A change may make an event so many times slower. A gain that such an event could use up is not
kept before the event was seen with the change."""


class Events:
    """The evaluations and checkpoints in the blocks of a trial.

    A program may evaluate for seconds after every few hundred steps. A block of a second has such
    an event or not, by chance, so one event would outweigh the whole trial. Therefore each step has
    the mean time of the events in place of its own events. The frequency of the events is that
    before the trial. The time of an event is its mean on the same side of the trial, because a
    change may make evaluations faster or slower too.
    """

    def __init__(self, before_s: Mapping[int, float]) -> None:
        """`before_s`: by the index of a phase, its seconds in a step before the trial. Empty: the
        events count in the blocks in which they come."""
        self._before_s = before_s
        self._seconds: dict[int, dict[int, list[float]]] = {
            arm: {index: [] for index in before_s} for arm in (BASELINE, CHANGED)
        }
        self._steps = 0

    def add(self, arm: int, steps: Sequence[Step]) -> None:
        """Add the counted steps of a block."""
        self._steps += len(steps)
        for step in steps:
            for index, seen in self._seconds[arm].items():
                if step.phases and step.phases[index] > 0:
                    seen.append(step.phases[index])

    @property
    def total_s(self) -> float:
        """Seconds of all events in the blocks."""
        return sum(sum(seen) for of_phase in self._seconds.values() for seen in of_phase.values())

    def of_step_s(self, arm: int) -> float:
        """Seconds of events that each step of `arm` stands for."""
        return sum(self._of_step_s(arm, index) for index in self._before_s)

    def _of_step_s(self, arm: int, index: int) -> float:
        own, other = (self._seconds[side][index] for side in (arm, other_variant(arm)))
        before_s = self._before_s[index]
        if not before_s:  # the first such event came in the trial
            seen = own or other
            return (len(own) + len(other)) / self._steps * statistics.fmean(seen) if seen else 0.0
        if arm == BASELINE or not own or not other:
            return before_s
        return before_s * statistics.fmean(own) / statistics.fmean(other)

    def unseen(self, step_s: float) -> list[str]:
        """Return the phases whose events take more than NEGLIGIBLE of the time and have not come on
        both sides. `step_s`: the mean time of a step, with its events."""
        return [PHASES[index] for index in self._before_s if self._weighs(index, step_s)]

    def _weighs(self, index: int, step_s: float) -> bool:
        most_s = max(self._of_step_s(arm, index) for arm in (BASELINE, CHANGED))
        return most_s >= NEGLIGIBLE * step_s and not all(
            self._seconds[arm][index] for arm in (BASELINE, CHANGED)
        )

    def at_worst_ratio(self, step_s: float) -> float:
        """Return by how much the changed side would be slower than measured if the unseen events
        took SLOWER times as long with the change: a ratio of times, 1 or more."""
        unseen_s = sum(
            self._of_step_s(CHANGED, index)
            for index in self._before_s
            if self._weighs(index, step_s)
        )
        return 1 + (SLOWER - 1) * unseen_s / step_s

    def error(self, step_s: Mapping[int, float]) -> float:
        """Return the standard deviation of the log ratio of the sides that comes from the few
        events. `step_s`: by arm, the mean time of a step, with its events."""
        squares = 0.0
        for index in self._before_s:
            if not all(self._seconds[arm][index] for arm in (BASELINE, CHANGED)):
                continue
            for arm, of_phase in self._seconds.items():
                seen = of_phase[index]
                spread = max(
                    EVENT_NOISE,
                    statistics.stdev(seen) / statistics.fmean(seen) if len(seen) > 1 else 0.0,
                )
                share = self._of_step_s(arm, index) / max(step_s[arm], 1e-9)
                squares += (share * spread) ** 2 / len(seen)
        return math.sqrt(squares)


# --- pairs ----------------------------------------------------------------------------------------

THIRDS = 3
DIFFERS = 0.02
"""The first and the last third of the blocks differ if their times differ by more than this share,
and by more than chance."""
OWN_WAIT = 0.01
"""The waits for a core differ between the sides if their difference is more than this share of the
time, and more than chance."""
CHANCE = 0.002
"""The probability of such a difference by chance at one look; a trial takes up to 60 looks."""
CHANCE_OF_MORE = 0.05
"""The same for the second third, where the first one has shown a difference."""
BY_STEPS = 5.0
"""Standard errors of the difference of two parts of the blocks, by the noise of single steps."""
BLOCK_CACHE = 4096


class BlockSums(NamedTuple):
    """Sums over steps of a block: their number, work and seconds, and the run-queue delay of the
    training thread; the last two without events."""

    steps: int
    work: float
    seconds: float
    waited: float

    def time_s(self, event_s: float, free: bool) -> float:
        """Seconds of the steps with `event_s` of events each. `free`: without run-queue delay."""
        seconds = self.seconds + self.steps * event_s - (self.waited if free else 0.0)
        return max(seconds, 1e-9)


Part = Callable[[Sequence[Step], int], Sequence[Step]]


def whole(steps: Sequence[Step], cycle: int) -> Sequence[Step]:
    """Return the steps of a block without the last ones that are no whole cycle; no steps where the
    block is shorter than a cycle.

    The first blocks end before the cycle is known. By chance, one such block has a long step more
    than another.
    """
    return steps[: len(steps) // cycle * cycle]


def first_third(steps: Sequence[Step], cycle: int) -> Sequence[Step]:
    """Return the first third of a block, in whole cycles."""
    return steps[: len(steps) // THIRDS // cycle * cycle]


def middle_third(steps: Sequence[Step], cycle: int) -> Sequence[Step]:
    """Return the third of a block before the last one, in whole cycles."""
    steps, third = whole(steps, cycle), len(last_third(steps, cycle))
    return steps[len(steps) - 2 * third : len(steps) - third]


def last_third(steps: Sequence[Step], cycle: int) -> Sequence[Step]:
    """Return the last third of a block, in whole cycles."""
    steps = whole(steps, cycle)
    return steps[len(steps) - len(steps) // THIRDS // cycle * cycle :]


class MeasuredPairs:
    """The pairs of blocks of a trial, with their steps."""

    def __init__(self, plan: BlockPlan, events: Events, work: Work) -> None:
        self._plan, self.events, self._work = plan, events, work
        self._firsts: list[int] = []
        self._blocks: list[Mapping[int, Sequence[Step]]] = []
        self.cycles = {BASELINE: 1, CHANGED: 1}
        """The steps of which a block of an arm counts a multiple."""
        self._sums = lru_cache(BLOCK_CACHE)(self._sums_of)

    def add(self, first: int, blocks: Mapping[int, Sequence[Step]]) -> None:
        """Add a pair whose first block has the arm `first`."""
        self._firsts.append(first)
        self._blocks.append(blocks)
        for arm, steps in blocks.items():
            self.events.add(arm, steps)

    def _sums_of(self, pair: int, arm: int, cycle: int, part: Part) -> BlockSums:
        return self._sums_of_steps(part(self._blocks[pair][arm], cycle))

    def _sums_of_steps(self, steps: Sequence[Step]) -> BlockSums:
        own = [self._plan.without_events(step) for step in steps]
        return BlockSums(
            len(steps),
            sum(map(self._work, steps)),
            sum(seconds for seconds, _ in own),
            sum(waited for _, waited in own),
        )

    def _of(self, arm: int, part: Part, unit: Mapping[int, int]) -> list[BlockSums]:
        return [self._sums(pair, arm, unit[arm], part) for pair in range(len(self._blocks))]

    def step_s(self, arm: int) -> float:
        """The mean time of a step of `arm`, with its events."""
        sums = self._of(arm, whole, {arm: 1})
        count = sum(of_block.steps for of_block in sums)
        return sum(of.seconds for of in sums) / max(count, 1) + self.events.of_step_s(arm)

    def pairs(self, free: bool, part: Part = whole) -> Pairs:
        """Return the rates of the blocks of each pair, without pairs in which a block has no work
        in whole cycles. `free`: without run-queue delay."""
        pairs, sides = Pairs(), {arm: self._of(arm, part, self.cycles) for arm in self.cycles}
        for place, first in enumerate(self._firsts):
            blocks = {arm: sums[place] for arm, sums in sides.items()}
            if all(of.work > 0 for of in blocks.values()):
                pairs.add(
                    first,
                    {
                        arm: math.log(of.work / of.time_s(self.events.of_step_s(arm), free))
                        for arm, of in blocks.items()
                    },
                )
        return pairs

    def settles(self, free: bool, units: Mapping[int, int], part: Part, chance: float) -> bool:
        """Return whether the steps of a `part` of the blocks take another time than those of the
        last third, on one side at least. `units`: by arm, the steps after which their times repeat.

        Four blocks differ by chance. So the noise within the last thirds counts too: a difference
        of BY_STEPS standard errors is no chance, even if few blocks show it.
        """
        for arm, unit in units.items():
            parts = [
                (early, late)
                for early, late in zip(
                    self._of(arm, part, units), self._of(arm, last_third, units), strict=True
                )
                if early.work > 0 and late.work > 0
            ]
            ratios = [
                math.log(
                    (early.time_s(0.0, free) / early.work) / (late.time_s(0.0, free) / late.work)
                )
                for early, late in parts
            ]
            if differs(ratios, DIFFERS, chance):
                return True
            if len(ratios) < MIN_PAIRS or abs(mean := statistics.fmean(ratios)) <= DIFFERS:
                continue
            variance = self._variance(arm, unit, free)
            squares = sum(unit / early.steps + unit / late.steps for early, late in parts)
            if variance and abs(mean) > BY_STEPS * math.sqrt(variance * squares) / len(ratios):
                return True
        return False

    def _variance(self, arm: int, unit: int, free: bool) -> float | None:
        """Return the relative variance of the time of `unit` successive steps of `arm` within the
        last thirds of its blocks; None where each third has fewer than two such units."""
        squares, degrees = 0.0, 0
        for blocks in self._blocks:
            steps = last_third(blocks[arm], unit)
            chunks = [
                self._sums_of_steps(steps[at : at + unit]) for at in range(0, len(steps), unit)
            ]
            times = [of.time_s(0.0, free) / of.work for of in chunks if of.work > 0]
            if len(times) > 1:
                squares += (
                    statistics.variance(times) / statistics.fmean(times) ** 2 * (len(times) - 1)
                )
                degrees += len(times) - 1
        return squares / degrees if degrees else None

    def waits_differ(self) -> bool:
        """Return whether the training thread waits for a core longer on one side than on the other,
        by more than chance. The sides are drawn at random, so other programs disturb both alike:
        the change itself makes such a difference."""
        pairs = (self.pairs(free).log_ratios for free in (True, False))
        return differs([free - wall for free, wall in zip(*pairs, strict=True)], OWN_WAIT)


def differs(values: Collection[float], least: float, chance: float = CHANCE) -> bool:
    """Return whether the mean of `values` is beyond `least` on either side of 0, and not by chance
    (Student's t). False for fewer than MIN_PAIRS values."""
    if len(values) < MIN_PAIRS:
        return False
    mean, error = statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))
    return abs(mean) > least and abs(mean) > student_quantile(len(values) - 1, chance) * error


def confirms(log_ratios: Sequence[float]) -> bool:
    """Return whether the changed side is faster by these pairs alone, at one look (97.5 %)."""
    if len(log_ratios) < MIN_PAIRS:
        return False
    error = statistics.stdev(log_ratios) / math.sqrt(len(log_ratios))
    return statistics.fmean(log_ratios) > student_quantile(len(log_ratios) - 1, 0.05) * error
