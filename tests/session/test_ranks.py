"""What the steps of several processes say together."""

from __future__ import annotations

import pytest

from gpuconsole.model.run import COUNTS, PHASES, Step
from gpuconsole.session.run import Ranks
from gpuconsole.wire.events import RankJoined, Steps


def steps(rank: int, waits: list[float], first: int = 0) -> Steps:
    """Steps of 0.1 s of which so much is communication."""
    made = []
    for index, wait in enumerate(waits, first):
        phases = [0.0] * len(PHASES)
        phases[PHASES.index("comm")], phases[PHASES.index("backward")] = wait, 0.1 - wait
        made.append(Step(index, 0.1 * index, 0.1, 1, 0, tuple(phases), (0.0,) * len(PHASES), None, 0, COUNTS))
    return Steps(0.0, made, 0.0, 0.0, 0.0, 0.0, 0, rank)


def signals(*told: Steps) -> dict[str, float]:
    ranks = Ranks()
    for one in told:
        ranks.join(RankJoined(0.0, one.rank, "here", 100 + one.rank, one.rank == 0))
        ranks.add(one)
    return {name: signal.value for name, signal in ranks.signals().items()}


def test_who_waits_for_a_late_process_does_not_communicate_meanwhile() -> None:
    found = signals(steps(0, [0.05, 0.02, 0.05, 0.02]), steps(1, [0.02, 0.05, 0.02, 0.05]))
    assert found["ranks.least_comm_ratio"] == pytest.approx(0.2)


def test_a_step_that_one_process_has_not_told_yet_is_left_out() -> None:
    assert signals(steps(0, [0.05] * 5), steps(1, [0.03] * 4))["ranks.least_comm_ratio"] == pytest.approx(0.3)
    few_in_common = signals(steps(0, [0.05] * 5), steps(1, [0.03] * 5, first=3))
    assert "ranks.busy_ratio" in few_in_common and "ranks.least_comm_ratio" not in few_in_common
