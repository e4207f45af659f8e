"""Steps of a user's job from their segments: where the copy of a batch to the GPU is seen, and
counted steps."""

from __future__ import annotations

import itertools

import pytest

from gpuconsole.model.run import PHASES
from gpuconsole.model.stacks import StackSample
from gpuconsole.session.segments import (
    BACKWARD,
    COMPILED,
    DATA,
    EVAL,
    FORWARD,
    GAP,
    LOADER,
    LOG,
    NO_GRAD,
    OPTIMIZER,
    SAVE,
    TRAINED,
    TRAINED_EVAL,
    UNMARKED,
    WHOLE,
    ZERO,
    RawStep,
    SegmentFold,
)
from gpuconsole.wire.events import Stacks

COPY = -1
"""A gap in which the program copies its batch."""
COPY_S = 0.05


def phases(codes: list[int], on_device: bool) -> dict[str, float]:
    """The phases of the second of two such steps. The copy takes COPY_S, all other segments 10
    ms."""
    fold = SegmentFold()
    fold.on_device = on_device
    seconds = [COPY_S if code == COPY else 0.01 for code in codes]
    ends = list(itertools.accumulate(seconds))
    raw = RawStep(
        1,
        0.0,
        [GAP if code == COPY else code for code in codes],
        ends,
        8,
        0,
        None,
        0,
        0,
        None,
        True,
    )
    fold.step(raw)
    return dict(zip(PHASES, fold.step(raw._replace(index=2)).phases, strict=True))


@pytest.mark.parametrize(
    "codes",
    [
        [LOADER, COPY, FORWARD, GAP, BACKWARD, OPTIMIZER],
        # the loop of torch's tutorial
        [LOADER, COPY, ZERO, GAP, FORWARD, GAP, BACKWARD, OPTIMIZER],
        [DATA, GAP, ZERO, COPY, FORWARD, GAP, BACKWARD, OPTIMIZER],
    ],
    ids=["before the pass", "before the gradients are zeroed", "after they are zeroed"],
)
def test_what_lies_between_a_batch_and_its_pass_is_the_copy(codes: list[int]) -> None:
    assert phases(codes, True)["h2d"] >= COPY_S
    assert phases(codes, True)["other"] == 0.0
    assert phases(codes, False)["h2d"] == 0.0


def shares_of(*steps: list[int]) -> tuple[dict[str, float], float]:
    """The phases of the last step in segments of 10 ms, and how many of its segments were passes of
    an evaluation that recorded gradients."""
    fold, before = SegmentFold(), 0.0
    for index, codes in enumerate(steps):
        before = fold.eval_with_gradients_s
        ends = [0.01 * (n + 1) for n in range(len(codes))]
        step = fold.step(RawStep(index, 0.0, codes, ends, 8, 0, None, 0, 0))
    return {name: 100 * s for name, s in zip(PHASES, step.phases, strict=True)}, (
        fold.eval_with_gradients_s - before
    ) * 100


TRAINED_STEP = [GAP, FORWARD, GAP, BACKWARD, OPTIMIZER]
OFTEN = [[GAP, EVAL, *TRAINED_STEP]] * 6


@pytest.mark.parametrize(
    ("steps", "evaluated", "with_gradients", "forward"),
    [
        # without a DataLoader
        ([TRAINED_STEP, TRAINED_STEP, [GAP, EVAL, GAP, EVAL, GAP, *TRAINED_STEP]], 3, 2, 2),
        (
            [
                [LOADER, *TRAINED_STEP],
                [LOADER, *TRAINED_STEP],
                [LOADER, GAP, EVAL, LOG, EVAL, LOADER, *TRAINED_STEP],
            ],
            4,
            2,
            2,
        ),
        # it trains in eval mode
        ([TRAINED_STEP, TRAINED_STEP, [GAP, EVAL, GAP, BACKWARD, OPTIMIZER]], 0, 0, 2),
        ([TRAINED_STEP, TRAINED_STEP, [GAP, EVAL, ZERO, GAP, BACKWARD, OPTIMIZER]], 0, 0, 2),
        (OFTEN, 0, 0, 3),  # a teacher without no_grad, a policy
        # two towers
        ([TRAINED_STEP, TRAINED_STEP, [GAP, EVAL, GAP, EVAL, GAP, BACKWARD, OPTIMIZER]], 0, 0, 4),
    ],
)
def test_passes_in_eval_mode_that_no_backward_pass_follows_are_an_evaluation(
    steps: list[list[int]], evaluated: float, with_gradients: float, forward: float
) -> None:
    shares, recorded = shares_of(*steps)
    assert (round(shares["eval"]), round(recorded)) == (evaluated, with_gradients)
    assert round(shares["forward"] + shares["loss"]) == forward


