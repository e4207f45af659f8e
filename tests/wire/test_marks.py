"""What a worker sends of its steps, and what the console makes of it."""

from __future__ import annotations

import math

import msgspec
import pytest

from gpuconsole.agent.protocol import MarkedStep
from gpuconsole.model.run import PHASES
from gpuconsole.wire.events import MarkedSteps, Steps, decode_event, encode

DATA_WAIT, FORWARD, OTHER = (PHASES.index(name) for name in ("data_wait", "forward", "other"))


def sent(**parts: object) -> Steps:
    whole = {
        "ended": [DATA_WAIT, FORWARD, DATA_WAIT, FORWARD, OTHER],
        "times": [10.1, 10.3, 10.35, 10.55, 10.6],
        "runq": [],
        "loss": 2.5,
    }
    marked = MarkedStep(7, 10.0, samples=4, tokens=32, arm=1, kind=0, **(whole | parts))  # type: ignore[arg-type]
    event = decode_event(
        encode(MarkedSteps(11.0, [marked], 1.0, 0.5, 0.001, 1e6, 2, 3, {"work.steps": 8.0}))
    )
    assert isinstance(event, Steps)
    return event


def test_time_goes_to_the_phase_that_ended_and_sums_to_the_step() -> None:
    event = sent()
    assert event == Steps(11.0, event.steps, 1.0, 0.5, 0.001, 1e6, 2, 3, {"work.steps": 8.0})
    (step,) = event.steps
    assert (
        step.index,
        step.t,
        step.samples,
        step.tokens,
        step.loss,
        step.arm,
        step.kind,
        step.runq,
    ) == (7, 10.6, 4, 32, 2.5, 1, 0, None)
    assert step.wall_s == pytest.approx(0.6) == sum(step.phases)
    assert [step.phases[phase] for phase in (DATA_WAIT, FORWARD, OTHER)] == pytest.approx(
        [0.15, 0.4, 0.05]
    )


def test_run_queue_delay_is_told_by_phase_where_it_was_read() -> None:
    (step,) = sent(runq=[1.0, 1.0, 1.02, 1.03, 1.03, 1.04]).steps
    assert step.runq is not None
    assert [step.runq[phase] for phase in (DATA_WAIT, FORWARD, OTHER)] == pytest.approx(
        [0.01, 0.02, 0.01]
    )
    assert sum(step.runq) == pytest.approx(0.04)


def test_a_loss_that_is_no_number_is_none() -> None:
    (step,) = sent(loss=math.nan).steps
    assert step.loss is None


@pytest.mark.parametrize(
    "parts",
    [
        {"ended": [], "times": []},
        {"ended": [DATA_WAIT]},
        {"runq": [1.0, 1.1]},
        {"ended": [DATA_WAIT, FORWARD, DATA_WAIT, FORWARD, len(PHASES)]},
        {"ended": [DATA_WAIT, FORWARD, DATA_WAIT, FORWARD, -1]},
    ],
    ids=[
        "no marks",
        "moments without phase",
        "too few readings",
        "a phase too many",
        "a phase below 0",
    ],
)
def test_marks_that_make_no_step_are_not_understood(parts: dict[str, object]) -> None:
    with pytest.raises(msgspec.DecodeError):
        sent(**parts)
