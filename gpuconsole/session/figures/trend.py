"""Whether the steps of a run become longer and longer, and which part of a step grows.

Pure: steps go in, a `Trend` comes out. The steps of the whole run are kept as at most MAX_BLOCKS
blocks of equal length. A block holds medians, so that an evaluation, a checkpoint or a late core
now and then changes nothing.

The slope is Theil and Sen's, with its 95 % interval (Sen, 1968). Noise that lasts for several
blocks makes this interval too narrow, so a slope alone is no trend: the growth must go on. The
blocks are divided into PARTS parts, and the differences of their medians say whether the step time
rises in nearly every quarter of the run (no level shift, no warm-up) and never falls back (no
sawtooth).
"""

from __future__ import annotations

import itertools
import math
import operator
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gpuconsole.model.run import PHASES, Step
from gpuconsole.session.figures.distributions import Slope, median_slope, slope_of

BLOCK = 8
"""Steps of a median. It is that of ordinary steps where fewer than half of the steps are
special."""
MAX_BLOCKS = 128
"""With so many blocks, neighbours are joined."""
WARM_UP = 0.1
"""Share of the blocks at the start that does not count."""
PARTS = 8
"""Two neighbouring ones are a quarter of the run. Six quarters overlap; a level shift is in two of
them."""
MIN_BLOCKS = 3 * PARTS
MIN_STEPS = 200
"""Two rounds of what a program does every 100 steps: a sawtooth falls back once."""
EARLY_STEPS, EARLY_S = 40, 20.0
"""The least steps and seconds of a short run (fewer than MIN_STEPS steps) that is judged. Without
this, steps of 0.3 s could slow down for minutes before a finding."""
EARLY_BLOCKS = 64
"""The most blocks of a short run."""
MIN_S = 5.0
"""Seconds of steps. A processor changes its clock, or another program starts, within a few
seconds."""
KEEPS_ON = 0.25
"""A quarter keeps on rising from this share of the mean growth of a quarter on. Growth with the
square of the steps has 29 % of it in its first quarter."""


class StepBlock(NamedTuple):
    """Successive steps. `step` and `t`: the index and the end of the last one. All others are of a
    step; times are without run-queue delay."""

    step: float
    t: float
    wall_s: float
    samples: float
    tokens: float
    phases: tuple[float, ...]


class Trend(NamedTuple):
    """The trend of the step time over the blocks. Slopes are seconds per step.

    `start_s`: the step time at the start, by the slope. `rises`: the share of the quarters that
    keep on rising. `jump`: the largest growth within a quarter, `fall`: the largest fall from one
    part to a later one, both as shares of the growth. `late`: the slope of the second half over
    that of the first half. `work`: the factor by which the samples or the tokens in a step grow
    against that of the time, as logarithms: 0.5 where the time grows with their square.
    """

    blocks: Sequence[StepBlock]
    start_s: float
    slope: Slope
    rises: float
    jump: float
    fall: float
    late: float
    work: float

    @property
    def steps(self) -> float:
        return self.blocks[-1].step - self.blocks[0].step

    @property
    def growth(self) -> float:
        """The growth since the start, as a share of the step time at the start."""
        return self.slope.middle * self.steps / self.start_s

    def phases(self) -> dict[str, Slope]:
        """The slope of each phase."""
        return {
            name: _slope(self.blocks, [block.phases[place] for block in self.blocks])
            for place, name in enumerate(PHASES)
        }


