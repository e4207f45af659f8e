"""The knobs in force are those that the worker last confirmed."""

from __future__ import annotations

from gpuconsole.session.state import SessionState
from gpuconsole.wire.events import KnobsSet, Progress, RunOpened, Started, confirmed_knobs


def test_a_run_has_the_knobs_that_its_worker_confirmed() -> None:
    state = SessionState()
    state.apply(RunOpened(0.0, "1", "train-gpt", "training.gpt", {"batch_size": 8}, "cpu"))
    record = state.record
    assert record is not None
    assert record.knobs_in_force == {"batch_size": 8}
    state.apply(Started(1.0, {"batch_size": 8}, {}))
    state.apply(KnobsSet(2.0, 1, 10, {"batch_size": 32}))  # a trial's other side
    assert record.knobs_in_force == {"batch_size": 32}
    state.apply(KnobsSet(3.0, 2, 20, {"batch_size": 32}, "out of memory"))
    assert record.knobs_in_force == {"batch_size": 32}, "a refused change leaves what was in force"
    assert record.run.knobs == {"batch_size": 8}
    assert confirmed_knobs(Progress(4.0, "building")) is None


def test_a_precision_that_the_agent_learns_after_the_first_steady_steps_is_that_of_the_run() -> (
    None
):
    """FSDP 2 computes in bf16 on parameters in fp32, which only the counted step shows."""
    state = SessionState()
    state.apply(RunOpened(0.0, "1", "train.py", "job", {}, "gpu:0"))
    record = state.record
    assert record is not None
    knobs = {"batch_size": 2, "precision": "fp32"}
    state.apply(Started(1.0, knobs, {}))
    record.steady_t = 2.0
    state.apply(Started(3.0, {**knobs, "batch_size": 4}, {}))
    assert record.run.knobs == knobs, "the other side of a trial"
    state.apply(Started(4.0, {**knobs, "precision": "bf16"}, {"flops_bf16_ratio": 1.0}))
    assert record.run.knobs == {**knobs, "precision": "bf16"}
    assert record.facts == {"flops_bf16_ratio": 1.0}