def test_zeroing_before_the_batch_is_asked_for_is_no_copy() -> None:
    seen = phases([ZERO, COPY, LOADER, FORWARD, GAP, BACKWARD, OPTIMIZER], True)
    assert (seen["h2d"], seen["other"]) == (0.0, pytest.approx(COPY_S))


def test_a_long_step_is_divided_as_the_long_steps_whose_times_the_gpu_has_measured() -> None:
    """Two workers of the same pace deliver two batches together: every other step waits for
    them."""
    fold = SegmentFold()
    fold.on_device = True

    def step(index: int, wait_s: float, on_stream: bool) -> dict[str, float]:
        ends = list(itertools.accumulate([wait_s, 0.01, 0.01, 0.01]))
        raw = RawStep(
            index,
            0.0,
            [LOADER, FORWARD, BACKWARD, OPTIMIZER],
            ends,
            8,
            0,
            None,
            0,
            0,
            None,
            on_stream,
        )
        return dict(zip(PHASES, fold.step(raw).phases, strict=True))

    for index in range(3):
        step(index, 0.001, True)
    assert step(3, 0.2, False)["data_wait"] == pytest.approx(0.17), (
        "such a wait was not measured yet: the host has seen it"
    )
    step(3, 0.2, True)
    assert step(4, 0.19, False)["data_wait"] == pytest.approx(0.19, rel=0.02)
    assert step(5, 0.001, False)["data_wait"] == pytest.approx(0.001, rel=0.02)
    assert sum(step(6, 2.0, False).values()) == pytest.approx(2.03)


FULL = [
    (GAP, 0.001),
    (LOADER, 0.002),
    (ZERO, 0.001),
    (FORWARD, 0.003),
    (BACKWARD, 0.006),
    (OPTIMIZER, 0.001),
]


def after_marked_steps(*segments: tuple[int, float], marked: int = 20) -> dict[str, float]:
    """The phases of a step after some that are marked, in ms."""
    fold = SegmentFold()

    def step(index: int, parts: list[tuple[int, float]]) -> dict[str, float]:
        ends = list(itertools.accumulate(seconds for _, seconds in parts))
        raw = RawStep(index, 0.0, [code for code, _ in parts], ends, 8, 0, None, 0, 0)
        return dict(zip(PHASES, fold.step(raw).phases, strict=True))

    for index in range(marked):
        step(index, FULL)
    return {
        phase: round(seconds * 1e3, 3)
        for phase, seconds in step(marked, list(segments)).items()
        if seconds
    }


def test_the_time_of_a_counted_step_is_divided_as_in_marked_steps() -> None:
    assert after_marked_steps((UNMARKED, 0.0154)) == {
        "data_wait": 2.2,
        "forward": 3.3,
        "backward": 6.6,
        "optimizer": 2.2,
        "other": 1.1,
    }


def test_what_happens_now_and_then_between_counted_steps_is_no_pass() -> None:
    """A second of the program's own work in a counted step: no marked step has shown such a
    time."""
    assert after_marked_steps((UNMARKED, 1.014)) == pytest.approx(
        {"data_wait": 2.0, "forward": 3.0, "backward": 6.0, "optimizer": 2.0, "other": 1001.0}
    )


def test_rare_work_in_a_counted_step_keeps_its_own_times() -> None:
    assert after_marked_steps((UNMARKED, 0.0154), (SAVE, 0.1))["checkpoint"] == pytest.approx(100.0)
    gathers_first = after_marked_steps((UNMARKED, 0.05), (SAVE, 0.1), (UNMARKED, 0.014))
    assert gathers_first["checkpoint"] == pytest.approx(150.0) and gathers_first[
        "other"
    ] == pytest.approx(1.0)
    evaluated = after_marked_steps(
        (GAP, 0.001), (LOADER + 1, 0.01), (GAP, 0.001), (NO_GRAD, 0.02), *FULL
    )
    assert evaluated["eval"] == pytest.approx(32.0) and evaluated["forward"] == pytest.approx(3.0)


