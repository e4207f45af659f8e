"""How many steps the next block of a trial has, decided before the block begins; and the noise that
the steps within the blocks show.

A block that ends as soon as its steps take long enough ends more often with a long step than with a
short one. So the rate of bursty steps came out too low: N workers of a loader deliver N batches
together, and the next step waits. A block here ends after a number of steps that does not depend on
how long its own steps take.
"""

from __future__ import annotations

import math
import operator
import random
import statistics
from collections import deque
from collections.abc import Sequence

from gpuconsole.experiments.statistics import BASELINE, CHANGED, MAX_BLOCK_S, MIN_STEPS, BlockPlan
from gpuconsole.model.run import COUNTS, Step
from gpuconsole.session.figures.rate import Work

RECENT_BLOCKS = 8
"""Blocks of a side in which its cycle is looked for."""
MAX_CYCLE = 16
"""The longest cycle that is looked for, in steps."""
MIN_CORRELATED = 0.5
"""Steps repeat after a number of steps if their times are correlated by more than this over that
number."""
MIN_SPREAD = 0.1
"""Steps that differ by less than this share of their mean have no cycle that matters."""
MAX_SKIPPED_S = 1.0
"""Most seconds of steps that are skipped before a block of unequal steps."""
UNEQUAL = 0.5
"""The standard deviation of unequal steps over their mean, at least."""
LONGER = 2
"""Factor for the length of a block of unequal steps whose cycle is not known: the cycle shows in a
longer block. The length stays where the block would take longer than MAX_BLOCK_S, and where the
block has whole rounds of the workers or whole known periods anyway."""
MIN_CHUNKS = 3
"""Whole cycles from which a spread is estimated."""
LOOKED_FOR = math.log(200)
"""A stall in one of N steps is missed by N times this number of steps in one of 200 trials."""


class Lengths:
    """The number of steps of each block of a trial or a sweep, by arm."""

    def __init__(self, step_s: float | None = None, seed: int = 0) -> None:
        """`step_s`: the mean time of a step of the baseline before, where it is known. `seed`: of
        the steps that are skipped at random."""
        self._before_s, self._chance = step_s, random.Random(seed)
        self._sums: dict[int, tuple[float, int]] = {}
        self._recent: dict[int, deque[list[float]]] = {}
        self._cycles: dict[int, int] = {}

    def step_s(self, arm: int) -> float | None:
        """The mean time of a step of `arm`; None where no step of it is known. The steps of another
        arm say nothing: a change may make them seven times faster, and a block of so few steps as
        the other needs would end after a tenth of a second."""
        if arm in self._sums:
            seconds, count = self._sums[arm]
            return seconds / count
        return self._before_s if arm == BASELINE else None

    def cycle(self, arm: int) -> int:
        """After how many steps the times of the steps of `arm` repeat; 1 where they do not."""
        if arm not in self._cycles:
            self._cycles[arm] = cycle_of(self._recent.get(arm, ()))
        return self._cycles[arm]

    def whole(self, arm: int, plan: BlockPlan) -> int:
        """Return the steps of which a block of `arm` counts a multiple: its cycle, or 1 where its
        blocks are too short for whole cycles."""
        step_s, cycle = self.step_s(arm), self.cycle(arm)
        return cycle if step_s is not None and plan.holds(step_s, cycle) else 1

    def skipped(self, arm: int) -> int:
        """How many steps are skipped before the next block of `arm`.

        A change of sides waits for the end of a step, and most likely that of a long one. So
        unequal steps would begin each block at the same place of their cycle. A block of whole
        cycles does not depend on that.
        """
        if arm in self._recent and (self.cycle(arm) > 1 or not self._unequal(arm)):
            return 0
        step_s = self.step_s(arm)
        return (
            self._chance.randint(0, min(MAX_CYCLE - 1, int(MAX_SKIPPED_S / max(step_s, 1e-9))))
            if step_s is not None
            else 0
        )

    def count(self, arm: int, plan: BlockPlan, stretch: float) -> int | None:
        """The number of steps of the next block of `arm`; None where no step is known yet, so that
        a few steps must be seen first."""
        step_s, cycle = self.step_s(arm), self.cycle(arm)
        if step_s is None:
            return None
        if (
            cycle == 1
            and plan.unit == 1
            and LONGER * MIN_STEPS * step_s <= MAX_BLOCK_S
            and self._unequal(arm)
        ):
            stretch *= LONGER
        return plan.count(step_s, stretch, cycle)

    def _unequal(self, arm: int) -> bool:
        every = [seconds for block in self._recent.get(arm, ()) for seconds in block]
        return bool(every) and statistics.pstdev(every) >= UNEQUAL * statistics.fmean(every)

    def add(self, arm: int, walls: list[float]) -> None:
        """Add the seconds of the steps of a block."""
        seconds, count = self._sums.get(arm, (0.0, 0))
        self._sums[arm] = seconds + sum(walls), count + len(walls)
        self._recent.setdefault(arm, deque(maxlen=RECENT_BLOCKS)).append(walls)
        self._cycles.pop(arm, None)


