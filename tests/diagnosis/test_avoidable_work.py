"""Work of the passes and of the update that could be left out, and its healthy neighbours."""

from __future__ import annotations

import dataclasses

import pytest

from gpuconsole.diagnosis.engine import evaluate
from gpuconsole.diagnosis.rule import Case
from gpuconsole.model.finding import CodePlace, Finding
from gpuconsole.model.stacks import NATIVE, PYTHON, StackSample
from gpuconsole.session.places import avoidable_signals
from tests.diagnosis.cases import case

RULE = "host.avoidable_work"
LOOP = "train.py:50 main"
STEP = {"step_s": 0.05, "forward_ratio": 0.25, "backward_ratio": 0.35, "optimizer_ratio": 0.35}
UPDATE = {
    "stack__update_ratio": 0.3,
    "stack__update_python_ratio": 0.6,
    "model__trained_tensors": 200.0,
    **STEP,
}
VIEWS = {
    "stack__update_ratio": 0.0,
    "repeated__calls": 24.0,
    "repeated__operators_ratio": 0.9,
    "operators_per_step": 4000.0,
    "probe__batch_factor": 1.0,
    **STEP,
}
ROOTS = {
    **UPDATE,
    "stack__update_ratio": 0.6,
    "stack__update_python_ratio": 0.1,
    "model__trained_tensors": 6.0,
    "optimizer_ratio": 0.8,
}
GROUPS = {
    **STEP,
    "stack__update_ratio": 0.0,
    "stack__optimizer_ratio": 0.5,
    "model__trained_tensors": 482.0,
    "model__optimizer_groups": 482.0,
    "optimizer_ratio": 0.5,
}
SVD = {
    "stack__update_ratio": 0.0,
    "stack__operator_ratio": 0.25,
    "decomposition__flops_ratio": 0.27,
    **STEP,
}
AGAIN = {
    "stack__update_ratio": 0.0,
    "recomputed__flops_ratio": 0.24,
    "memory_used_ratio": 0.2,
    **STEP,
}
SPARE = {
    "stack__update_ratio": 0.0,
    "spare__same_pass_ratio": 0.5,
    **STEP,
}
ROWS = {
    **VIEWS,
    "repeated__calls": 0.0,
    "gradient_loop__calls": 24.0,
    "gradient_loop__operators_ratio": 0.8,
}
PLACES = {
    "spare.same_pass_ratio": CodePlace("two.py:33", "<module>", "forward"),
    "gradient_loop.calls": CodePlace("rows.py:17", "jacobian", "backward"),
    "stack.update_ratio": CodePlace("own.py:12", "Lion.step", "optimizer"),
    "repeated.calls": CodePlace("model.py:29", "Rig.forward", "forward"),
    "stack.operator_ratio": CodePlace("loss.py:10", "nuclear", "loss"),
    "stack.optimizer_ratio": CodePlace("train.py:41", "<module>", "optimizer"),
}


def job(signals: dict[str, float]) -> Case:
    """A user's own job with these signals, and with their places."""
    own = dataclasses.replace(case(**signals), is_job=True)
    for name, place in PLACES.items():
        if name in own.signals:
            own.signals[name] = dataclasses.replace(own.signals[name], place=place)
    if "elsewhere" in own.signals:
        place = CodePlace("net.py:40", "Attention.forward", "forward")
        own.signals["stack.operator_ratio"] = dataclasses.replace(
            own.signals["stack.operator_ratio"], place=place
        )
    return own


def of(rule: str, signals: dict[str, float]) -> Finding:
    return next(finding for finding in evaluate(job(signals)) if finding.rule == rule)


@pytest.mark.parametrize(
    ("signals", "recoverable", "named", "part"),
    [
        (UPDATE, 0.3 * 0.4, "Lion.step at own.py:12", "optimizer"),
        (VIEWS, 0.6 * 0.9 * (1 - 1 / 24) * 6e-6 / 7.5e-6, "Rig.forward at model.py:29", "forward"),
        (
            {**VIEWS, "probe__batch_factor": 4.0, "probe__batch_cost_ratio": 0.4},
            0.414,
            "24 times",
            "forward",
        ),
        (ROOTS, 0.6, "Lion.step at own.py:12", "optimizer"),
        (GROUPS, 0.5 * 0.7, "482 parameter groups", "optimizer"),
        (SVD, 0.25, "nuclear at loss.py:10", "loss"),
        (AGAIN, 0.6 * 0.24, "24 %", ""),
        (SPARE, 0.6 * 0.5, "at two.py:33 calls a module with the inputs of an earlier", "forward"),
        (
            ROWS,
            0.6 * 0.8 * (1 - 1 / 24) * 6e-6 / 7.5e-6 * 0.45,
            "jacobian at rows.py:17",
            "backward",
        ),
        *(
            ({**SPARE, "spare__same_pass_ratio": 0.05, f"spare__{name}_ratio": 0.5}, saved, "", "")
            for name, saved in (
                ("backward_again", 0.3),
                ("unused_gradients", 0.3),
                ("zeros", 0.27),
                ("unlabelled", 0.3),
                ("padding", 0.3),
            )
        ),
    ],
)
def test_each_kind_fires_with_its_line_and_no_batch_is_accused(
    signals: dict[str, float], recoverable: float, named: str, part: str
) -> None:
    finding = of(RULE, signals)
    assert finding.state == "fires" and named in finding.summary
    assert (finding.place.part if finding.place is not None else "") == part
    assert finding.recoverable_ratio == pytest.approx(recoverable, rel=0.01)
    probed = {"probe__batch_factor": 4.0, "probe__batch_cost_ratio": 0.4, **signals}
    assert of("gpu.small_batch", probed).state == "clear"


