"""What the steps of several processes say together."""

from __future__ import annotations

import msgspec
import pytest

from gpuconsole.model.run import COUNTS, PHASES, Step
from gpuconsole.session.run import Ranks
from gpuconsole.session.state import SessionState
from gpuconsole.wire.events import RankJoined, RunOpened, Started, Steps


def steps(rank: int, waits: list[float], first: int = 0) -> Steps:
    """Steps of 0.1 s of which so much is communication."""
    made = []
    for index, wait in enumerate(waits, first):
        phases = [0.0] * len(PHASES)
        phases[PHASES.index("comm")], phases[PHASES.index("backward")] = wait, 0.1 - wait
        made.append(
            Step(
                index, 0.1 * index, 0.1, 1, 0, tuple(phases), (0.0,) * len(PHASES), None, 0, COUNTS
            )
        )
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
    assert signals(steps(0, [0.05] * 5), steps(1, [0.03] * 4))[
        "ranks.least_comm_ratio"
    ] == pytest.approx(0.3)
    few_in_common = signals(steps(0, [0.05] * 5), steps(1, [0.03] * 5, first=3))
    assert "ranks.busy_ratio" in few_in_common and "ranks.least_comm_ratio" not in few_in_common


def test_where_no_process_has_joined_the_first_one_stands_for_the_run() -> None:
    """A program may train alone with another number than 0."""
    ranks = Ranks()
    ranks.add(steps(3, [0.05]))
    assert [ranks.leads(rank) for rank in range(4)] == [False, False, False, True]
    ranks.join(RankJoined(0.0, 1, "here", 101, leads=True))
    assert [ranks.leads(rank) for rank in range(4)] == [False, True, False, False]


def test_a_message_that_comes_twice_counts_once() -> None:
    state = SessionState()
    state.apply(RunOpened(0.0, "1", "train.py", "job", {}, "cpu"))
    state.apply(Started(0.0, {}, {}))
    for message in (steps(0, [0.05] * 5), steps(0, [0.05] * 5, first=5)):
        state.apply(message)
        state.apply(msgspec.structs.replace(message))
    record = state.record
    assert record is not None and [step.index for step in record.steps] == list(range(10))


@pytest.mark.parametrize("joined", [True, False])
def test_a_second_process_that_has_not_joined_adds_no_steps(joined: bool) -> None:
    state = SessionState()
    state.apply(RunOpened(0.0, "1", "train.py", "job", {}, "cpu"))
    if joined:
        state.apply(RankJoined(0.0, 0, "here", 100, leads=True))
    state.apply(Started(0.0, {}, {}))
    for rank in (0, 1):
        state.apply(steps(rank, [0.05] * 100))
    record = state.record
    assert record is not None and record.seen_steps == 100
