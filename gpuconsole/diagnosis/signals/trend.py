"""Signals of the trend of the step time over the whole run, steady or not: `session.figures.trend` says what a trend is."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from gpuconsole.model.finding import Signal
from gpuconsole.model.stacks import PARTS
from gpuconsole.session.figures.trend import Block, StepBlocks, Trend
from gpuconsole.session.places import StackRecord, growing

PER = 100
"""Steps: a slope per step has too many zeros to be read."""
WORTH_PHASES = 0.1
"""The least growth for which the growth of each phase and of each function is computed. That costs more than the trend."""


def trend_signals(blocks: StepBlocks, stacks: StackRecord) -> dict[str, Signal]:
    """Empty while there are too few steps. The phases and the function only where the step time grows."""
    trend = blocks.trend()
    if trend is None:
        return {}
    first, last = trend.blocks[0], trend.blocks[-1]
    source = f"medians of {len(trend.blocks)} blocks of steps, steps {first.step:.0f} to {last.step:.0f} in {last.t - first.t:.0f} s"
    slope = f"{source}: slope by Theil and Sen"
    parts = f"{source}: differences between the medians of eighths"
    signals = {
        "trend.per_100_steps_s": Signal(trend.slope.middle * PER, "s", slope),
        "trend.per_100_steps_low_s": Signal(trend.slope.low * PER, "s", f"{slope}, lower end of the 95 % interval"),
        "trend.per_100_steps_high_s": Signal(trend.slope.high * PER, "s", f"{slope}, upper end of the 95 % interval"),
        "trend.growth_ratio": Signal(trend.growth, "ratio", f"{slope}, growth since the start"),
        "trend.start_s": Signal(trend.start_s, "s", f"{slope}, step time at the start"),
        "trend.steps": Signal(trend.steps, "steps", source),
        "trend.rises_ratio": Signal(trend.rises, "ratio", f"{parts}: share of the quarters that keep on rising"),
        "trend.jump_ratio": Signal(trend.jump, "ratio", f"{parts}: the largest growth within a quarter, as a share of all growth"),
        "trend.fall_ratio": Signal(trend.fall, "ratio", f"{parts}: the largest fall, as a share of all growth"),
        "trend.late_ratio": Signal(trend.late, "ratio", f"{source}: slope of the second half over that of the first half"),
        "trend.work_ratio": Signal(
            trend.work, "ratio", f"{source}: log growth of the samples or tokens of a step over the log growth of the step time"
        ),
    }
    if trend.growth < WORTH_PHASES:
        return signals
    for phase, of_phase in trend.phases().items():
        signals[f"trend.{phase}_s"] = Signal(of_phase.middle * PER, "s", f"{slope}, of this phase")
    return signals | _place(trend, stacks)


def _place(trend: Trend, stacks: StackRecord) -> dict[str, Signal]:
    """The function that takes most of the growth: samples of the first third of the time against those of the last third."""
    begun, ended = max(trend.blocks[0].t, stacks.first_t), trend.blocks[-1].t
    third = (ended - begun) / 3
    if third <= 0:
        return {}
    early_s, late_s = (_step_s(trend.blocks, since, since + third) for since in (begun, ended - third))
    grown = growing(stacks.between(begun, begun + third), stacks.between(ended - third, ended), early_s, late_s)
    if grown is None or late_s <= early_s:
        return {}
    place, seconds = grown
    caller = f", called at {place.caller.partition(' ')[0]}" if place.caller else ""
    source = f"stack samples of the last third against those of the first third, most growth at {place.line} {place.function}{caller}, {PARTS[place.part]}"
    return {"trend.place_ratio": Signal(min(1.0, seconds / (late_s - early_s)), "ratio", source)}


def _step_s(blocks: Sequence[Block], begun: float, ended: float) -> float:
    """The step time in this stretch of time; 0 without a block in it."""
    inside = [block.wall_s for block in blocks if begun < block.t <= ended]
    return statistics.fmean(inside) if inside else 0.0