@pytest.mark.parametrize(
    ("signals", "changes"),
    [
        # torch._foreach_*: few lines of Python
        (UPDATE, {"stack__update_python_ratio": 0.1}),
        # an update that multiplies matrices (Muon)
        (UPDATE, {"step_s": 2.0}),
        (UPDATE, {"model__trained_tensors": 4.0}),
        (UPDATE, {"stack__update_ratio": 0.05}),
        # an optimizer of the program's own that does not take much of a step
        (ROOTS, {"stack__update_ratio": 0.3}),
        # a small model, whose update takes some short operators for each tensor
        (ROOTS, {"step_s": 0.0005}),
        # with and without decay, in four layers each
        (GROUPS, {"model__optimizer_groups": 8.0}),
        (GROUPS, {"model__optimizer_groups": 40.0}),
        (GROUPS, {"optimizer_ratio": 0.05}),
        # pieces of a long sequence, so that it fits into memory: long operators
        (VIEWS, {"step_s": 2.0}),
        (VIEWS, {"repeated__calls": 2.0}),
        (VIEWS, {"repeated__operators_ratio": 0.1}),
        # a small matrix beside large products
        (SVD, {"decomposition__flops_ratio": 0.001}),
        (SVD, {"stack__operator_ratio": 0.05}),
        # attention has most operators, and a regularizer has a small decomposition
        (SVD, {"elsewhere": 1.0}),
        # checkpoints that memory needs
        (AGAIN, {"memory_used_ratio": 0.8}),
        (AGAIN, {"recomputed__flops_ratio": 0.02}),
        # small parts of the passes
        (SPARE, {"spare__same_pass_ratio": 0.08, "spare__zeros_ratio": 0.05}),
        # rows of a large model: one call for all rows starts fewer operators, and takes as long
        (ROWS, {"step_s": 2.0}),
        (ROWS, {"gradient_loop__calls": 3.0}),
        (ROWS, {"gradient_loop__operators_ratio": 0.2}),
        # the GPU works meanwhile
        (UPDATE, {"is_gpu": 1.0, "gpu__util_ratio": 0.98}),
    ],
)
def test_healthy_neighbours_are_left_alone(
    signals: dict[str, float], changes: dict[str, float]
) -> None:
    assert of(RULE, signals | changes).state == "clear"


def samples(part: str, kind: str, weight: float, callee: str, *lines: str) -> StackSample:
    return StackSample(part, kind, weight, callee, [*lines, LOOP])


def test_the_function_of_an_update_has_the_time_of_what_it_calls() -> None:
    signals = avoidable_signals(
        [
            samples("backward", NATIVE, 60, "torch.Tensor.backward"),
            samples("clip", PYTHON, 10, "", "clip.py:9 clip"),
            samples("clip", PYTHON, 15, "torch.Tensor.norm", "clip.py:10 clip"),
            samples("clip", NATIVE, 5, "torch.clip_grad_norm_"),
            samples("optimizer", NATIVE, 10, "torch.Adam.step"),
        ]
    )
    update = signals["stack.update_ratio"]
    assert update.value == pytest.approx(0.25)
    assert update.place == CodePlace("clip.py:10", "clip", "clip", LOOP)
    assert signals["stack.update_python_ratio"].value == 1.0


@pytest.mark.parametrize("callee", ["torch.Adam.step", "torch.GradScaler.step", "torch.norm"])
def test_a_loop_that_calls_torchs_optimizer_is_no_update_of_its_own(callee: str) -> None:
    signals = avoidable_signals(
        [
            samples("forward", NATIVE, 50, "torch.Linear.forward"),
            samples("optimizer", PYTHON, 50, callee),
        ]
    )
    assert signals["stack.update_ratio"].value == 0
    assert "stack.update_python_ratio" not in signals


def test_samples_of_steps_that_are_not_marked_do_not_hide_an_optimizer() -> None:
    signals = avoidable_signals(
        [
            samples("forward", NATIVE, 20, "torch.Linear.forward"),
            samples("optimizer", NATIVE, 50, "", "own.py:16 root", "own.py:33 step"),
            samples("between", NATIVE, 30, "", "own.py:16 root", "own.py:33 step"),
        ]
    )
    assert signals["stack.update_ratio"].value == pytest.approx(0.5)


def test_the_line_that_calls_torchs_optimizer() -> None:
    signals = avoidable_signals(
        [
            samples("forward", NATIVE, 50, "torch.Linear.forward"),
            samples("optimizer", NATIVE, 50, "torch.AdamW.step"),
        ]
    )
    assert signals["stack.optimizer_ratio"].value == pytest.approx(0.5)
    assert signals["stack.optimizer_ratio"].place == CodePlace("train.py:50", "main")


def test_the_operators_that_a_function_calls_itself() -> None:
    signals = avoidable_signals(
        [
            samples("forward", NATIVE, 40, "torch.Linear.forward", "model.py:5 Net.forward"),
            samples("loss", NATIVE, 20, "", "loss.py:10 nuclear"),
            samples("loss", PYTHON, 10, "", "loss.py:10 nuclear"),
            samples("loss", PYTHON, 35, "", "match.py:3 match"),
        ]
    )
    operators = signals["stack.operator_ratio"]
    assert operators.value == pytest.approx(30 / 105)
    assert operators.place == CodePlace("loss.py:10", "nuclear", "loss", LOOP)