def test_without_any_marked_step_the_time_is_not_named() -> None:
    assert after_marked_steps((UNMARKED, 0.011), marked=0) == {"other": 11.0}


@pytest.mark.parametrize(("batches", "rest"), [(False, "data_wait"), (True, "other")])
def test_lines_without_torch_between_two_passes_are_no_forward_pass(
    batches: bool, rest: str
) -> None:
    """A loop of reinforcement learning runs its environment between two passes with gradients."""

    def step(torch_samples: float, other_samples: float) -> dict[str, float]:
        fold = SegmentFold()
        loss = StackSample(
            "loss", "python", torch_samples, "torch.cross_entropy", ["train.py:3 main"]
        )
        environment = StackSample("loss", "python", other_samples, "gym.step", ["train.py:4 main"])
        fold.learn(
            Stacks(
                0.0,
                0,
                [loss, environment, StackSample("between", "python", 90, "", ["train.py:5 main"])],
            )
        )
        codes = [LOADER] * batches + [FORWARD, GAP, FORWARD, GAP, BACKWARD, OPTIMIZER]
        raw = RawStep(
            1, 0.0, codes, [0.01 * (n + 1) for n in range(len(codes))], 8, 0, None, 0, 0, None
        )
        fold.step(raw)
        return dict(zip(PHASES, fold.step(raw._replace(index=2)).phases, strict=True))

    usual = step(100, 0)
    assert usual["forward"] == pytest.approx(0.03), "two passes, and what lies between them"
    assert usual["loss"] == pytest.approx(0.01)
    assert step(70, 30) == usual, "the Python between two functions of torch"
    assert step(3, 7) == usual, "too few samples"
    works = step(30, 70)
    assert works["forward"] == pytest.approx(0.023) and works[rest] >= usual[rest] + 0.007 - 1e-9
    assert works["data_wait"] + works["other"] == pytest.approx(
        usual["data_wait"] + usual["other"] + 0.007
    )
    assert works["loss"] == usual["loss"], "whatever runs up to the backward pass"


@pytest.mark.parametrize(
    ("codes", "loss", "forward"),
    [
        ([LOADER, FORWARD, GAP, BACKWARD, OPTIMIZER], 1, 1),
        ([LOADER, FORWARD, GAP, ZERO, GAP, BACKWARD, OPTIMIZER], 2, 1),
        ([LOADER, FORWARD, GAP, LOG, GAP, BACKWARD, OPTIMIZER], 2, 1),
        # gradients of two batches
        ([LOADER, FORWARD, GAP, BACKWARD, GAP, LOADER, FORWARD, GAP, BACKWARD, OPTIMIZER], 2, 2),
        # two calls of a model: between them the next call is prepared
        ([LOADER, FORWARD, GAP, FORWARD, GAP, BACKWARD, OPTIMIZER], 1, 3),
        ([LOADER, FORWARD, GAP, NO_GRAD, GAP, BACKWARD, OPTIMIZER], 1, 3),  # a teacher
        ([LOADER, COMPILED, GAP, BACKWARD, OPTIMIZER], 1, 1),
        # a closure
        ([GAP, OPTIMIZER, ZERO, OPTIMIZER, FORWARD, OPTIMIZER, BACKWARD, OPTIMIZER], 1, 1),
        ([LOADER, GAP, BACKWARD, OPTIMIZER], 0, 1),  # the call of the model is not seen
        # a framework's training step with its loss
        ([LOADER, WHOLE, FORWARD, WHOLE, GAP, BACKWARD, OPTIMIZER], 1, 2),
        ([LOADER, WHOLE, FORWARD, WHOLE, FORWARD, WHOLE, GAP, BACKWARD, OPTIMIZER], 1, 4),
        # a log record within it
        ([LOADER, WHOLE, FORWARD, WHOLE, LOG, WHOLE, GAP, BACKWARD, OPTIMIZER], 2, 2),
        (
            [LOADER, WHOLE, FORWARD, WHOLE, LOG, WHOLE, FORWARD, WHOLE, GAP, BACKWARD, OPTIMIZER],
            1,
            5,
        ),
        ([LOADER, WHOLE, GAP, BACKWARD, OPTIMIZER], 0, 1),
    ],
)
def test_the_loss_lasts_from_the_call_of_the_model_to_the_backward_pass(
    codes: list[int], loss: int, forward: int
) -> None:
    shares, _ = shares_of(codes, codes)
    assert (round(shares["loss"]), round(shares["forward"])) == (loss, forward)
    assert sum(shares.values()) == pytest.approx(len(codes))


