"""From stack samples to the places of a program, and to the signals that rules read."""

from __future__ import annotations

import pytest

from gpuconsole.model.finding import CodePlace
from gpuconsole.model.stacks import StackSample
from gpuconsole.session.places import (
    StackRecord,
    after_step_ratio,
    between_passes,
    by_breakdown,
    places_of,
    side_work_signals,
    signals_of,
    thread_signals,
    torch_ratio,
)
from gpuconsole.wire.events import Stacks

MAIN = "train.py:40 main"


def sample(
    weight: float,
    line: str,
    part: str = "between",
    kind: str = "python",
    callee: str = "",
    caller: str = MAIN,
) -> StackSample:
    return StackSample(part, kind, weight, callee, [line, caller])


REST = sample(
    50, "train.py:41 main", "backward", "native", "torch.Tensor.backward", "train.py:50 <module>"
)


def test_the_lines_of_a_function_are_added_up_within_each_part() -> None:
    places = places_of(
        [
            sample(10, "train.py:8 update"),
            sample(20, "train.py:9 update", kind="waits", callee="queue.get"),
            sample(5, "train.py:9 update", callee="torch.add"),
            sample(15, "train.py:9 update", "loss"),
            REST,
        ]
    )
    assert [(place.part, place.function, place.line, place.share_ratio) for place in places] == [
        ("backward", "main", "train.py:41", pytest.approx(0.5)),
        ("between", "update", "train.py:9", pytest.approx(0.35)),
        ("loss", "update", "train.py:9", pytest.approx(0.15)),
    ]
    update = places[1]
    assert (update.callee, update.caller, update.samples) == ("queue.get", MAIN, 35)
    assert update.waits_ratio == pytest.approx(20 / 35) and places[0].native_ratio == 1


def test_a_function_with_several_callers_names_none() -> None:
    places = places_of(
        [
            sample(30, "train.py:8 update", caller=MAIN),
            sample(25, "train.py:8 update", caller="train.py:60 other"),
        ]
    )
    assert places[0].caller == ""


def test_other_threads_take_no_share_of_a_step_and_count_where_they_are_in_python() -> None:
    others = [
        sample(40, "train.py:70 plot", "thread"),
        sample(10, "train.py:71 plot", "thread"),
        sample(20, "train.py:90 load", "thread", "native"),
    ]
    record = StackRecord()
    record.add(Stacks(1.0, 0, [sample(50, "train.py:8 update"), REST, *others]))
    assert [place.share_ratio for place in record.places(0.0)] == [0.5, 0.5]
    signal = thread_signals(record.of_others(0.0), record.since(0.0))["stack.thread_ratio"]
    assert signal.value == pytest.approx(0.5)
    assert signal.place == CodePlace("train.py:70", "plot", caller=MAIN)
    assert thread_signals([], record.since(0.0))["stack.thread_ratio"].value == 0.0


def test_too_few_samples_say_nothing() -> None:
    few = [sample(49, "train.py:8 update")]
    assert places_of(few) == [] and signals_of(few) == {}


def test_the_scripts_own_lines_are_those_outside_of_named_phases() -> None:
    signals = signals_of(
        [
            sample(30, "train.py:8 update"),
            sample(10, "train.py:8 update", kind="waits"),
            sample(10, "train.py:9 wait"),
            REST,
        ]
    )
    assert signals["stack.script_ratio"].value == pytest.approx(0.5)
    assert signals["stack.line_ratio"].value == pytest.approx(0.4)
    assert signals["stack.line_ratio"].place == CodePlace("train.py:8", "update", "between", MAIN)
    assert signals["stack.line_cpu_ratio"].value == pytest.approx(0.75)
    blanks = signals_of([sample(60, "look at me.py:6 busy"), REST])["stack.line_ratio"]
    assert blanks.place == CodePlace("look at me.py:6", "busy", "between", MAIN)


def test_python_of_the_library_that_runs_the_loop_is_not_the_scripts_own() -> None:
    """`trainer.fit()` holds the whole step; a callback of the script is its own."""
    fit = "train.py:44 main"
    inside = [
        sample(20, fit, "feed", callee="lightning.Trainer.fit"),
        sample(30, fit, "optimizer", callee="torch.Adam.step"),
    ]
    assert signals_of([*inside, REST])["stack.script_ratio"].value == 0
    callback = sample(25, "train.py:9 on_batch_end", "between", caller=fit)
    assert signals_of([*inside, REST, callback])["stack.script_ratio"].value == pytest.approx(
        25 / 125
    )


@pytest.mark.parametrize("part", ["comm", "logging", "checkpoint"])
def test_side_work_has_its_line_and_the_line_that_calls_it(part: str) -> None:
    signal = side_work_signals(
        [
            sample(30, "train.py:8 write", part, caller="train.py:50 main"),
            sample(70, "train.py:9 step"),
        ]
    )[f"stack.{part}_ratio"]
    assert signal.value == pytest.approx(0.3)
    assert signal.place == CodePlace("train.py:8", "write", caller="train.py:50 main")


