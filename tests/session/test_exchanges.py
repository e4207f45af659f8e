"""Exchanges of gradients that DistributedDataParallel has timed: what they say of the phases of a
step and of the processes."""

from __future__ import annotations

from typing import Any

import pytest

from gpuconsole.agent.hooks.recorder import BACKWARD, FORWARD, OPTIMIZER, pack
from gpuconsole.model.run import PHASES, Exchange
from gpuconsole.session.communication import Exchanges, in_common, least_exposed_s
from gpuconsole.session.segments import SegmentFold
from gpuconsole.wire.events import Segments, Steps

P_BACKWARD, P_COMM = PHASES.index("backward"), PHASES.index("comm")


def timed(iteration: int, exposed_s: float, step: int | None = None, model: int = 0) -> Exchange:
    return Exchange(
        model,
        iteration,
        iteration if step is None else step,
        0.01,
        0.03,
        exposed_s + 0.02,
        exposed_s,
    )


def process(*exchanges: Exchange) -> Exchanges:
    made = Exchanges()
    made.add(exchanges)
    return made


def folded(
    exchanges: list[Exchange], steps: int = 10, backward_s: float = 0.06, **fields: Any
) -> Steps:
    """Steps of 0.1 s with such a backward pass, from the segments that the agent sends."""
    raw: list[Any] = []
    for index in range(1, steps + 1):
        start = 0.1 * index
        ends = [start + 0.02, start + 0.02 + backward_s, start + 0.1]
        raw.append(
            (
                index,
                start,
                [FORWARD, BACKWARD, OPTIMIZER],
                ends,
                4,
                0,
                None,
                0,
                0,
                fields.get("runq"),
            )
        )
    return SegmentFold().add(Segments(1.0, pack(raw), 0.0, 0.0, 0.0, 0.0, exchanges=exchanges))


def test_the_wait_for_exchanges_leaves_the_backward_pass() -> None:
    steps = folded([timed(iteration, 0.045) for iteration in range(1, 11)])
    for step in steps.steps:
        assert step.phases[P_BACKWARD] == pytest.approx(0.015)
        assert step.phases[P_COMM] == pytest.approx(0.045)
        assert sum(step.phases) == pytest.approx(step.wall_s)
    assert [exchange.iteration for exchange in steps.exchanges] == list(range(1, 11)), (
        "the session gets them too"
    )


def test_on_a_gpu_the_wait_is_a_share_of_the_backward_pass_as_the_stream_shows_it() -> None:
    """The host runs ahead of the GPU: it issues its first steps in 2 ms each, until the queue is
    full."""
    on_stream: list[float] = []
    raw: list[Any] = []
    for index in range(1, 101):
        start, issued_s = 0.1 * index, 0.002 if index < 40 else 0.1
        measured = index > 90
        ends = [start + issued_s * share for share in (0.2, 0.8, 1.0)]
        raw.append(
            (
                index,
                start,
                [FORWARD, BACKWARD, OPTIMIZER],
                ends,
                4,
                0,
                None,
                0,
                0,
                on_stream if measured else None,
            )
        )
    fold = SegmentFold()
    fold.on_device = True
    exchanges = [timed(iteration, 0.045) for iteration in range(3, 11)]
    steps = fold.add(Segments(1.0, pack(raw), 0.0, 0.0, 0.0, 0.0, exchanges=exchanges)).steps
    assert steps[-1].phases[P_COMM] == pytest.approx(0.045)
    assert steps[0].phases[P_COMM] == pytest.approx(0.045 * 0.02), "the same share of a short step"


def test_the_run_queue_delay_moves_with_the_time() -> None:
    (step, *_) = folded(
        [timed(iteration, 0.03) for iteration in range(3, 11)], runq=[0.0, 0.0, 0.01, 0.01]
    ).steps
    assert step.runq is not None
    assert step.runq[P_BACKWARD] == pytest.approx(0.005) and step.runq[P_COMM] == pytest.approx(
        0.005
    )


def test_phases_stay_as_they_are_where_nothing_was_timed() -> None:
    assert {step.phases[P_COMM] for step in folded([]).steps} == {0.0}
    first_iterations = folded([timed(1, 0.05), timed(2, 0.05)])
    assert {step.phases[P_COMM] for step in first_iterations.steps} == {0.0}, (
        "connections are set up there"
    )


def test_only_the_passes_that_exchange_wait() -> None:
    """Four passes a step: with no_sync DDP's iterations are the steps, without it they are four
    times as many."""
    once = process(*(timed(iteration, 0.01, step=iteration) for iteration in range(3, 11)))
    each = process(*(timed(iteration, 0.01, step=iteration // 4) for iteration in range(4, 44, 4)))
    assert (once.per_step(0), each.per_step(0)) == (1.0, 4.0)
    assert (once.exposed_s(), each.exposed_s()) == (pytest.approx(0.01), pytest.approx(0.04))


def test_readings_that_come_some_steps_later_do_not_change_the_count() -> None:
    assert process(timed(8, 0.01, step=8), timed(243, 0.01, step=281)).per_step(0) == 1.0
    assert process(timed(8, 0.01, step=8)).per_step(0) == 1.0


def test_two_models_of_a_step_wait_one_after_the_other() -> None:
    both = process(
        *(timed(iteration, 0.01, model=model) for iteration in range(3, 11) for model in (0, 1))
    )
    assert both.exposed_s() == pytest.approx(0.02)


def test_in_each_exchange_the_process_that_waits_least_waits_for_nobody() -> None:
    """Each process is late in every second exchange. Their mean waits are equal, and hide that."""
    first = process(
        *(timed(iteration, 0.03 if iteration % 2 else 0.01) for iteration in range(3, 11))
    )
    other = process(
        *(timed(iteration, 0.01 if iteration % 2 else 0.03) for iteration in range(3, 11))
    )
    assert least_exposed_s([first, other]) == pytest.approx(0.01)


def test_processes_are_compared_by_the_exchanges_that_all_have_timed() -> None:
    often = process(*(timed(iteration, 0.01) for iteration in range(3, 40)))
    seldom = process(*(timed(iteration, 0.02) for iteration in range(9, 40, 9)))
    assert [times[0].iteration for times in in_common([often, seldom], 0)] == [18, 27, 36]
    assert in_common([often, process()], 0) == []


def test_the_first_iterations_count_only_while_there_are_no_others() -> None:
    """DDP times each of its first ten iterations, and on a GPU then each 100th."""
    warm_up = [timed(iteration, 0.05) for iteration in range(1, 11)]
    assert process(*warm_up).exposed_s() == pytest.approx(0.05)
    one = process(*warm_up, timed(100, 0.01))
    two = process(*warm_up, timed(100, 0.01), timed(200, 0.01))
    assert one.exposed_s() == pytest.approx(0.01)
    assert least_exposed_s([one, one]) > 0.04, "processes are compared by more than one exchange"
    assert least_exposed_s([two, two]) == pytest.approx(0.01)
