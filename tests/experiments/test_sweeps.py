"""Points, their order, and when one is clearly not the best."""

from __future__ import annotations

import pytest

from gpuconsole.experiments.sweep import interval, points, rounds, settle
from gpuconsole.model.experiments.sweep import SweepPoint
from gpuconsole.model.knobs.catalogue import Knobs

BASE: Knobs = {"batch_size": 8, "num_workers": 0, "precision": "fp32"}


def test_one_factor_at_a_time_goes_through_the_base_once() -> None:
    found = points({"batch_size": [4, 8], "num_workers": [0, 1, 2]}, BASE, False)
    assert found == [
        {"batch_size": 8, "num_workers": 0},
        {"batch_size": 4, "num_workers": 0},
        {"batch_size": 8, "num_workers": 1},
        {"batch_size": 8, "num_workers": 2},
    ]


def test_a_base_that_nobody_asked_for_is_left_out() -> None:
    assert points({"batch_size": [1, 2]}, BASE, False) == [{"batch_size": 1}, {"batch_size": 2}]


def test_a_grid_has_every_combination() -> None:
    assert len(points({"batch_size": [4, 8], "num_workers": [0, 1, 2]}, BASE, True)) == 6


def test_rounds_go_to_and_fro() -> None:
    assert list(rounds(3, 3)) == [[0, 1, 2], [2, 1, 0], [0, 1, 2]]


def test_the_interval_is_students() -> None:
    assert interval([5.0]) is None
    low, high = interval([9.0, 10.0, 11.0, 10.0]) or (0.0, 0.0)
    assert (low, high) == (pytest.approx(10 - 3.182 * 0.8165 / 2, rel=1e-3), pytest.approx(10 + 3.182 * 0.8165 / 2, rel=1e-3))


def test_what_is_clearly_slower_is_settled_and_what_may_be_best_is_not() -> None:
    found = [SweepPoint({}, rates) for rates in ([10.0, 10.1, 9.9, 10.0], [9.9, 10.2, 9.8, 10.1], [5.0, 5.1, 4.9, 5.0], [1.0, 1.0])]
    settle(found)
    assert [one.settled for one in found] == [False, False, True, False], "two repeats prove nothing"
