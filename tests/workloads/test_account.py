"""The step account against an independent timing of the same loop."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from gpuconsole.model.run import PHASES
from gpuconsole.workloads.account import StepAccount
from gpuconsole.workloads.clock import ThreadTimes
from gpuconsole.workloads.training import vision
from gpuconsole.workloads.training.loop import TrainingLoop
from gpuconsole.workloads.training.task import Batch
from tests.workloads.running import knobs_of


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


@pytest.mark.parametrize("changes", [{}, {"storage_latency_ms": 3.0}])
def test_data_wait_agrees_with_an_independent_timing(tmp_path: Path, changes: dict[str, float]) -> None:
    knobs = knobs_of("vision-healthy", batch_size=8, num_workers=0, **changes)
    loop = TrainingLoop(vision.create(knobs, torch.device("cpu"), 0), knobs, torch.device("cpu"), tmp_path)
    timed = TimedStream(loop._stream)
    loop._stream = timed
    loop.account.restart()
    start = time.monotonic_ns()
    for _ in range(40):
        loop.step()
    wall = (time.monotonic_ns() - start) * 1e-9
    steps = loop.account.take()
    loop.close()
    ours = sum(step.phases[PHASES.index("data_wait")] for step in steps) / sum(step.wall_s for step in steps)
    assert ours == pytest.approx(timed.seconds / wall, abs=0.03)
    assert sum(step.wall_s for step in steps) == pytest.approx(wall, rel=0.01)


def test_slow_steps_are_all_sampled_and_quick_ones_now_and_then() -> None:
    slow, quick = StepAccount(ThreadTimes()), StepAccount(ThreadTimes())
    taken = {slow: [], quick: []}
    for account, seconds, steps in ((slow, 0.11, 5), (quick, 0.008, 100)):
        for index in range(steps):
            time.sleep(seconds)
            account.end(1, 0, None, 0, 0)
            if index % 5 == 4:  # until the first steps are handed over nobody knows whether they are slow
                taken[account] += account.take()
    assert all(step.runq is not None for step in taken[slow])
    assert 2 <= sum(step.runq is not None for step in taken[quick][5:]) <= 30