@pytest.mark.parametrize(
    ("eval_ratio", "named"),
    [(0.3, CodePlace("train.py:15", "accuracy", caller=MAIN)), (0.02, None)],
)
def test_an_evaluation_of_the_trained_model_has_its_line(
    eval_ratio: float, named: CodePlace | None
) -> None:
    """Its passes look like those of a teacher. The function that makes them loads batches, too."""
    signals = side_work_signals(
        [
            sample(10, "train.py:16 accuracy", "no_grad"),
            sample(20, "train.py:15 accuracy", "data_wait", callee="torch.DataLoader"),
            sample(40, "train.py:39 main", "data_wait", caller="train.py:50 <module>"),
            sample(10, "train.py:44 main", "optimizer", caller="train.py:50 <module>"),
            REST,
        ],
        eval_ratio,
    )
    signal = signals.get("stack.eval_ratio")
    assert (signal.place if signal is not None else None) == named
    if signal is not None:
        assert signal.value == pytest.approx(30 / 130)


@pytest.mark.parametrize(("own", "line"), [(15, "train.py:30"), (3, "train.py:48")])
def test_the_line_that_runs_the_whole_loop_is_named_only_where_no_other_has_much(
    own: float, line: str
) -> None:
    """`self.log` in Lightning: some of its time is under `trainer.fit()`, with no other line."""
    samples = [
        sample(20, "train.py:48 main", "logging", callee="lightning.Trainer.fit"),
        sample(own, "train.py:30 training_step", "logging", caller="train.py:48 main"),
        sample(40, "train.py:48 main", "optimizer", callee="torch.Adam.step"),
    ]
    place = side_work_signals(samples)["stack.logging_ratio"].place
    assert place is not None and place.line == line


@pytest.mark.parametrize(("python", "counted"), [(60, True), (20, False)])
def test_the_loss_is_the_scripts_own_where_much_of_it_is_no_function_of_torch(
    python: float, counted: bool
) -> None:
    loss = [
        sample(30, "train.py:20 loss", "loss", callee="torch.cross_entropy"),
        sample(30, "train.py:21 loss", "loss", "native"),
        sample(python, "train.py:9 match", "loss"),
    ]
    assert torch_ratio(loss) == pytest.approx(60 / (60 + python))
    assert signals_of(loss)["stack.script_ratio"].value == pytest.approx(
        python / (60 + python) if counted else 0
    )


def test_python_in_the_loss_is_named_there_and_is_no_code_between_the_phases() -> None:
    loss = [sample(40, "detr.py:9 match", "loss"), sample(10, "detr.py:20 criterion", "loss")]
    signals = signals_of([*loss, REST], 0.5)
    assert signals["stack.script_ratio"].value == 0
    assert signals["stack.function_ratio"].value == pytest.approx(0.4)
    assert signals["stack.function_ratio"].place == CodePlace("detr.py:9", "match", "loss", MAIN)


def test_python_that_is_sampled_too_seldom_has_the_time_of_its_part_of_the_step() -> None:
    """Ten samples of fifty are in the loss, which takes 40 % of the step."""
    loss = [sample(9, "detr.py:9 match", "loss"), sample(1, "detr.py:20 criterion", "loss")]
    optimizer = StackSample("optimizer", "native", 40, "torch.Adam.step", [MAIN])
    samples = [*loss, optimizer]
    found = signals_of(samples, 0.4)
    assert found["stack.function_ratio"].value == pytest.approx(0.18)
    exact = by_breakdown(found, samples, {"forward": 0.2, "loss": 0.4})
    assert exact["stack.function_ratio"].value == pytest.approx(0.36)
    assert exact["stack.function_ratio"].place == found["stack.function_ratio"].place
    teacher = sample(5, "teacher.py:3 forward", "no_grad")
    assert by_breakdown(found, [*samples, teacher], {"loss": 0.4}) == {}
    assert by_breakdown(found, samples, {"forward": 0.4}) == {}


@pytest.mark.parametrize("part", ["between", "loss"])
def test_small_functions_are_added_up_in_the_function_that_calls_them(part: str) -> None:
    called = [
        StackSample(
            part,
            "python",
            10,
            "",
            [f"metric.py:{number} part{number}", f"metric.py:{60 + number} update", MAIN],
        )
        for number in range(4)
    ]
    around = StackSample("backward", "native", 50, "torch.Tensor.backward", [MAIN])
    signals = signals_of([*called, around, sample(12, "train.py:8 log", part)], 0.5)
    name = "stack.line_ratio" if part == "between" else "stack.function_ratio"
    assert signals[name].value == pytest.approx(40 / 102)
    assert signals[name].place == CodePlace("metric.py:60", "update", part, MAIN)