class NextBlock:
    """The next block of a side: takes its steps as they arrive.

    How many steps count is decided before the first of them. Where nothing is known about the
    steps, a few are seen first, and do not count.
    """

    def __init__(self, plan: BlockPlan, lengths: Lengths, arm: int, stretch: float) -> None:
        self._plan, self._lengths, self._arm, self._stretch = plan, lengths, arm, stretch
        self._skipped, self._count = (
            plan.settling + lengths.skipped(arm),
            lengths.count(arm, plan, stretch),
        )
        self._seen = max(MIN_STEPS, 3 * plan.workers)
        """Steps that are seen first: of a loader with workers, three batches of each. The first two
        may have waited in the queue."""
        self._judged = max(MIN_STEPS, plan.workers)
        """The last of them, whose time counts."""

    def counted(self, arrived: Sequence[Step]) -> list[Step] | None:
        """The counted steps of the block, from all steps that have arrived since the switch; None
        while there are too few."""
        steps = [step for step in arrived if step.arm == self._arm and step.kind == COUNTS][
            self._skipped :
        ]
        if self._count is None and len(steps) >= self._seen:
            seen, steps = steps[: self._seen], steps[self._seen :]
            self._skipped += self._seen
            self._count = self._plan.count(
                statistics.fmean(step.wall_s for step in seen[-self._judged :]), self._stretch
            )
        if self._count is None or len(steps) < self._count:
            return None
        counted = steps[: self._count]
        self._lengths.add(self._arm, [self._plan.wall_s(step) for step in counted])
        return counted


def cycle_of(blocks: Sequence[Sequence[float]] | deque[list[float]]) -> int:
    """After how many steps the times of the steps in `blocks` repeat, up to MAX_CYCLE; 1 where they
    do not."""
    every = [seconds for block in blocks for seconds in block]
    if len(every) < 2 * MIN_STEPS:
        return 1
    mean = statistics.fmean(every)
    variance = statistics.fmean((seconds - mean) ** 2 for seconds in every)
    if variance < (MIN_SPREAD * mean) ** 2:
        return 1
    offsets = [[seconds - mean for seconds in block] for block in blocks]
    best, cycle = MIN_CORRELATED, 1
    for lag in range(2, MAX_CYCLE + 1):
        pairs = sum(max(0, len(block) - lag) for block in offsets)
        if pairs < max(2 * lag, 2 * MIN_STEPS):
            break
        together = (
            sum(sum(map(operator.mul, block, block[lag:])) for block in offsets) / pairs / variance
        )
        if together > best + 0.05:  # a multiple of the cycle is as good, and longer
            best, cycle = together, lag
    return cycle


class _Chunks:
    """Sums over chunks of `unit` successive steps of one side: their number, and the sums of work,
    seconds and products of both."""

    def __init__(self, unit: int) -> None:
        self.unit = unit
        self._count, self._work, self._seconds = 0, 0.0, 0.0
        self._of_work, self._of_both, self._of_seconds = 0.0, 0.0, 0.0

    def add(self, block: Sequence[tuple[float, float]]) -> None:
        for first in range(0, len(block) - self.unit + 1, self.unit):
            chunk = block[first : first + self.unit]
            work, seconds = sum(of for of, _ in chunk), sum(of for _, of in chunk)
            self._count, self._work, self._seconds = (
                self._count + 1,
                self._work + work,
                self._seconds + seconds,
            )
            self._of_work, self._of_both, self._of_seconds = (
                self._of_work + work * work,
                self._of_both + work * seconds,
                self._of_seconds + seconds * seconds,
            )

    def variance(self) -> float | None:
        """The relative variance of the time for the work of a step; None for fewer than MIN_CHUNKS
        chunks."""
        if self._count < MIN_CHUNKS or self._work <= 0 or self._seconds <= 0:
            return None
        per_work = self._seconds / self._work
        squares = (
            self._of_seconds - 2 * per_work * self._of_both + per_work * per_work * self._of_work
        )
        return (
            max(0.0, squares) / (self._count - 1) / (self._seconds / self._count) ** 2 * self.unit
        )


class StepNoise:
    """What the steps within the blocks of both sides say about the noise of a pair.

    Four pairs can agree by chance. The steps are many more. A cycle of steps counts as one, because
    the sum over a cycle does not depend on the order in it.
    """

    def __init__(self, work: Work, plan: BlockPlan, contention_free: bool) -> None:
        self._work, self._plan, self._free = work, plan, contention_free
        self._blocks: dict[int, list[list[tuple[float, float]]]] = {BASELINE: [], CHANGED: []}
        self._single = {arm: _Chunks(1) for arm in self._blocks}
        self._cycles = {arm: _Chunks(1) for arm in self._blocks}

    def add(self, arm: int, steps: Sequence[Step]) -> None:
        """Add the counted steps of a block."""
        block = [
            (
                self._work(step),
                self._plan.wall_s(step)
                - (self._plan.without_events(step)[1] if self._free else 0.0),
            )
            for step in steps
        ]
        self._blocks[arm].append(block)
        self._single[arm].add(block)
        self._cycles[arm].add(block)

    def deviation(self, cycles: dict[int, int]) -> float:
        """The standard deviation of the log ratio of a pair, from the steps alone. `cycles`: of
        each arm, in steps."""
        squares = 0.0
        for arm, blocks in self._blocks.items():
            if self._cycles[arm].unit != cycles[arm]:
                chunks = self._cycles[arm] = _Chunks(cycles[arm])
                for block in blocks:
                    chunks.add(block)
            of_step = self._cycles[arm].variance()
            if of_step is None:
                of_step = self._single[arm].variance() or 0.0
            squares += statistics.fmean(of_step / len(block) for block in blocks) if blocks else 0.0
        return math.sqrt(squares)

    @property
    def stalls_from(self) -> int:
        """The N for which a stall in one of N steps would have been seen on both sides."""
        fewest = min(sum(map(len, blocks)) for blocks in self._blocks.values())
        return max(1, round(fewest / LOOKED_FOR))
