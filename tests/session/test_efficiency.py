"""What work costs: figures from a power reading and a price, or the reason why there are none."""

from __future__ import annotations

import pytest

from gpuconsole.model.machine import Device
from gpuconsole.model.run import PHASES, Step
from gpuconsole.model.snapshot import Environment
from gpuconsole.session.figures.summary import NO_POWER, NO_PRICE
from gpuconsole.session.state import SessionState
from gpuconsole.session.view import run_now
from gpuconsole.wire.events import (
    Devices,
    EnvironmentKnown,
    Hello,
    RunClosed,
    RunOpened,
    Sample,
    Started,
    Steps,
)

KNOBS = {"batch_size": 8}


def session(power_w: float | None, price: float | None, device: str = "gpu:0") -> SessionState:
    """80 s of steps of 100 ms: 10 samples and 2000 tokens a step, 1e12 FLOPs a sample."""
    state = SessionState()
    state.apply(Hello(0.0, "runtime", 1, "x", 1e9))
    state.apply(Devices(0.0, [Device(device, "H200")]))
    state.apply(EnvironmentKnown(0.0, Environment(host="here", price_per_hour=price)))
    state.apply(RunOpened(0.0, "1", "train-gpt", "training.gpt", KNOBS, device))
    state.apply(Started(0.0, KNOBS, {"flops_per_sample": 1e12}))
    for second in range(80):
        t = float(second)
        if power_w is not None:
            state.apply(
                Sample(t, device, {"gpu.power_w": power_w, "gpu.energy_j": 1000.0 + power_w * t})
            )
        parts = tuple(0.1 if name == "forward" else 0.0 for name in PHASES)
        steps = [Step(10 * second + n, t + n / 10, 0.1, 10, 2000, parts) for n in range(10)]
        state.apply(Steps(t + 1, steps, 0.0, 0.0, 0.0, 1e9))
    state.apply(RunClosed(80.0, "1", "finished"))
    return state


def test_tokens_per_joule_flops_per_watt_and_cost() -> None:
    state = session(power_w=500.0, price=3.6)
    latest = {key.partition("{")[0]: value for key, value in state.readings.latest.items()}
    assert latest["workload.tokens_per_j"] == pytest.approx(20_000 / 500)
    assert latest["workload.samples_per_j"] == pytest.approx(100 / 500)
    assert latest["workload.flops_per_j"] == pytest.approx(1e14 / 500)
    assert latest["workload.cost_per_million_tokens"] == pytest.approx(3.6 / (20_000 * 3600) * 1e6)
    summary = run_now(state, state.records[0]).summary
    assert summary.cost_per_million_tokens == pytest.approx(0.05)
    assert summary.energy_j is not None and summary.tokens_per_j is not None
    # The energy counter from when the run was steady, and the tokens of the same time (to a
    # second's reading at each end).
    assert summary.tokens_per_j == pytest.approx(40.0, rel=0.05)
    assert summary.flops_per_j == pytest.approx(2e11, rel=0.05)


def test_without_power_or_price_the_reason_is_told_and_no_figure() -> None:
    state = session(power_w=None, price=None, device="cpu")
    assert not [key for key in state.readings.latest if "_per_j" in key or "cost_per" in key]
    run = run_now(state, state.records[0])
    assert (
        run.summary.energy_j,
        run.summary.tokens_per_j,
        run.summary.cost_per_million_tokens,
    ) == (None, None, None)
    assert run.unavailable["workload.tokens_per_j"] == NO_POWER
    assert run.unavailable["workload.cost_per_million_tokens"] == NO_PRICE
