"""Steps of a user's job from their segments: where the copy of a batch to the GPU is seen, and light steps."""

from __future__ import annotations

import itertools

import pytest

from gpuconsole.model.run import PHASES
from gpuconsole.model.stacks import StackSample
from gpuconsole.session.segments import (
    BACKWARD,
    DATA,
    EVAL,
    FORWARD,
    GAP,
    LOADER,
    LOG,
    NO_GRAD,
    OPTIMIZER,
    SAVE,
    UNMARKED,
    ZERO,
    RawStep,
    SegmentFold,
)
from gpuconsole.wire.events import Stacks

COPY = -1
"""A gap in which the program copies its batch."""
COPY_S = 0.05


def phases(codes: list[int], on_device: bool) -> dict[str, float]:
    """The phases of the second of two such steps. The copy takes COPY_S, all other segments 10 ms."""
    fold = SegmentFold()
    fold.on_device = on_device
    seconds = [COPY_S if code == COPY else 0.01 for code in codes]
    ends = list(itertools.accumulate(seconds))
    raw = RawStep(1, 0.0, [GAP if code == COPY else code for code in codes], ends, 8, 0, None, 0, 0, None, True)
    fold.step(raw)
    return dict(zip(PHASES, fold.step(raw._replace(index=2)).phases, strict=True))


@pytest.mark.parametrize(
    "codes",
    [
        [LOADER, COPY, FORWARD, GAP, BACKWARD, OPTIMIZER],
        [LOADER, COPY, ZERO, GAP, FORWARD, GAP, BACKWARD, OPTIMIZER],  # the loop of torch's tutorial
        [DATA, GAP, ZERO, COPY, FORWARD, GAP, BACKWARD, OPTIMIZER],
    ],
    ids=["before the pass", "before the gradients are zeroed", "after they are zeroed"],
)
def test_what_lies_between_a_batch_and_its_pass_is_the_copy(codes: list[int]) -> None:
    assert phases(codes, True)["h2d"] >= COPY_S
    assert phases(codes, True)["other"] == 0.0
    assert phases(codes, False)["h2d"] == 0.0


def shares_of(*steps: list[int]) -> tuple[dict[str, float], float]:
    """The phases of the last step in segments of 10 ms, and how many of its segments were passes of an evaluation that recorded gradients."""
    fold, before = SegmentFold(), 0.0
    for index, codes in enumerate(steps):
        before = fold.eval_with_gradients_s
        ends = [0.01 * (n + 1) for n in range(len(codes))]
        step = fold.step(RawStep(index, 0.0, codes, ends, 8, 0, None, 0, 0))
    return {name: 100 * s for name, s in zip(PHASES, step.phases, strict=True)}, (fold.eval_with_gradients_s - before) * 100


TRAINED = [GAP, FORWARD, GAP, BACKWARD, OPTIMIZER]
OFTEN = [[GAP, EVAL, *TRAINED]] * 6


@pytest.mark.parametrize(
    ("steps", "evaluated", "with_gradients", "forward"),
    [
        ([TRAINED, TRAINED, [GAP, EVAL, GAP, EVAL, GAP, *TRAINED]], 3, 2, 2),  # without a DataLoader
        ([[LOADER, *TRAINED], [LOADER, *TRAINED], [LOADER, GAP, EVAL, LOG, EVAL, LOADER, *TRAINED]], 4, 2, 2),
        ([TRAINED, TRAINED, [GAP, EVAL, GAP, BACKWARD, OPTIMIZER]], 0, 0, 2),  # it trains in eval mode
        ([TRAINED, TRAINED, [GAP, EVAL, ZERO, GAP, BACKWARD, OPTIMIZER]], 0, 0, 2),
        (OFTEN, 0, 0, 3),  # a teacher without no_grad, a policy
        ([TRAINED, TRAINED, [GAP, EVAL, GAP, EVAL, GAP, BACKWARD, OPTIMIZER]], 0, 0, 4),  # two towers
    ],
)  # fmt: skip
def test_passes_in_eval_mode_that_no_backward_pass_follows_are_an_evaluation(
    steps: list[list[int]], evaluated: float, with_gradients: float, forward: float
) -> None:
    shares, recorded = shares_of(*steps)
    assert (round(shares["eval"]), round(recorded)) == (evaluated, with_gradients)
    assert round(shares["forward"]) == forward


def test_zeroing_before_the_batch_is_asked_for_is_no_copy() -> None:
    seen = phases([ZERO, COPY, LOADER, FORWARD, GAP, BACKWARD, OPTIMIZER], True)
    assert (seen["h2d"], seen["other"]) == (0.0, pytest.approx(COPY_S))


