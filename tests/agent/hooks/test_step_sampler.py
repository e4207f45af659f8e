"""Which steps of a job have readings of the run queue: each kind of step as often as it comes,
whatever it takes."""

from __future__ import annotations

from collections import Counter

import pytest

from gpuconsole.agent.hooks.job import POLL_EVERY_S
from gpuconsole.agent.hooks.segment_breakdown import StepSampler
from gpuconsole.agent.step_breakdown import SAMPLE_SPAN_S


def sampled(walls: list[float], steps: int) -> tuple[Counter[int], float]:
    """How often each position of a cycle of steps with these durations is sampled, and the seconds
    of the whole. The agent looks every 50 ms."""
    sampler, found, at, t, due = StepSampler(), Counter[int](), -1, 0.0, 0.0
    for index in range(steps):
        if t >= due:
            at, due = sampler.next(index, t, low_rate=False), t + POLL_EVERY_S
        if index == at:
            found[index % len(walls)] += 1
        t += walls[index % len(walls)]
    return found, t


def test_a_long_step_is_sampled_as_often_as_a_short_one() -> None:
    """The rollouts of reinforcement learning are in one step of eight. With distances in seconds,
    none of 1 794 samples was of this step."""
    found, seconds = sampled([0.026, *[0.0014] * 7], 80_000)
    assert found.total() == pytest.approx(seconds / SAMPLE_SPAN_S, rel=0.5)
    assert found[0] == pytest.approx(found.total() / 8, rel=0.25)


def test_slow_steps_are_all_sampled_and_fast_ones_at_the_usual_distance() -> None:
    slow, _ = sampled([2.0], 100)
    assert slow.total() >= 99
    fast, seconds = sampled([0.0005], 40_000)
    assert fast.total() == pytest.approx(seconds / SAMPLE_SPAN_S, rel=0.3)


def test_after_a_change_that_makes_steps_slow_the_next_sample_comes_soon() -> None:
    sampler = StepSampler()
    for n in range(100):
        sampler.next(n * 500, n * 0.05, low_rate=False)
    index, t, waited = 50_000, 5.0, 0
    while sampler.next(index, t, low_rate=False) > index:
        index, t, waited = index + 1, t + 0.5, waited + 1
    assert waited <= 40
