"""How the wait for data is spread over the steps of a run."""

from __future__ import annotations

import pytest

from gpuconsole.diagnosis.signals.run import DATA_WAIT, run_signals
from gpuconsole.model.machine.device import Device
from gpuconsole.model.run import Step, Summary
from gpuconsole.session.state import SessionState
from gpuconsole.wire.events import Devices, RunOpened, Steps


def test_long_waits_are_told_by_how_many_and_how_long() -> None:
    state = SessionState()
    state.apply(Devices(0.0, [Device("cpu", "cpu")]))
    state.apply(RunOpened(0.0, "1", "train-vision", "training.vision", {}, "cpu"))
    steps = []
    for n in range(200):
        phases = [0.0] * 10
        phases[DATA_WAIT] = 0.3 if n % 10 == 0 else 0.01
        steps.append(Step(n, 0.1 * n, 0.1, 16, 0, tuple(phases)))
    state.apply(Steps(20.0, steps, 0.0, 0.0, 0.0, 1e6))
    assert state.record is not None
    state.record.steady_t = 0.0
    found = {name: signal.value for name, signal in run_signals(state.record, Summary(), 2, None).items()}
    assert found["data_wait_long_s"] == pytest.approx(0.29)
    assert found["data_wait_long_steps"] == pytest.approx(20.0)
    assert found["data_wait_excess_ratio"] == pytest.approx(20 * 0.29 / 20.0)
