"""The step breakdown against an independent timing of the same loop."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from gpuconsole.agent.clock import ThreadTimes
from gpuconsole.agent.step_breakdown import SAMPLE_SPAN_S, CudaStepBreakdown, StepBreakdown
from gpuconsole.model.run import PHASES
from gpuconsole.workloads.training import vision
from gpuconsole.workloads.training.loop import TrainingLoop
from gpuconsole.workloads.training.task import Batch
from tests.workloads.running import knobs_of
from tests.workloads.small import added_up


class TimedStream:
    """Wraps a stream and times `next` on its own, with another clock."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.seconds = 0.0

    def next(self) -> Batch:
        start = time.monotonic_ns()
        batch: Batch = self._stream.next()
        self.seconds += (time.monotonic_ns() - start) * 1e-9
        return batch

    def close(self) -> None:
        self._stream.close()


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"storage_latency_ms": 3.0}])
def test_data_wait_agrees_with_an_independent_timing(
    tmp_path: Path, changes: dict[str, float]
) -> None:
    knobs = knobs_of("vision-healthy", batch_size=8, num_workers=0, **changes)
    loop = TrainingLoop(
        vision.create(knobs, torch.device("cpu"), 0), knobs, torch.device("cpu"), tmp_path
    )
    timed = TimedStream(loop._stream)
    loop._stream = timed
    loop.breakdown.restart()
    start = time.monotonic_ns()
    for _ in range(40):
        loop.step()
    wall = (time.monotonic_ns() - start) * 1e-9
    steps = added_up(loop.breakdown)
    loop.close()
    ours = sum(step.phases[PHASES.index("data_wait")] for step in steps) / sum(
        step.wall_s for step in steps
    )
    assert ours == pytest.approx(timed.seconds / wall, abs=0.03)
    assert sum(step.wall_s for step in steps) == pytest.approx(wall, rel=0.01)


def test_slow_steps_are_all_sampled_and_quick_ones_now_and_then() -> None:
    slow, quick = StepBreakdown(ThreadTimes()), StepBreakdown(ThreadTimes())
    taken = {slow: [], quick: []}
    for account, seconds, steps in ((slow, 0.11, 5), (quick, 0.008, 100)):
        for index in range(steps):
            time.sleep(seconds)
            account.end(1, 0, None, 0, 0)
            # until the first steps are handed over nobody knows whether they are slow
            if index % 5 == 4:
                taken[account] += added_up(account)
    assert all(step.runq is not None for step in taken[slow])
    assert 2 <= sum(step.runq is not None for step in taken[quick][5:]) <= 30


def test_a_run_left_alone_is_sampled_half_as_often() -> None:
    sampled = []
    for low_rate in (False, True):
        account = StepBreakdown(ThreadTimes())
        account.low_rate = low_rate
        for index in range(3000):
            account.end(1, 0, None, 0, 0)
            if index % 10 == 0:
                sampled += [low_rate for step in account.take() if step.runq]
                account._walls.extend([0.01] * 31)  # what they took, had they done anything
    assert sampled.count(False) == pytest.approx(2 * sampled.count(True), rel=0.3)


class Timeline:
    """Stands in for a GPU that takes 1 ms from one event to the next, and has got as far as
    `reached`."""

    def __init__(self) -> None:
        self.recorded = self.reached = 0

    def event_type(self) -> type:
        timeline = self

        class Event:
            def __init__(self, enable_timing: bool, blocking: bool) -> None:
                self.at = 0

            def record(self) -> None:
                timeline.recorded += 1
                self.at = timeline.recorded

            def query(self) -> bool:
                return self.at <= timeline.reached

            def synchronize(self) -> None:
                timeline.reached = max(timeline.reached, self.at)

            def elapsed_time(self, other: Any) -> float:
                assert timeline.reached >= other.at, "an event was read before it was reached"
                return float(other.at - self.at)

        return Event


def test_on_a_gpu_steps_are_told_once_it_has_got_there_and_none_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timeline = Timeline()
    monkeypatch.setattr(torch.cuda, "Event", timeline.event_type())
    account = CudaStepBreakdown(ThreadTimes())
    account.restart()

    def step() -> None:
        account.mark(PHASES.index("forward"))
        account.mark(PHASES.index("backward"))
        account.end(4, 0, None, 0, 0)

    step()
    timeline.reached = first = timeline.recorded  # the length of a step is known from now on
    step()
    account.take()
    for _ in range(9):
        step()
    assert account.take() == [] and timeline.reached == first
    timeline.reached = timeline.recorded
    step()
    told = added_up(account)
    assert [step.index for step in told] == list(range(1, 11))
    assert all(
        step.wall_s == pytest.approx(3e-3)
        and step.phases[PHASES.index("forward")] == pytest.approx(1e-3)
        for step in told
    )
    account.finish()
    assert len(account.take()) == 1


def test_on_a_gpu_the_streams_steps_tell_how_often_to_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The host may be far ahead: it has ended a hundred steps in the time that one takes."""
    timeline = Timeline()
    monkeypatch.setattr(torch.cuda, "Event", timeline.event_type())
    account = CudaStepBreakdown(ThreadTimes())
    account.restart()
    told = []
    for index in range(2000):
        account.mark(PHASES.index("forward"))
        account.end(4, 0, None, 0, 0)
        timeline.reached = timeline.recorded
        if index % 20 == 19:
            told += account.take()
    # at first nobody knows how long they take
    sampled = sum(bool(step.runq) for step in told[100:])
    assert sampled == pytest.approx(1900 * 2e-3 / SAMPLE_SPAN_S, rel=0.5), (
        "2 ms a step on the stream"
    )
