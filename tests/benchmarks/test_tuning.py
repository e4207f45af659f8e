"""Searches against the tuner: replayed on a grid of made-up figures."""

from __future__ import annotations

import pytest

from benchmarks.tuning.__main__ import (
    good_at,
    median_of_sessions,
    replayed,
    table,
    told,
    tuner_curve,
)
from benchmarks.tuning.curves import curve
from benchmarks.tuning.searches import best_rate, held, median_curve, random_order, tpe_order
from benchmarks.tuning.spaces import SPACES
from gpuconsole.engine.catalog import find_scenario
from gpuconsole.experiments.sweep import points
from gpuconsole.model.certificate import Attempt, Certificate
from gpuconsole.model.experiments import Speedup, Trial
from gpuconsole.model.knobs.catalogue import check_knobs


@pytest.mark.parametrize("scenario", SPACES)
def test_searched_knobs_exist_and_the_start_is_on_the_grid(scenario: str) -> None:
    chosen = find_scenario(scenario)
    start = chosen.knobs_for("cpu")
    for name, values in SPACES[scenario].items():
        assert (
            all(check_knobs({name: value}, chosen.workload.knobs, scenario) for value in values)
            and start[name] in values
        )


def test_searches_find_what_the_grid_found() -> None:
    space = {"a": [1, 2, 3], "b": [1, 2, 3]}
    grid = points(space, {}, grid=True)  # type: ignore[arg-type]
    rates = [float(int(knobs["a"]) * int(knobs["b"])) for knobs in grid]
    assert held(random_order(9, 0), rates, rates)[-1] == 9.0
    pytest.importorskip("optuna")
    assert held(tpe_order(grid, rates, space, 0), rates, rates)[-1] == 9.0  # type: ignore[arg-type]


def test_what_is_held_never_looks_worse_and_may_be() -> None:
    assert held([1, 2, 0], [4.0, 1.0, 3.0], [4.0, 1.0, 3.0]) == [1.0, 3.0, 4.0]
    # by other blocks it was luck
    assert held([1, 2, 0], [4.0, 1.0, 3.0], [2.0, 1.0, 3.0]) == [1.0, 3.0, 2.0]
    assert median_curve([[1.0, 4.0, 4.0], [3.0, 3.0, 4.0]], 4.0) == [0.5, 0.875, 1.0]


def test_a_search_that_trusts_fewer_blocks_pays_for_fewer() -> None:
    points = [({"batch_size": size}, [1.0, 1.0, *[float(size)] * 4]) for size in (1, 2, 4)]
    pytest.importorskip("optuna")
    whole, quick = (
        replayed({"block_s": 2.0, "rates": points}, {"batch_size": [1, 2, 4]}, blocks)
        for blocks in (6, 2)
    )
    assert whole["grid"] == [
        (12.0, pytest.approx(0.3333, abs=1e-4)),
        (24.0, pytest.approx(0.5556, abs=1e-4)),
        (36.0, 1.0),
    ]
    # by two blocks all looked alike
    assert quick["grid"] == [(4.0, 0.25), (8.0, 0.25), (12.0, 0.25)]
    assert good_at(whole["grid"]) == 36.0 and good_at(quick["grid"]) is None


def test_the_best_is_not_the_luckiest() -> None:
    # the half that chose the second is not asked again
    assert best_rate([[10.0, 10.0, 10.0, 10.0], [12.0, 8.0, 12.0, 8.0]]) == 9.0


def attempt(at_s: float, gain: float, kept: bool) -> Attempt:
    trial = Trial(
        "1",
        "1",
        {"batch_size": 2},
        state="done",
        speedup=Speedup(gain, gain, gain),
        verdict="win",
        kept=kept,
    )
    return Attempt("gpu.small_batch", {"batch_size": 1}, trial, at_s=at_s)


def test_the_tuners_curve_goes_back_from_what_it_ended_with() -> None:
    attempts = [attempt(10.0, 2.0, True), attempt(20.0, 1.5, False), attempt(30.0, 1.25, True)]
    made = Certificate(scenario="train-gpt", device="cpu", start={}, end={}, attempts=attempts)
    found = tuner_curve(made, 1.0)
    assert found == [(0.0, pytest.approx(0.4)), (10.0, pytest.approx(0.8)), (30.0, 1.0)]
    shares = {
        name: [(50.0 * n, share) for n, share in enumerate((0.5, 0.9, 1.0), 1)]
        for name in ("grid", "random", "tpe")
    }
    drawn = curve("train-gpt", {"curves": {**shares, "tune": found}})
    assert "●" in drawn and "64 s" in drawn


def test_the_tuners_time_is_that_by_which_half_of_its_sessions_have_it() -> None:
    sessions = [[(0.0, 0.5), (20.0, 1.0)], [(0.0, 0.5), (10.0, 0.7), (30.0, 1.0)], [(0.0, 0.5)]]
    assert median_of_sessions(sessions) == [(0.0, 0.5), (10.0, 0.5), (20.0, 0.7), (30.0, 1.0)]
    pytest.importorskip("optuna")
    grid = {
        "repeats": 4,
        "budget_s": 60.0,
        "points": 3,
        "block_s": 2.0,
        "grid_best": {"batch_size": 4},
        "scenario": "train-gpt",
    }
    rates = [({"batch_size": size}, [float(size)] * 4) for size in (1, 2, 4)]
    rows = [
        {
            **grid,
            "rates": rates,
            "tune_curve": found,
            "tune_end_s": 40.0,
            "reached": found[-1][1],
            "reached_interval": [0.9, 1.1],
            "shares": [1.0, 1.1],
        }
        for found in sessions
    ]
    found = told(rows, {"batch_size": [1, 2, 4]})
    assert found["tune_s"] == 30.0 and [one["tune_s"] for one in found["sessions"]] == [
        20.0,
        30.0,
        None,
    ]
    assert "20, 30, never" in table({"train-gpt": found})
