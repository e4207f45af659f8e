"""Steps in which torch.compile works belong to no side of a trial."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gpuconsole.agent.hooks import job
from gpuconsole.agent.protocol import COUNTS, PROBE, SETTLING


def test_a_step_that_compiles_is_dropped_in_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, recorder = job.Agent("/nowhere"), job.recorder
    compiled: Any = torch.compile(lambda x: x + 1, backend="eager", dynamic=False)

    def kinds(arm: int, size: int) -> list[int]:
        monkeypatch.setattr(recorder, "arm", arm)
        monkeypatch.setattr(
            recorder,
            "done",
            [
                (index, 0.0, [], [], 1, 0, None, arm, kind, None)
                for index, kind in enumerate((COUNTS, PROBE))
            ],
        )
        compiled(torch.ones(size))
        agent._leave_out_compiling()
        return [step[8] for step in recorder.done]

    assert kinds(arm=0, size=1) == [COUNTS, PROBE], "no trial"
    assert kinds(arm=1, size=1) == [COUNTS, PROBE], "compiled before"
    assert kinds(arm=1, size=2) == [SETTLING, PROBE], "a new shape"
    assert kinds(arm=2, size=2) == [COUNTS, PROBE]
