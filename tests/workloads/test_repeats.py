"""The time of a piece of work on a busy CPU, without the time in which the measuring thread waited
for a core."""

from __future__ import annotations

import pytest
import torch

from gpuconsole.workloads.calibration import measures

WORK_S = 2.0


class BusyCore:
    """A clock and the run-queue time of a thread that waits `waits[n]` seconds for its core right
    after the n-th reading of either."""

    def __init__(self, waits: list[float]) -> None:
        self.t, self.waited, self._waits = 0.0, 0.0, iter(waits)

    def _read(self, value: float) -> float:
        wait = next(self._waits)
        self.t += wait
        self.waited += wait
        return value

    def now(self) -> float:
        return self._read(self.t)

    def runq_s(self) -> float:
        return self._read(self.waited)

    def work(self) -> None:
        self.t += WORK_S + 1.0  # one second of it is a wait
        self.waited += 1.0


@pytest.mark.parametrize(
    "waits", [[0, 0, 0, 0], [5, 0, 0, 0], [0, 5, 0, 0], [0, 0, 5, 0], [0, 0, 0, 5]]
)
def test_a_wait_beside_the_work_makes_no_work_faster_than_it_is(
    monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    core = BusyCore(waits)
    monkeypatch.setattr(measures, "_own_times", lambda: core)
    monkeypatch.setattr(measures, "now", core.now)
    assert WORK_S <= measures.once_s(core.work, torch.device("cpu")) <= WORK_S + sum(waits)
