"""Which process comes last to the collectives of a job: from made-up calls."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpuconsole.model.run import COLLECTIVE_KINDS, Arrival, CollectiveKind, Collectives
from gpuconsole.session.communication import (
    GROUPS,
    HOSTS,
    TIMING,
    CollectivesRecord,
    is_timed,
    latest,
    matched,
    shortest_s,
    why_not_compared,
)

GATHER, REDUCE = COLLECTIVE_KINDS.index("all_gather"), COLLECTIVE_KINDS.index("all_reduce")
TRANSFER_S = 0.001
Work = Callable[[int, int], float]
"""Rank and number of a collective -> seconds of work before it."""


def processes(
    work: Work, count: int = 80, ranks: int = 2, timed: bool = False, skew: int = 0
) -> dict[int, CollectivesRecord]:
    """Processes that wait for each other in each collective: four gathers and a reduction in a
    step. `skew`: collectives that the last process reports beyond those of the others."""
    calls: dict[int, list[Arrival]] = {rank: [] for rank in range(ranks)}
    end = 1e6
    for number in range(count):
        at = {rank: end + work(rank, number) for rank in calls}
        end = max(at.values()) + TRANSFER_S
        kind = REDUCE if number % 5 == 4 else GATHER
        for rank, t in at.items():
            calls[rank].append(
                Arrival("0", ranks, number, kind, round(t * 1e6), end - t if timed else 0.0, 3e7)
            )
    calls[ranks - 1] = calls[ranks - 1][skew:]
    made = {rank: CollectivesRecord() for rank in calls}
    for rank, record in made.items():
        record.add(
            Collectives(16, [CollectiveKind("all_gather", 64, 6400, 0.0, 0)], calls[rank], "")
        )
    return made


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_process_that_sleeps_before_a_collective_is_the_last(timed: bool, ranks: int) -> None:
    reads = matched(
        processes(
            lambda rank, number: 0.002 + 0.02 * (rank == 1 and number % 5 == 4),
            ranks=ranks,
            timed=timed,
            skew=7,
        )
    )
    assert is_timed(reads) is timed
    late = latest(reads, timed)
    assert late is not None and (late.rank, late.kind, late.n) == (1, "all_reduce", late.n)
    step_s = 5 * (0.002 + TRANSFER_S) + 0.02
    assert late.share == pytest.approx(0.02 / step_s, rel=0.1) and late.spread < 0.1


@pytest.mark.parametrize("timed", [False, True])
def test_processes_that_are_late_in_turn_are_no_stragglers(timed: bool) -> None:
    late = latest(
        matched(
            processes(lambda rank, number: 0.002 + 0.01 * (number // 5 % 2 == rank), timed=timed)
        ),
        timed,
    )
    assert late is not None and late.share < 0.1


def test_calls_that_are_queued_ahead_do_not_count_a_wait_twice() -> None:
    """Process 0 queues three collectives before it waits for the first one, for which process 1
    comes 20 ms late."""
    made = {0: CollectivesRecord(), 1: CollectivesRecord()}
    calls: dict[int, list[Arrival]] = {0: [], 1: []}
    for step in range(20):
        for number in range(3):
            calls[0].append(
                Arrival("0", 2, 3 * step + number, GATHER, 30_000 * step + 10 * number, 0.0, 0.0)
            )
            calls[1].append(
                Arrival(
                    "0",
                    2,
                    3 * step + number,
                    GATHER,
                    30_000 * step + 20_000 + 10 * number,
                    0.0,
                    0.0,
                )
            )
    for rank, record in made.items():
        record.add(Collectives(20, [], calls[rank], ""))
    late = latest(matched(made), False)
    assert late is not None and late.rank == 1 and late.share == pytest.approx(2 / 3, rel=0.1)


def test_the_shortest_duration_is_the_collective_without_waiting() -> None:
    reads = matched(processes(lambda rank, number: 0.01 * rank, timed=True))
    assert shortest_s(reads[0][0]) == pytest.approx(TRANSFER_S)


def test_sums_by_kind() -> None:
    record = processes(lambda rank, number: 0.0)[0]
    record.add(Collectives(4, [CollectiveKind("all_gather", 16, 1600, 0.0, 0)], [], ""))
    gather = record.kinds()["all_gather"]
    assert (record.steps, gather.calls, gather.bytes) == (20, 80, 8000)


def test_why_processes_are_not_compared() -> None:
    even = processes(lambda rank, number: 0.001)
    assert why_not_compared(even, "cpu", 1) == ""
    assert why_not_compared(even, "cpu", 2) == HOSTS
    assert why_not_compared(even, "gpu:0", 1) == TIMING
    assert why_not_compared(processes(lambda rank, number: 0.001, timed=True), "gpu:0", 2) == "", (
        "durations need no common clock"
    )
    even[1].add(Collectives(0, [], [], "off"))
    assert why_not_compared(even, "cpu", 1) == "off"
    parts = processes(lambda rank, number: 0.001)
    assert (
        why_not_compared({**parts, 2: processes(lambda rank, number: 0.001)[1]}, "cpu", 1) == GROUPS
    ), "groups of two of three processes"
    assert why_not_compared({0: even[0], 1: CollectivesRecord()}, "cpu", 1) == "", (
        "one has not reported yet"
    )