def test_a_long_step_is_divided_as_the_long_steps_whose_times_the_gpu_has_measured() -> None:
    """Two workers of the same pace deliver two batches together: every other step waits for them."""
    fold = SegmentFold()
    fold.on_device = True

    def step(index: int, wait_s: float, on_stream: bool) -> dict[str, float]:
        ends = list(itertools.accumulate([wait_s, 0.01, 0.01, 0.01]))
        raw = RawStep(index, 0.0, [LOADER, FORWARD, BACKWARD, OPTIMIZER], ends, 8, 0, None, 0, 0, None, on_stream)
        return dict(zip(PHASES, fold.step(raw).phases, strict=True))

    for index in range(3):
        step(index, 0.001, True)
    assert step(3, 0.2, False)["data_wait"] == pytest.approx(0.17), "such a wait was not measured yet: the host has seen it"
    step(3, 0.2, True)
    assert step(4, 0.19, False)["data_wait"] == pytest.approx(0.19, rel=0.02)
    assert step(5, 0.001, False)["data_wait"] == pytest.approx(0.001, rel=0.02)
    assert sum(step(6, 2.0, False).values()) == pytest.approx(2.03)


FULL = [(GAP, 0.001), (LOADER, 0.002), (ZERO, 0.001), (FORWARD, 0.003), (BACKWARD, 0.006), (OPTIMIZER, 0.001)]


def after_full_steps(*segments: tuple[int, float], full: int = 20) -> dict[str, float]:
    """The phases of a step after some that have all segments, in ms."""
    fold = SegmentFold()

    def step(index: int, parts: list[tuple[int, float]]) -> dict[str, float]:
        ends = list(itertools.accumulate(seconds for _, seconds in parts))
        raw = RawStep(index, 0.0, [code for code, _ in parts], ends, 8, 0, None, 0, 0)
        return dict(zip(PHASES, fold.step(raw).phases, strict=True))

    for index in range(full):
        step(index, FULL)
    return {phase: round(seconds * 1e3, 3) for phase, seconds in step(full, list(segments)).items() if seconds}


def test_the_unmarked_time_of_a_light_step_is_divided_as_in_steps_with_all_segments() -> None:
    assert after_full_steps((UNMARKED, 0.001), (LOADER, 0.05), (UNMARKED, 0.0121)) == {
        "data_wait": 50.0, "forward": 3.3, "backward": 6.6, "optimizer": 2.2, "other": 1.0,
    }  # fmt: skip


def test_what_happens_now_and_then_between_light_steps_is_no_pass() -> None:
    """A second of the program's own work, in a step without marks around it: no step with all segments has shown such a time."""
    assert after_full_steps((UNMARKED, 1.001), (LOADER, 0.002), (UNMARKED, 0.011))["other"] == pytest.approx(1001.0)
    assert after_full_steps((UNMARKED, 0.001), (LOADER, 0.002), (UNMARKED, 1.0)) == pytest.approx(
        {"data_wait": 2.0, "forward": 3.0, "backward": 6.0, "optimizer": 2.0, "other": 990.0}
    )


def test_rare_work_in_a_light_step_keeps_its_own_times() -> None:
    """From its first mark on, such a step has all segments; the time before it is marked as a gap."""
    saved = after_full_steps((GAP, 0.04), (SAVE, 0.1), *FULL)
    assert saved["checkpoint"] == pytest.approx(140.0)
    evaluated = after_full_steps((GAP, 0.001), (LOADER + 1, 0.01), (GAP, 0.001), (NO_GRAD, 0.02), *FULL)
    assert evaluated["eval"] == pytest.approx(32.0) and evaluated["forward"] == pytest.approx(3.0)


def test_without_any_step_with_all_segments_the_time_is_not_named() -> None:
    assert after_full_steps((UNMARKED, 0.001), (LOADER, 0.002), (UNMARKED, 0.01), full=0) == {"data_wait": 2.0, "other": 11.0}


@pytest.mark.parametrize(("batches", "rest"), [(False, "data_wait"), (True, "other")])
def test_lines_without_torch_between_two_passes_are_no_forward_pass(batches: bool, rest: str) -> None:
    """A loop of reinforcement learning runs its environment between two passes with gradients."""

    def step(torch_samples: float, other_samples: float) -> dict[str, float]:
        fold = SegmentFold()
        loss = StackSample("loss", "python", torch_samples, "torch.cross_entropy", ["train.py:3 main"])
        environment = StackSample("loss", "python", other_samples, "gym.step", ["train.py:4 main"])
        fold.learn(Stacks(0.0, 0, [loss, environment, StackSample("between", "python", 90, "", ["train.py:5 main"])]))
        codes = [LOADER] * batches + [FORWARD, GAP, FORWARD, GAP, BACKWARD, OPTIMIZER]
        raw = RawStep(1, 0.0, codes, [0.01 * (n + 1) for n in range(len(codes))], 8, 0, None, 0, 0, None)
        fold.step(raw)
        return dict(zip(PHASES, fold.step(raw._replace(index=2)).phases, strict=True))

    usual = step(100, 0)
    assert usual["forward"] == pytest.approx(0.04), "two passes, what lies between them, and the loss"
    assert step(70, 30) == usual, "the Python between two functions of torch"
    assert step(3, 7) == usual, "too few samples"
    works = step(30, 70)
    assert works["forward"] == pytest.approx(0.026) and works[rest] >= usual[rest] + 0.007 - 1e-9
    assert works["data_wait"] + works["other"] == pytest.approx(usual["data_wait"] + usual["other"] + 0.014)
