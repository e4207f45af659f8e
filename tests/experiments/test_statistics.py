import math
import random

import pytest

from gpuconsole.experiments.statistics import (
    BETWEEN,
    MIN_PAIRS,
    confidence_sequence,
    exhausted,
    resolution,
    simultaneous_interval,
    speedup,
    student_quantile,
    verdict,
)

APART = BETWEEN["two workers ABBA"]


def trial(effect: float, noise: float, seed: int, pairs: int = 25) -> str:
    """The verdict of a trial that is looked at after every pair and stops as soon as it may."""
    chance, values = random.Random(seed), []
    for _ in range(pairs):
        values.append(chance.gauss(math.log(effect), noise))
        decided = verdict(values)
        if decided:
            return decided
    return "undecided"


def test_no_difference_is_hardly_ever_called_a_win() -> None:
    """400 A/A trials at 8 % noise, stopped at the first chance: the peeking must not pay."""
    verdicts = [trial(1.0, 0.08, seed) for seed in range(400)]
    assert verdicts.count("win") + verdicts.count("worse") <= 4


def test_two_processes_that_differ_by_chance_are_hardly_ever_called_a_win() -> None:
    """Their difference is the same in every pair, so that no number of pairs takes it off."""
    wins = 0
    for seed in range(400):
        chance = random.Random(seed)
        apart = chance.gauss(0.0, APART)
        values = [apart + chance.gauss(0.0, 0.02) for _ in range(30)]
        wins += any(verdict(values[:n], (), APART) == "win" for n in range(MIN_PAIRS, 31))
    assert wins <= 8


def test_pairs_end_when_most_of_the_doubt_lies_between_the_processes() -> None:
    alike = [0.031, 0.029, 0.03, 0.031, 0.029]
    assert exhausted(alike, (), APART) and not exhausted(alike, (), 0.0)
    assert not exhausted([0.3, -0.2, 0.25, -0.1], (), APART)
    assert not exhausted(alike, [0.2, -0.2, 0.2], APART), (
        "blocks of one side tell that they agree by chance"
    )
    assert verdict(alike, (), APART) is None and verdict(alike) == "win"
    assert verdict([value + 0.2 for value in alike], (), APART) == "win"


def test_real_differences_are_found() -> None:
    assert [trial(1.3, 0.08, seed) for seed in range(50)].count("win") >= 48
    assert [trial(0.5, 0.08, seed) for seed in range(50)].count("worse") >= 48


def test_few_pairs_that_agree_by_chance_are_no_win_where_blocks_of_one_side_differ_as_much() -> (
    None
):
    agree = [0.10, 0.101, 0.099, 0.10]
    assert verdict(agree) == "win"
    assert verdict(agree, [0.08, -0.07, 0.09]) is None
    assert verdict(agree, [0.004, -0.003, 0.002]) == "win"


def test_the_resolution_shrinks_with_pairs_and_needs_nulls() -> None:
    assert resolution([0.05], 4) is None
    few, many = resolution([0.05, -0.05, 0.05], 4), resolution([0.05, -0.05] * 10, 21)
    assert few is not None and many is not None and 0.0 < many < few


def test_two_percent_is_the_least_that_counts() -> None:
    assert trial(1.005, 0.001, 1) == "no_gain"


def test_no_verdict_before_enough_pairs() -> None:
    assert verdict([0.5] * (MIN_PAIRS - 1)) is None
    assert verdict([0.5] * MIN_PAIRS) == "win"
    assert speedup([0.1]) is None


def test_the_interval_holds_the_truth() -> None:
    inside = 0
    for seed in range(300):
        chance = random.Random(seed)
        effect = speedup([chance.gauss(math.log(1.2), 0.1) for _ in range(10)])
        assert effect is not None
        inside += effect.low <= 1.2 <= effect.high
    assert inside >= 285


@pytest.mark.parametrize(
    ("degrees", "alpha", "expected"),
    [(1, 0.05, 12.706), (2, 0.001, 31.599), (3, 0.01, 5.841), (9, 0.05, 2.262), (30, 0.001, 3.646)],
)
def test_the_quantile_of_students_t_agrees_with_printed_tables(
    degrees: int, alpha: float, expected: float
) -> None:
    assert student_quantile(degrees, alpha) == pytest.approx(expected, abs=5e-4)


def test_one_interval_is_the_confidence_sequence_and_more_intervals_are_wider() -> None:
    values = [9.0, 10.0, 11.0, 10.0]
    _, low, high = confidence_sequence(values)
    assert simultaneous_interval(values, 1) == (
        pytest.approx(low, rel=1e-3),
        pytest.approx(high, rel=1e-3),
    )
    widths = [
        high - low
        for low, high in filter(None, (simultaneous_interval(values, n) for n in (1, 4, 16)))
    ]
    assert widths == sorted(widths) and len(set(widths)) == 3
    assert simultaneous_interval([5.0], 4) is None