class StepBlocks:
    """The steps of one run in blocks."""

    def __init__(self) -> None:
        self._steps: list[tuple[Step, float]] = []
        self._first: list[tuple[Step, float]] = []
        """The first MIN_STEPS steps."""
        self._medians: list[StepBlock] = []
        self._blocks: list[StepBlock] = []
        self._of_block = 1
        """The number of medians in a block."""

    def __len__(self) -> int:
        return len(self._blocks)

    def add(self, steps: Iterable[Step], delay: float) -> None:
        """Add ordinary steps. `delay`: the share of the time of these steps in which the thread
        waited for a CPU core."""
        for step in steps:
            if len(self._first) < MIN_STEPS:
                self._first.append((step, 1 - delay))
            self._steps.append((step, 1 - delay))
            if len(self._steps) < BLOCK:
                continue
            self._medians.append(_median(self._steps))
            self._steps = []
            if len(self._medians) == self._of_block:
                self._blocks.append(_mean(self._medians))
                self._medians = []
            if len(self._blocks) == MAX_BLOCKS:
                self._blocks = [_mean(self._blocks[at : at + 2]) for at in range(0, MAX_BLOCKS, 2)]
                self._of_block *= 2

    def _early_blocks(self) -> list[StepBlock]:
        """Return the steps of a short run in smaller blocks; empty while there are too few
        steps."""
        count = len(self._first)
        if count < EARLY_STEPS:
            return []
        size = math.ceil(count / EARLY_BLOCKS)
        return [_median(self._first[at : at + size]) for at in range(0, count - size + 1, size)]

    def trend(self) -> Trend | None:
        """The trend over all steps but those of the warm-up; None while there are too few."""
        blocks, least_s = _without_warm_up(self._blocks), MIN_S
        span = self._blocks[-1].step - self._blocks[0].step if self._blocks else 0.0
        if len(blocks) < MIN_BLOCKS or span < MIN_STEPS - BLOCK:
            blocks, least_s = _without_warm_up(self._early_blocks()), EARLY_S
        if len(blocks) < MIN_BLOCKS or blocks[-1].t - blocks[0].t < least_s:
            return None
        times = [block.wall_s for block in blocks]
        slope = _slope(blocks, times)
        begun = blocks[0].step
        start_s = statistics.median(
            block.wall_s - slope.middle * (block.step - begun) for block in blocks
        )
        span = blocks[-1].step - begun
        bounds = [round(part * len(blocks) / PARTS) for part in range(PARTS + 1)]
        middles = [
            statistics.median(times[early:late]) for early, late in itertools.pairwise(bounds)
        ]
        gained = middles[-1] - middles[0]
        if gained <= 0 or start_s <= 0 or slope.middle <= 0:
            return Trend(blocks, max(start_s, min(times)), slope, 0.0, 1.0, 1.0, 0.0, 0.0)
        quarters = [middles[at + 2] - middles[at] for at in range(PARTS - 2)]
        rises = sum(gain >= KEEPS_ON * gained * 2 / (PARTS - 1) for gain in quarters)
        jump = max(quarters)
        fall = max(max(middles[: at + 1]) - middles[at] for at in range(PARTS))
        half = len(blocks) // 2
        early_slope, late_slope = (
            _half_slope(part, wall)
            for part, wall in ((blocks[:half], times[:half]), (blocks[half:], times[half:]))
        )
        late = late_slope / early_slope if early_slope > 0 else float(late_slope > 0)
        growth = slope.middle * span / start_s
        work = max(
            _growth(blocks, [block.samples for block in blocks]),
            _growth(blocks, [block.tokens for block in blocks]),
        )
        return Trend(
            blocks,
            start_s,
            slope,
            rises / len(quarters),
            jump / gained,
            fall / gained,
            late,
            math.log1p(work) / math.log1p(growth),
        )


def _without_warm_up(blocks: list[StepBlock]) -> list[StepBlock]:
    return blocks[int(WARM_UP * len(blocks)) :]


def _slope(blocks: Sequence[StepBlock], values: Sequence[float]) -> Slope:
    return slope_of([block.step for block in blocks], values)


def _half_slope(blocks: Sequence[StepBlock], values: Sequence[float]) -> float:
    return median_slope([block.step for block in blocks], values)


def _growth(blocks: Sequence[StepBlock], values: Sequence[float]) -> float:
    """The growth of these values over the blocks as a share of their start; 0 where they do not
    grow or are not known."""
    slope = _slope(blocks, values).middle
    grown = slope * (blocks[-1].step - blocks[0].step)
    start = statistics.median(
        value - slope * (block.step - blocks[0].step)
        for block, value in zip(blocks, values, strict=True)
    )
    return max(0.0, grown / start) if start > 0 else 0.0


def _median(steps: Sequence[tuple[Step, float]]) -> StepBlock:
    last, _ = steps[-1]
    shares = [share for _, share in steps]
    columns = zip(*(step.phases for step, _ in steps), strict=True)
    return StepBlock(
        last.index,
        last.t,
        statistics.median(step.wall_s * share for step, share in steps),
        statistics.median(step.samples for step, _ in steps),
        statistics.median(step.tokens for step, _ in steps),
        # most programs have few phases: no median of zeros
        tuple(
            statistics.median(map(operator.mul, column, shares)) if any(column) else 0.0
            for column in columns
        ),
    )


def _mean(blocks: Sequence[StepBlock]) -> StepBlock:
    """Successive blocks as one."""
    return StepBlock(
        blocks[-1].step,
        blocks[-1].t,
        statistics.fmean(block.wall_s for block in blocks),
        statistics.fmean(block.samples for block in blocks),
        statistics.fmean(block.tokens for block in blocks),
        tuple(
            statistics.fmean(column) if any(column) else 0.0
            for column in zip(*(block.phases for block in blocks), strict=True)
        ),
    )