def test_a_late_sample_of_a_step_moves_no_border() -> None:
    """Two of a hundred samples of the step show a line that runs after the step."""
    step = StackSample("optimizer", "native", 98, "torch.SGD.step", ["train.py:30 train"])
    late = StackSample("optimizer", "native", 2, "torch.SGD.step", ["train.py:40 train"])
    average = StackSample("between", "python", 60, "", ["train.py:40 train"])
    batch = StackSample("between", "python", 20, "", ["train.py:10 train"])
    assert after_step_ratio([step, late, average, batch], 30) == pytest.approx(0.75)
    assert after_step_ratio([step, average, batch], 30) == pytest.approx(0.75)
    assert after_step_ratio([step, late, average, batch], 90) == 0


@pytest.mark.parametrize(
    ("passes", "kept"), [(2.0, ["view"]), (8.0, ["view", "contrast"]), (1.0, ["view", "contrast"])]
)
def test_what_stands_below_the_last_call_of_the_model_lies_between_no_calls(
    passes: float, kept: list[str]
) -> None:
    """A loss over two views of a sample. A loop with more passes than lines may have its
    environment there."""
    first, second, ends = (f"train.py:{number} main" for number in (10, 12, 20))
    calls = [
        StackSample("forward", "native", 5, "torch.nn", ["net.py:3 Net.forward", line])
        for line in (first, second)
    ]
    backward = StackSample("backward", "native", 5, "torch.Tensor.backward", [ends])
    after = [
        StackSample("loss", "python", 5, "", ["aug.py:2 view", "train.py:12 main"]),
        StackSample("loss", "python", 5, "", ["nce.py:2 contrast", "train.py:14 main"]),
    ]
    found = between_passes(after, [*after, *calls, backward], passes)
    assert [sample.lines[0].rpartition(" ")[2] for sample in found] == kept


def test_a_function_with_nearly_all_of_the_time_of_its_caller_is_named_and_modules_are_not() -> (
    None
):
    stack = ["ema.py:7 average", "ema.py:20 update", MAIN]
    signals = signals_of(
        [
            StackSample("between", "python", 45, "", stack),
            StackSample("between", "python", 5, "", stack[1:]),
            REST,
        ]
    )
    assert signals["stack.line_ratio"].value == pytest.approx(0.45)
    place = signals["stack.line_ratio"].place
    assert place is not None and str(place) == "ema.py:7 average"
    layers = [
        StackSample(
            "forward",
            "python",
            15,
            "",
            [f"gpt.py:{number} Layer{number}.forward", "gpt.py:90 GPT.forward"],
        )
        for number in range(3)
    ]
    assert signals_of([*layers, REST])["stack.function_ratio"].value == pytest.approx(15 / 95)


def test_samples_of_before_the_steady_state_do_not_count() -> None:
    record = StackRecord()
    record.add(Stacks(1.0, 0, [sample(60, "train.py:1 warm")]))
    record.add(Stacks(3.0, 0, [sample(60, "train.py:8 update")]))
    assert [place.function for place in places_of(record.since(2.0))] == ["update"]


def test_samples_of_steps_that_are_only_counted_have_the_part_of_the_marked_steps() -> None:
    """Most steps of a few ms are only counted: their samples lie between two steps."""
    record = StackRecord()
    clipping = [sample(15, "clip.py:12 clip"), sample(8, "clip.py:12 clip", "clip")]
    late = [sample(40, "train.py:60 log"), sample(3, "train.py:60 log", "optimizer")]
    elsewhere = [sample(10, "clip.py:12 clip", caller="train.py:3 other")]
    record.add(Stacks(1.0, 0, [*clipping, *late, *elsewhere]))
    weights: dict[tuple[str, str], float] = {}
    for one in record.since(0.0):
        key = (one.lines[-1] if one in elsewhere else one.lines[0], one.part)
        weights[key] = weights.get(key, 0.0) + one.weight
    assert weights == {
        ("clip.py:12 clip", "clip"): 23,
        ("train.py:60 log", "between"): 40,
        ("train.py:60 log", "optimizer"): 3,
        ("train.py:3 other", "between"): 10,
    }


def test_the_line_that_is_outside_of_python_while_the_host_issues_work() -> None:
    """A mask makes torch wait for the GPU: the line spins or sleeps there. Calls of other
    libraries, and the backward pass, are left out."""
    mask = sample(40, "loss.py:12 masked_loss", "loss", "native", caller="train.py:30 main")
    others = [
        sample(9, "loss.py:13 masked_loss", "loss", "native"),
        sample(30, "loss.py:12 masked_loss", "loss"),
        sample(60, "data.py:5 load", "data_wait", "waits"),
        sample(60, "prepare.py:5 resize", "feed", "native", "PIL.Image.resize"),
        REST,
    ]
    signal = signals_of([mask, *others])["stack.outside_ratio"]
    assert signal.value == pytest.approx(40 / 249)
    assert signal.place == CodePlace("loss.py:12", "masked_loss", caller="train.py:30 main")
    assert signals_of(others[2:])["stack.outside_ratio"].value == 0.0