ROLLED = [TRAINED, GAP] * 5


@pytest.mark.parametrize(
    ("codes", "generation"),
    [
        ([LOADER, *ROLLED, *TRAINED_STEP], 10),
        ([GAP, *[TRAINED_EVAL, GAP] * 5, *TRAINED_STEP], 10),  # in each step: no evaluation
        ([LOADER, *[NO_GRAD, GAP] * 5, *TRAINED_STEP], 0),  # of another model, such as a teacher
        ([LOADER, *[TRAINED, GAP] * 3, *TRAINED_STEP], 0),  # labels for the step
    ],
)
def test_many_passes_without_gradients_of_the_trained_model_are_generation(
    codes: list[int], generation: int
) -> None:
    shares, _ = shares_of(codes, codes, codes)
    assert round(shares["generation"]) == generation
    assert sum(shares.values()) == pytest.approx(len(codes))


def test_an_environment_between_passes_of_generation_makes_the_batch() -> None:
    fold, codes = SegmentFold(), [*ROLLED, *TRAINED_STEP]
    for index in range(3):
        ends = list(itertools.accumulate(0.03 if code == GAP else 0.01 for code in codes))
        seen = dict(
            zip(
                PHASES,
                fold.step(RawStep(index, 0.0, codes, ends, 8, 0, None, 0, 0)).phases,
                strict=True,
            )
        )
    assert seen["generation"] == pytest.approx(0.05), "without what lies between two of them"
    assert seen["data_wait"] > 0.1
    assert (fold.generated, fold.generated_steps) == (15, 3)


@pytest.mark.parametrize(
    ("codes", "before"),
    [
        ([GAP, ZERO, GAP, *TRAINED_STEP[1:]], "data_wait"),
        ([GAP, *TRAINED_STEP[1:]], "data_wait"),
        ([GAP, BACKWARD, OPTIMIZER], "forward"),
    ],
)
def test_lines_after_a_step_are_no_wait_for_data_in_a_program_without_a_loader(
    codes: list[int], before: str
) -> None:
    """A moving average of the weights, a metric, the garbage collector; what makes the batch stands
    above the call of the model."""

    def step(*samples: StackSample) -> dict[str, float]:
        fold = SegmentFold()
        fold.learn(Stacks(0.0, 0, list(samples)))
        ends = list(
            itertools.accumulate(0.05 if not place else 0.01 for place in range(len(codes)))
        )
        raw = RawStep(1, 0.0, codes, ends, 8, 0, None, 0, 0)
        fold.step(raw)
        return dict(zip(PHASES, fold.step(raw._replace(index=2)).phases, strict=True))

    def lines(part: str, weight: float, *stack: str, callee: str = "") -> StackSample:
        return StackSample(part, "python", weight, callee, [*stack, "train.py:70 main"])

    usual = step()
    calls = (
        lines("backward", 5, "train.py:12 step"),
        lines("optimizer", 5, "train.py:13 step", callee="torch.AdamW.step"),
        lines("optimizer", 5, "train.py:20 step", callee="torch.AdamW.zero_grad"),
    )
    batch, average = (
        lines("between", 10, "data.py:5 load", "train.py:9 step"),
        lines("between", 40, "ema.py:7 update", "train.py:15 step"),
    )
    seen = step(*calls, batch, average)
    after_s = 0.8 * (0.06 if ZERO in codes else 0.05)
    assert seen["other"] == pytest.approx(usual["other"] + min(after_s, 0.05))
    assert seen[before] == pytest.approx(usual[before] - min(after_s, 0.05))
    assert step(*calls, batch) == usual
    assert step(*calls, lines("between", 10, "ema.py:7 update", "train.py:15 step")) == usual, (
        "too few samples"
    )
