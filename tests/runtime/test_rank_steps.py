"""What the steps of several processes say together."""

from __future__ import annotations

import pytest

from gpuconsole.model.run import COUNTS, PHASES, Step
from gpuconsole.runtime.rank_steps import Ranks
from gpuconsole.wire.events import RankJoined, Steps


def steps(rank: int, waits: list[float]) -> Steps:
    """Steps of 0.1 s of which so much is communication."""
    made = []
    for index, wait in enumerate(waits):
        phases = [0.0] * len(PHASES)
        phases[PHASES.index("comm")], phases[PHASES.index("backward")] = wait, 0.1 - wait
        made.append(Step(index, 0.1 * index, 0.1, 1, 0, tuple(phases), (0.0,) * len(PHASES), None, 0, COUNTS))
    return Steps(0.0, made, 0.0, 0.0, 0.0, 0.0, 0, rank)


def signals(*waits: list[float]) -> dict[str, float]:
    ranks = Ranks()
    for rank, of_rank in enumerate(waits):
        ranks.join(RankJoined(0.0, rank, "here", 100 + rank, rank == 0))
        ranks.add(steps(rank, of_rank))
    return {name: signal.value for name, signal in ranks.signals().items()}


def test_who_waits_for_a_late_process_does_not_communicate_meanwhile() -> None:
    found = signals([0.05, 0.02, 0.05, 0.02], [0.02, 0.05, 0.02, 0.05])
    assert found["ranks.least_comm_ratio"] == pytest.approx(0.2)


def test_a_step_that_one_process_has_not_told_yet_is_left_out() -> None:
    assert signals([0.05] * 5, [0.03] * 4)["ranks.least_comm_ratio"] == pytest.approx(0.3)
    assert signals([0.05] * 5, [0.03] * 2) == {}
