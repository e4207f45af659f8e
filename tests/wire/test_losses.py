"""A loss that is not finite travels as such, from the agent to the session and through a
recording."""

from __future__ import annotations

import math

import pytest

from gpuconsole.agent.clock import ThreadTimes
from gpuconsole.agent.hooks import recorder
from gpuconsole.agent.step_breakdown import StepBreakdown
from gpuconsole.model.run import PHASES, Step
from gpuconsole.session.segments import unpack
from gpuconsole.session.state import SessionState
from gpuconsole.wire.events import (
    Hello,
    MarkedSteps,
    RunOpened,
    Started,
    Steps,
    decode_event,
    encode,
)

LOSSES = [2.5, math.nan, None, math.inf, -math.inf]


def shown(losses: list[float | None]) -> list[str]:
    return [repr(loss) for loss in losses]


def test_the_steps_of_a_job() -> None:
    raw = [
        (n, 0.0, [recorder.FORWARD], [1.0], 4, 0, loss, 1, 0, None) for n, loss in enumerate(LOSSES)
    ]
    assert shown([step.loss for step in unpack(recorder.pack(raw))]) == shown(LOSSES)  # type: ignore[arg-type]


def test_a_recording() -> None:
    made = [Step(n, 1.0, 0.1, 4, 0, (0.1,), loss=loss) for n, loss in enumerate(LOSSES)]
    read = decode_event(encode(Steps(1.0, made, 0.0, 0.0, 0.0, 0.0)))
    assert isinstance(read, Steps) and shown([step.loss for step in read.steps]) == shown(LOSSES)
    assert decode_event(encode(Steps(1.0, made[:1], 0.0, 0.0, 0.0, 0.0))) == Steps(
        1.0, made[:1], 0.0, 0.0, 0.0, 0.0
    )


@pytest.mark.parametrize("loss", LOSSES)
def test_the_steps_of_a_built_in_loop(loss: float | None) -> None:
    account = StepBreakdown(ThreadTimes())
    account.restart()
    account.end(4, 0, loss, 1, 0)
    sent = MarkedSteps(1.0, account.take(), 0.0, 0.0, 0.0, 0.0)  # type: ignore[arg-type]
    read = decode_event(encode(sent))
    assert isinstance(read, Steps) and shown([read.steps[0].loss]) == shown([loss])


def test_a_loss_that_is_no_number_leaves_no_loss_on_the_screen() -> None:
    state = SessionState()
    for event in (
        Hello(0.0, "runtime", 1, "x", 1e9),
        RunOpened(0.0, "1", "s", "training.gpt", {}, "cpu"),
        Started(0.0, {}, {}),
    ):
        state.apply(event)
    key = "workload.loss{device=cpu}"
    for t, loss in ((2.0, 2.5), (4.0, math.nan)):
        phases = tuple(0.1 if name == "forward" else 0.0 for name in PHASES)
        state.apply(Steps(t, [Step(0, t, 0.1, 4, 0, phases, loss=loss)], 0.0, 0.0, 0.0, 0.0))
        assert state.readings.latest.get(key) == (loss if math.isfinite(loss) else None)
    assert state.readings.series[key].points()[1] == [2.5]
