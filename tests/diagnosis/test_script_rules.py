"""The rules on epochs, slow samples, receiving, the script's own Python, evaluation, leaks and
needless exchanges; and what looks like each."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

from gpuconsole.diagnosis.engine import Hysteresis, evaluate
from gpuconsole.diagnosis.families import loader as loader_family
from gpuconsole.diagnosis.precedence import PRECEDENCE
from gpuconsole.diagnosis.rule import TRIAL_ERROR, Case, Missing
from gpuconsole.model.finding import CodePlace, Signal
from gpuconsole.model.knobs.catalogue import Knobs
from tests.diagnosis.cases import case, check, loader

WORKERS: Knobs = {
    "num_workers": 1,
    "prefetch_factor": 2,
    "persistent_workers": False,
    "collate_fn": "list",
}
FAST = loader(rate=1000.0, plus_1=1900.0, cpu=0.6)
"""Of a step of 16 samples and 0.1 s: six times what it eats."""


def test_restarts_that_are_most_of_the_wait_are_the_cause_and_no_other_rule_claims_them() -> None:
    found = case(
        knobs=WORKERS,
        data_wait_ratio=0.3,
        loader__restart_ratio=0.25,
        loader__restarts=4.0,
        data_wait_excess_ratio=0.29,
        data_wait_typical_ratio=0.0,
        **FAST,
    )
    finding = check("input.epoch_restart", found)
    assert finding.state == "fires" and finding.suggestions[0].changes == {
        "persistent_workers": True
    }
    assert all(
        check(rule, found).state == "clear"
        for rule in ("input.jitter", "input.slow_storage", "input.too_few_workers")
    )


@pytest.mark.parametrize(("restart", "fires"), [(0.05, False), (0.09, True)])
def test_where_the_processes_stay_an_empty_queue_is_a_long_wait_like_others(
    restart: float, fires: bool
) -> None:
    waits = {
        "data_wait_ratio": restart + 0.03,
        "data_wait_typical_ratio": 0.03,
        "data_wait_excess_ratio": restart,
    }
    found = case(
        knobs={**WORKERS, "persistent_workers": True},
        loader__restart_ratio=restart,
        loader__restarts=4.0,
        **waits,
        **FAST,
    )
    assert (check("input.epoch_restart", found).state == "fires") == fires
    assert all(
        check(rule, found).state == "clear"
        for rule in ("input.jitter", "input.slow_storage", "input.too_few_workers")
    )


def test_a_finding_about_waits_closes_as_soon_as_another_cause_explains_them() -> None:
    """Before the second restart was counted, its long waits looked like single slow samples."""
    waits = {
        "data_wait_ratio": 0.2,
        "data_wait_typical_ratio": 0.02,
        "data_wait_excess_ratio": 0.16,
    }
    steadied = Hysteresis()
    for restarts in (1.0, 1.0, 3.0, 3.0):
        found = case(
            knobs=WORKERS, loader__restart_ratio=0.1, loader__restarts=restarts, **waits, **FAST
        )
        shown = steadied.update(evaluate(found))
    assert [
        finding.rule
        for finding in shown
        if finding.state == "fires" and finding.rule.startswith("input.")
    ] == ["input.epoch_restart"]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sampler_that_takes_most_of_the_start_of_an_epoch_is_the_cause(workers: int) -> None:
    waits = {
        "data_wait_ratio": 0.3,
        "data_wait_excess_ratio": 0.29,
        "data_wait_typical_ratio": 0.0,
        "loader__restarts": 4.0,
    }
    knobs = {**WORKERS, "num_workers": workers}
    found = case(
        knobs=knobs, loader__restart_ratio=0.25, loader__sampler_ratio=0.22, **waits, **FAST
    )
    finding = check("input.epoch_restart", found)
    assert (
        finding.state == "fires"
        and finding.title == "The sampler delays the start of every epoch"
        and not finding.suggestions
    )
    assert all(
        check(rule, found).state == "clear"
        for rule in ("input.jitter", "input.slow_storage", "input.too_few_workers")
    )
    short = case(
        knobs=WORKERS, loader__restart_ratio=0.25, loader__sampler_ratio=0.02, **waits, **FAST
    )
    assert check("input.epoch_restart", short).suggestions[0].changes == {
        "persistent_workers": True
    }, "the usual restart"
    shuffles = case(
        knobs=knobs,
        data_wait_ratio=0.08,
        loader__restart_ratio=0.06,
        loader__sampler_ratio=0.05,
        loader__restarts=4.0,
        **FAST,
    )
    assert check("input.epoch_restart", shuffles).state == "clear", "a short epoch is shuffled"


def test_restarts_that_are_little_of_a_long_wait_are_not() -> None:
    found = case(
        knobs=WORKERS,
        data_wait_ratio=0.5,
        loader__restart_ratio=0.04,
        **loader(rate=100.0, plus_1=200.0, cpu=0.1),
    )
    assert check("input.epoch_restart", found).state == "clear"
    assert check("input.slow_storage", found).state == "fires"


def test_restarts_that_are_most_of_the_long_waits_are() -> None:
    """The batches after the first of an epoch are late too, and the others wait a little."""
    waits = {
        "data_wait_ratio": 0.127,
        "data_wait_typical_ratio": 0.028,
        "data_wait_excess_ratio": 0.101,
        "loader__restarts": 4.0,
    }
    found = case(knobs=WORKERS, loader__restart_ratio=0.06, **waits, **FAST)
    assert (
        check("input.epoch_restart", found).state == "fires"
        and check("input.jitter", found).state == "clear"
    )
    rare = case(knobs=WORKERS, loader__restart_ratio=0.04, **waits, **FAST)
    assert (
        check("input.epoch_restart", rare).state == "clear"
        and check("input.jitter", rare).state == "fires"
    )


def test_few_long_waits_of_a_fast_loader_are_jitter() -> None:
    found = case(
        knobs=WORKERS,
        data_wait_ratio=0.2,
        data_wait_typical_ratio=0.001,
        data_wait_excess_ratio=0.2,
        **FAST,
    )
    finding = check("input.jitter", found)
    assert finding.state == "fires" and finding.suggestions[0].changes == {"prefetch_factor": 8}
    assert check("input.slow_storage", found).state == "clear"


@pytest.mark.parametrize(
    "changes",
    [
        {"data_wait_typical_ratio": 0.15, "data_wait_excess_ratio": 0.1},  # every step waits
        {
            "data_wait_typical_ratio": 0.0,
            "data_wait_excess_ratio": 0.2,
            **loader(rate=150.0, plus_1=300.0, cpu=0.9),
        },  # bursts: too slow on average
    ],
)
def test_a_loader_that_is_too_slow_is_no_jitter(changes: dict[str, float]) -> None:
    several = {**WORKERS, "num_workers": 2}
    assert (
        check("input.jitter", case(knobs=several, data_wait_ratio=0.2, **{**FAST, **changes})).state
        == "clear"
    )


def test_one_worker_hands_out_no_bursts() -> None:
    """Whatever the loader's own rate was in a short look: if the median step does not wait, single
    samples are slow."""
    waits = {
        "data_wait_ratio": 0.2,
        "data_wait_typical_ratio": 0.0,
        "data_wait_excess_ratio": 0.2,
        "samples_per_step": 16.0,
        "step_s": 0.2,
    }
    finding = check("input.jitter", case(knobs={**WORKERS, "num_workers": 1}, **waits))
    assert finding.state == "fires" and finding.suggestions[0].changes == {"prefetch_factor": 8}


@pytest.mark.parametrize(("rate", "first"), [(130.0, "prefetch_factor"), (110.0, "num_workers")])
def test_a_queue_that_is_not_full_again_soon_is_no_cure(rate: float, first: str) -> None:
    """The model eats 80 samples a second, but for its waits: half as much again is 120."""
    waits = {
        "data_wait_ratio": 0.2,
        "data_wait_typical_ratio": 0.0,
        "data_wait_excess_ratio": 0.2,
        "samples_per_step": 16.0,
        "step_s": 0.25,
    }
    finding = check(
        "input.jitter",
        case(knobs={**WORKERS, "num_workers": 1}, probe__loader_samples_per_s=rate, **waits),
    )
    assert list(finding.suggestions[0].changes) == [first]


@pytest.mark.parametrize(
    ("long_s", "prefetch_factor", "cpu", "workers", "gain"),
    [
        # a step without waits takes 0.1875 s: three of them last so long
        (0.5, 1, 0.1, 4, 1 / 0.75),
        (0.5, 2, 0.1, 3, 1 / 0.75),
        (1.5, 1, 0.1, 5, 1 / (1 - 0.25 * 0.5)),  # four more have half of it ready
        (0.5, 1, 0.45, 4, 1 / 0.75),
    ],
)
def test_so_many_workers_that_they_outlast_a_slow_sample(
    long_s: float, prefetch_factor: int, cpu: float, workers: int, gain: float
) -> None:
    waits = {
        "data_wait_ratio": 0.25,
        "data_wait_typical_ratio": 0.0,
        "data_wait_excess_ratio": 0.25,
        "step_s": 0.25,
        "data_wait_long_s": long_s,
        "data_wait_long_steps": 1e9,
    }
    knobs = {**WORKERS, "num_workers": 1, "prefetch_factor": prefetch_factor}
    found = case(
        knobs=knobs,
        samples_per_step=16.0,
        probe__loader_samples_per_s=80.0,
        probe__loader_cpu_ratio=cpu,
        **waits,
    )
    suggestion = check("input.jitter", found).suggestions[0]
    assert suggestion.changes == {"num_workers": workers}
    assert suggestion.predicted_speedup is not None
    assert (
        suggestion.predicted_speedup.low + suggestion.predicted_speedup.high
    ) / 2 == pytest.approx(gain, rel=0.02)


def test_one_core_beside_the_training_thread_has_no_room_for_a_second_worker_that_computes() -> (
    None
):
    waits = {
        "data_wait_ratio": 0.25,
        "data_wait_typical_ratio": 0.0,
        "data_wait_excess_ratio": 0.25,
        "step_s": 0.25,
        "data_wait_long_s": 0.5,
    }
    found = case(
        knobs={**WORKERS, "num_workers": 1, "prefetch_factor": 1},
        samples_per_step=16.0,
        **waits,
        **loader(80.0, 80.0, 0.9),
    )
    assert [suggestion.changes for suggestion in check("input.jitter", found).suggestions] == [
        {"prefetch_factor": 4}
    ]
    deep = dataclasses.replace(found, knobs={**found.knobs, "prefetch_factor": 32})
    assert check("input.jitter", deep).suggestions[0].changes == {"prefetch_factor": 64}, (
        "the maximum of the setting"
    )


@pytest.mark.parametrize(("seen", "error"), [(1e9, 0.35), (50.0, 0.403), (2.0, 1.0)])
def test_few_slow_samples_promise_little_for_sure(seen: float, error: float) -> None:
    waits = {
        "data_wait_ratio": 0.25,
        "data_wait_typical_ratio": 0.0,
        "data_wait_excess_ratio": 0.25,
        "step_s": 0.25,
    }
    long = {"data_wait_long_s": 0.5, "data_wait_long_steps": seen}
    found = case(
        knobs={**WORKERS, "num_workers": 1},
        samples_per_step=16.0,
        probe__loader_samples_per_s=80.0,
        **waits,
        **long,
    )
    promised = check("input.jitter", found).suggestions[0].predicted_speedup
    assert promised is not None and promised.high == pytest.approx(
        (1 + (1 + error) / 3) * (1 + TRIAL_ERROR), rel=0.001
    )


def test_without_workers_there_is_no_queue() -> None:
    found = case(
        loader__restart_ratio=0.0,
        data_wait_ratio=0.3,
        data_wait_typical_ratio=0.0,
        data_wait_excess_ratio=0.3,
        **FAST,
    )
    assert [
        check(rule, found).state
        for rule in ("input.jitter", "input.epoch_restart", "input.ipc_collate")
    ] == ["clear"] * 3


def test_a_training_process_that_unpacks_is_the_limit() -> None:
    slow = loader(rate=150.0, plus_1=160.0, cpu=0.3)
    stacked = {
        "samples_per_step": 16.0,
        "step_s": 0.1,
        "probe__loader_stacked_samples_per_s": 200.0,
    }
    found = case(
        knobs=WORKERS, data_wait_ratio=0.4, probe__loader_receive_ratio=0.9, **slow, **stacked
    )
    finding = check("input.ipc_collate", found)
    assert finding.state == "fires" and finding.suggestions[0].changes == {"collate_fn": "stack"}
    predicted = finding.suggestions[0].predicted_speedup
    assert predicted is not None and predicted.low < 0.1 / 0.08 < predicted.high, (
        "a loader that stacks gives a batch in 80 ms"
    )
    older = case(knobs=WORKERS, data_wait_ratio=0.4, probe__loader_receive_ratio=0.9, **slow)
    assert check("input.ipc_collate", older).state == "fires", (
        "as recorded before a loader that stacks was measured"
    )
    at_once = case(
        knobs={**WORKERS, "collate_fn": "stack"},
        data_wait_ratio=0.4,
        probe__loader_receive_ratio=0.9,
        **slow,
    )
    assert check("input.ipc_collate", at_once).suggestions == (), (
        "batches are made by the workers as it is"
    )
    assert check("input.slow_storage", found).state == "clear"
    waits = case(knobs=WORKERS, data_wait_ratio=0.4, probe__loader_receive_ratio=0.1, **slow)
    assert check("input.ipc_collate", waits).state == "clear"
    assert check("input.slow_storage", waits).state == "fires"


STACK = {"stack__script_ratio": 0.2, "stack__line_ratio": 0.2}


def test_python_between_phases_asks_for_the_stack_and_then_names_its_cause() -> None:
    with pytest.raises(Missing, match=r"stack\.script_ratio"):
        check("host.python_overhead", case(other_ratio=0.3))
    lists = check(
        "host.python_overhead",
        case(
            knobs={"gradient_percentiles": "python"}, other_ratio=0.3, gc__pause_ratio=0.01, **STACK
        ),
    )
    assert lists.suggestions[0].changes == {"gradient_percentiles": "torch"}
    collector = case(
        knobs={"gc_collect_every": 1, "gradient_percentiles": "off"},
        other_ratio=0.3,
        gc__pause_ratio=0.28,
        **STACK,
    )
    finding = check("host.python_overhead", collector)
    assert "garbage collector" in finding.summary and finding.suggestions[0].changes == {
        "gc_collect_every": 0
    }
    timed = check(
        "host.python_overhead",
        case(knobs={"gc_collect_every": 1}, other_ratio=0.3, gc__pause_ratio=0.28),
    )
    assert timed.state == "fires" and timed.suggestions[0].changes == {"gc_collect_every": 0}, (
        "the collector was timed: no stack is needed"
    )


INPUT = (
    "cpu_transform",
    "epoch_restart",
    "ipc_collate",
    "jitter",
    "slow_storage",
    "too_few_workers",
)
AT = {"stack.script_ratio": 0.6, "stack.line_ratio": 0.5}


def own_batches(cpu: float | None, line: float = 0.5) -> Case:
    """A script without a DataLoader whose steps pass mostly in its own lines. `cpu`: the CPU share
    of the line with most of this time."""
    shared = case(data_wait_ratio=0.55, data_wait_excess_ratio=0.1, other_ratio=0.0)
    found = {**AT, "stack.line_ratio": line} | (
        {} if cpu is None else {"stack.line_cpu_ratio": cpu}
    )
    signals = shared.signals | {
        name: Signal(value, "ratio", "80 stack samples", CodePlace("train.py:12", "ask"))
        for name, value in found.items()
    }
    return Case(
        {name: value for name, value in shared.knobs.items() if name != "num_workers"}, signals
    )


def test_a_script_that_makes_its_batches_itself_gets_one_finding_with_the_line() -> None:
    found = own_batches(cpu=0.98)
    finding = check("host.python_overhead", found)
    assert (
        finding.state == "fires"
        and finding.title == "The script's own Python code slows every step"
    )
    assert finding.summary == (
        "55 % of step time is the script's own code, most of it in ask at train.py:12. This code"
        " runs after a step and before the next forward pass"
    )
    assert [check(f"input.{rule}", found).state for rule in INPUT] == ["clear"] * len(INPUT), (
        "there is no loader that could be at fault"
    )
    with pytest.raises(Missing, match=r"stack\.script_ratio"):
        check(
            "host.python_overhead",
            Case(
                found.knobs,
                {name: one for name, one in found.signals.items() if not name.startswith("stack.")},
            ),
        )


def test_a_line_of_the_script_that_waits_is_no_computing_code() -> None:
    finding = check("host.python_overhead", own_batches(cpu=0.02))
    assert finding.title == "The script's own code waits in every step"
    assert (
        ", most of it in ask at train.py:12. This line waits: it uses the CPU only 2 % of its time."
        in finding.summary
    )
    between = check(
        "host.python_overhead", case(other_ratio=0.4, **STACK, stack__line_cpu_ratio=0.1)
    )
    assert (
        between.summary.startswith("40 % of step time is the script's own code, ")
        and "batches" not in between.summary
    )
    rare = check(
        "host.python_overhead",
        case(other_ratio=0.4, **{**STACK, "stack__script_ratio": 0.06, "stack__line_ratio": 0.03}),
    )
    assert (
        rare.title.endswith("slows a few steps")
        and "train.py" not in rare.summary
        and rare.confidence == "medium"
    ), "the samples have not met it"
    unknown = check("host.python_overhead", own_batches(cpu=None))
    assert "waits" not in unknown.title + unknown.summary, (
        "a kernel without schedstat: nothing is said about the CPU"
    )


def test_a_name_of_a_file_with_blanks_is_named_whole() -> None:
    """The line was cut out of a sentence, at its last "at"."""
    found = own_batches(cpu=0.98)
    place = CodePlace.of("look at me.py:6 busy")
    signals = {"stack.line_ratio": Signal(0.5, "ratio", "80 stack samples", place)}
    named = dataclasses.replace(found, signals={**found.signals, **signals})
    finding = check("host.python_overhead", named)
    assert "most of it in busy at look at me.py:6. This code" in finding.summary
    shown = next(entry for entry in finding.evidence if entry.signal == "stack.line_ratio")
    assert shown.place == place and place.line == "look at me.py:6"


def test_a_line_that_waits_for_the_gpu_in_many_calls_is_no_overhead_of_python() -> None:
    """Another rule names the waits. The time is the GPU's or the host's: GPU-Util is 50 %."""
    values = {
        "is_gpu": 1.0,
        "gpu__util_ratio": 0.5,
        "other_ratio": 0.45,
        "stack__script_ratio": 0.45,
        "stack__line_ratio": 0.45,
        "sync__calls": 146.0,
    }
    for line, state in (("train.py:41", "clear"), ("train.py:50", "fires")):
        a_case = case(**values, sync__wait_s=0.06, step_s=0.12)
        waits = dataclasses.replace(
            a_case.signals["sync.wait_s"], place=CodePlace("train.py:41", "main")
        )
        seen = dataclasses.replace(
            a_case.signals["stack.line_ratio"], place=CodePlace(line, "main")
        )
        a_case = dataclasses.replace(
            a_case,
            signals={**a_case.signals, "sync.wait_s": waits, "stack.line_ratio": seen},
        )
        assert check("host.python_overhead", a_case).state == state


def test_a_line_with_little_of_the_time_is_not_called_most_of_it() -> None:
    finding = check("host.python_overhead", own_batches(cpu=0.98, line=0.1))
    assert ", the largest part (10 %) in ask at train.py:12." in finding.summary


def test_what_is_outside_of_phases_but_not_in_the_script_is_our_own_and_fires_nothing() -> None:
    found = case(
        other_ratio=0.3, gc__pause_ratio=0.0, stack__script_ratio=0.0, stack__line_ratio=0.0
    )
    assert check("host.python_overhead", found).state == "clear"


def test_evaluation_may_cost_more_than_a_log_record() -> None:
    knobs: Knobs = {"eval_every": 4, "eval_batch_size": 1}
    assert check("host.eval_stall", case(knobs=knobs, eval_ratio=0.07)).state == "clear"
    finding = check(
        "host.eval_stall", case(knobs=knobs, eval_ratio=0.4, probe__step_no_side_work_s=0.06)
    )
    assert [one.changes for one in finding.suggestions] == [
        {"eval_every": 80},
        {"eval_batch_size": 0},
    ]
    assert "no_grad" not in finding.suggestions[0].code
    recorded = case(
        knobs=knobs, eval_ratio=0.4, eval__with_gradients_ratio=0.9, probe__step_no_side_work_s=0.06
    )
    assert "torch.no_grad()" in check("host.eval_stall", recorded).suggestions[0].code


GROWTH = {
    "host__memory_growth_bytes_per_s": 20e6,
    "host__memory_grown_bytes": 300e6,
    "host__memory_rises_ratio": 1.0,
    "host__memory_steady_ratio": 0.9,
    "host__private_bytes": 900e6,
    "host__memory_available_bytes": 10e9,
}


def test_memory_that_grows_with_every_step_leaks_and_says_how_long_it_lasts() -> None:
    finding = check("mem.leak_host", case(**GROWTH))
    assert (
        finding.state == "fires" and finding.resource == "memory" and "8 minutes" in finding.summary
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"host__memory_growth_bytes_per_s": 0.0},  # up and down
        {"host__memory_grown_bytes": 5e6},  # too little to say
        {"host__memory_steady_ratio": 0.1},  # arenas that settle: it grew early
        {"host__memory_rises_ratio": 0.6},  # a sawtooth
        {"host__memory_growth_bytes_per_s": 1e4},  # lasts for days
    ],
)
def test_memory_that_settles_or_lasts_does_not(changes: dict[str, float]) -> None:
    assert check("mem.leak_host", case(**{**GROWTH, **changes})).state == "clear"


IN_WORKERS = {name.replace("host__", "loader__"): value for name, value in GROWTH.items()} | {
    "host__memory_available_bytes": 10e9
}
STEADY_PROCESS = {**GROWTH, "host__memory_growth_bytes_per_s": 0.0, "host__memory_grown_bytes": 1e6}


def test_memory_of_the_workers_that_grows_is_a_leak_of_theirs() -> None:
    finding = check("mem.leak_host", case(**{**STEADY_PROCESS, **IN_WORKERS}))
    assert finding.state == "fires" and finding.title == "The memory of the loader's workers grows"
    assert (
        "NumPy" in finding.summary
        and finding.evidence[0].signal == "loader.memory_growth_bytes_per_s"
    )
    assert finding.recoverable_ratio == pytest.approx(300 / 900)
    both = check(
        "mem.leak_host", case(**{**IN_WORKERS, **GROWTH, "host__memory_grown_bytes": 600e6})
    )
    assert both.title == "Host memory grows with every step", "the larger growth"
    assert check("mem.leak_host", case(**STEADY_PROCESS)).state == "clear"


def test_memory_that_the_workers_have_copied_is_a_note() -> None:
    copied = {
        **STEADY_PROCESS,
        **IN_WORKERS,
        "loader__memory_growth_bytes_per_s": 0.0,
        "loader__memory_steady_ratio": 0.0,
    }
    finding = check("mem.leak_host", case(**copied))
    assert (
        finding.state == "fires"
        and finding.note
        and finding.title == "The loader's workers have copied memory"
    )
    assert (
        check("mem.leak_host", case(**{**copied, "loader__memory_rises_ratio": 0.6})).state
        == "clear"
    )


REPLICAS: Knobs = {"sharding": "ddp", "gradient_accumulation_steps": 4, "sync_each_batch": True}


def test_exchanges_beyond_the_first_are_waste() -> None:
    found = case(knobs=REPLICAS, comm__exchanges_per_step=4.0, comm__exposed_s=0.01)
    finding = check("comm.accum_without_no_sync", found)
    assert finding.state == "fires" and finding.recoverable_ratio == pytest.approx(0.3)
    assert finding.suggestions[0].changes == {"sync_each_batch": False}


def test_hidden_exchanges_and_single_ones_are_none() -> None:
    hidden = case(knobs=REPLICAS, comm__exchanges_per_step=4.0, comm__exposed_s=0.0005)
    once = case(
        knobs={**REPLICAS, "sync_each_batch": False},
        comm__exchanges_per_step=1.0,
        comm__exposed_s=0.01,
    )
    assert [check("comm.accum_without_no_sync", one).state for one in (hidden, once)] == [
        "clear",
        "clear",
    ]


def stacks(
    share: float = 0.6,
    python: float = 0.9,
    waits: float = 0.0,
    without: float = 0.0,
    **signals: float,
) -> Case:
    """A job whose largest function within the passes has these shares."""
    names = {
        "stack.function_ratio": share,
        "stack.function_python_ratio": python,
        "stack.function_waits_ratio": waits,
    }
    measured = {
        name: Signal(
            value,
            "ratio",
            "100 stack samples",
            CodePlace("detr.py:24", "Matcher.forward", "loss"),
        )
        for name, value in names.items()
    }
    measured["stack.no_grad_ratio"] = Signal(
        without, "ratio", "100 stack samples", CodePlace("train.py:9", "generate")
    )
    others = {
        name.replace("__", "."): Signal(value, "ratio", "test")
        for name, value in {"is_gpu": 0.0, **signals}.items()
    }
    return Case({}, measured | others, is_job=True)


@pytest.mark.parametrize(
    ("found", "state"),
    [
        (stacks(), "fires"),
        (stacks(python=0.1, waits=0.8), "fires"),
        (stacks(share=0.09), "clear"),
        (stacks(python=0.3), "clear"),  # it calls large operators
        (stacks(is_gpu=1.0, host__caught_up_ratio=0.2, gpu__util_ratio=0.95), "clear"),
        (stacks(is_gpu=1.0, host__caught_up_ratio=0.2, gpu__util_ratio=0.65), "fires"),
        (stacks(is_gpu=1.0, host__caught_up_ratio=0.9), "fires"),
        (stacks(share=0.05, without=0.6, eval_ratio=0.5), "clear"),
    ],
)
def test_a_function_within_the_passes_is_named_where_it_is_no_operator_of_torch(
    found: Case, state: str
) -> None:
    finding = check("host.slow_function", found)
    assert finding.state == state
    if state == "fires":
        assert "Matcher.forward at detr.py:24, in the loss" in finding.summary and not finding.note
        share = 0.6 * max(
            found.value("stack.function_python_ratio"), found.value("stack.function_waits_ratio")
        )
        idle = 1 - found.get("gpu.util_ratio", 0.0)
        assert finding.recoverable_ratio == pytest.approx(min(share, idle))


@pytest.mark.parametrize(
    ("forward", "backward", "part", "state"),
    [
        (0.32, 0.55, "forward", "clear"),  # as long as the backward pass of such work says
        (0.65, 0.30, "forward", "fires"),  # the GPU waits for the host within the forward pass
        (0.32, 0.55, "loss", "fires"),
    ],
)
def test_waits_of_a_forward_pass_are_work_of_the_gpu_where_the_backward_pass_says_so(
    forward: float, backward: float, part: str, state: str
) -> None:
    """Twelve blocks wait for a number each; GPU-Util may have gaps, and there is no SM activity."""
    waiting = stacks(
        python=0.18,
        waits=0.65,
        is_gpu=1.0,
        gpu__util_ratio=0.976,
        host__caught_up_ratio=0.0,
        sync__calls=12.0,
        sync__wait_s=0.011,
        step_s=0.059,
        forward_ratio=forward,
        backward_ratio=backward,
        model__trained_ratio=1.0,
    )
    share = waiting.signals["stack.function_ratio"]
    place = CodePlace("script.py:80", "Block.forward", part)
    signals = waiting.signals | {
        "stack.function_ratio": Signal(share.value, share.unit, share.source, place)
    }
    finding = check("host.slow_function", dataclasses.replace(waiting, signals=signals))
    assert finding.state == state


@pytest.mark.parametrize("known", [{}, {"host__caught_up_ratio": 0.2}])
def test_on_a_gpu_nothing_is_said_where_it_is_not_known_whether_the_gpu_works(
    known: dict[str, float],
) -> None:
    with pytest.raises(Missing, match="caught_up"):
        check("host.slow_function", stacks(is_gpu=1.0, **known))


def test_passes_without_gradients_within_a_step_are_a_note_with_their_caller() -> None:
    finding = check("host.slow_function", stacks(share=0.8, without=0.8))
    assert finding.state == "fires" and finding.note and finding.recoverable_ratio == 0
    assert "train.py:9 generate" in finding.summary


def test_generation_is_counted_and_its_share_is_that_of_the_account() -> None:
    finding = check(
        "host.slow_function",
        stacks(without=0.8, generation_ratio=0.85, generation__passes_per_step=40.0),
    )
    assert finding.note
    for fact in ("85 % of the step", "40 passes", "train.py:9 generate"):
        assert fact in finding.summary


def test_only_jobs_have_such_functions() -> None:
    assert "host.slow_function" in {finding.rule for finding in evaluate(stacks())}
    assert "host.slow_function" not in {finding.rule for finding in evaluate(case())}


def test_fixed_costs_of_small_batches_are_not_claimed_where_a_function_takes_the_time() -> None:
    entries = [(entry.loser, entry.winner) for entry in PRECEDENCE]
    assert ("gpu.small_batch", "host.slow_function") in entries and (
        "gpu.elementwise_membw",
        "host.slow_function",
    ) in entries


def modes(
    anomaly: float = 0.0,
    profiler: float = 0.0,
    deterministic: float = 0.0,
    cudnn: float = 0.0,
    **more: float,
) -> Case:
    """A job, and the share of looks that have found each mode of torch."""
    on = {
        "mode__anomaly_ratio": anomaly,
        "mode__check_nan_ratio": anomaly,
        "mode__profiler_ratio": profiler,
    }
    found = case(
        **on, mode__deterministic_ratio=deterministic, mode__cudnn_deterministic_ratio=cudnn, **more
    )
    return dataclasses.replace(found, is_job=True)


def test_anomaly_mode_is_named_with_the_share_that_its_stack_traces_take() -> None:
    finding = check("host.debug_mode", modes(anomaly=1.0, stack__anomaly_ratio=0.3))
    assert (finding.state, finding.title, finding.recoverable_ratio) == (
        "fires",
        "Anomaly mode is on in every step",
        0.3,
    )
    assert (
        "at least 30 % of each step" in finding.summary
        and "set_detect_anomaly(False)" in finding.summary
    )
    unknown = check("host.debug_mode", modes(anomaly=1.0))
    assert (unknown.state, unknown.recoverable_ratio, unknown.confidence) == (
        "fires",
        0.0,
        "medium",
    )
    assert "of each step" not in unknown.summary, "no share is invented"
    assert check("host.debug_mode", modes(stack__anomaly_ratio=0.3)).state == "clear"


def test_a_profiler_that_records_some_steps_is_no_fault() -> None:
    assert check("host.debug_mode", modes(profiler=0.2)).state == "clear"
    finding = check("host.debug_mode", modes(profiler=1.0))
    assert (finding.title, finding.recoverable_ratio) == ("A profiler runs in every step", 0.0)
    assert "Its cost is not known" in finding.summary


def test_modes_that_were_not_read_are_not_guessed() -> None:
    for rule in ("host.debug_mode", "host.deterministic"):
        with pytest.raises(Missing, match="mode"):
            check(rule, case())


def test_rules_about_passes_and_the_optimizer_yield_to_a_mode_for_debugging() -> None:
    slow = {"probe__batch_cost_ratio": 0.4, "stack__anomaly_ratio": 0.3}
    found = {finding.rule: finding for finding in evaluate(modes(anomaly=1.0, **slow))}
    assert (
        found["host.debug_mode"].state == "fires"
        and found["gpu.small_batch"].title == "Covered by host.debug_mode"
    )
    assert {finding.rule: finding for finding in evaluate(modes(**slow))}[
        "gpu.small_batch"
    ].state == "fires"
    optimizer = [
        entry
        for entry in PRECEDENCE
        if (entry.loser, entry.winner) == ("gpu.optimizer_unfused", "host.debug_mode")
    ]
    assert (
        optimizer[0].when is not None
        and optimizer[0].when(modes(profiler=1.0))
        and not optimizer[0].when(modes(anomaly=1.0))
    )


def test_a_thread_that_holds_the_lock_is_accused_before_the_passes() -> None:
    held = {"stack__thread_ratio": 0.9, "host__training_idle_ratio": 0.7}
    finding = check("host.gil", case(**held))
    assert (finding.state, finding.confidence, finding.recoverable_ratio) == (
        "fires",
        "high",
        pytest.approx(0.7, abs=0.05),
    )
    assert check("host.gil", case(**held, data_wait_ratio=0.6)).state == "clear", (
        "the training thread waits for data"
    )
    assert (
        check("host.gil", case(stack__thread_ratio=0.1, host__training_idle_ratio=0.7)).state
        == "clear"
    )
    assert (
        check("host.gil", case(stack__thread_ratio=0.9, host__training_idle_ratio=0.1)).state
        == "clear"
    )
    found = {
        finding.rule: finding for finding in evaluate(modes(**held, probe__batch_cost_ratio=0.4))
    }
    assert found["gpu.small_batch"].title == "Covered by host.gil"
    optimizer = [
        entry
        for entry in PRECEDENCE
        if (entry.loser, entry.winner) == ("gpu.optimizer_unfused", "host.gil")
    ]
    assert optimizer[0].when is not None and optimizer[0].when(case(**held))


def test_deterministic_algorithms_are_a_note_without_a_share() -> None:
    finding = check("host.deterministic", modes(deterministic=1.0))
    assert (
        finding.state == "fires"
        and finding.note
        and "what they cost here is not known" in finding.summary
    )
    assert "cudnn.deterministic = True" in check("host.deterministic", modes(cudnn=1.0)).summary
    assert check("host.deterministic", modes()).state == "clear"


def test_the_processes_of_a_host_share_its_cores() -> None:
    """Eight processes with 32 threads each, on 32 cores."""
    finding = check(
        "host.cpu_contention",
        case(
            runq_ratio=0.5,
            threads=32.0,
            cores=32.0,
            host__processes=8.0,
            host__others_cpu_ratio=0.0,
        ),
    )
    assert "8 processes with 32 threads and 0 workers each for 32 cores" in finding.summary
    assert finding.suggestions[0].changes == {"num_threads": 4}
    enough = check(
        "host.cpu_contention",
        case(
            runq_ratio=0.5, threads=4.0, cores=32.0, host__processes=8.0, host__others_cpu_ratio=0.0
        ),
    )
    assert enough.note and "other processes" in enough.summary


def test_an_iterator_in_each_step_is_named_with_its_line_and_comes_before_processes_that_stay() -> (
    None
):
    on = {
        "data_wait_ratio": 0.6,
        "data_wait_excess_ratio": 0.1,
        "data_wait_typical_ratio": 0.55,
        "loader__restart_ratio": 0.6,
        "loader__restarts": 90.0,
    }
    found = case(knobs={**WORKERS, "num_workers": 2}, **on, loader__calls_per_epoch=1.0, **FAST)
    line = Signal(
        1.0,
        "",
        "calls of next() for each iterator of the DataLoader, over 5 s",
        CodePlace("train.py:25", "drawn"),
    )
    found = dataclasses.replace(found, signals={**found.signals, "loader.calls_per_epoch": line})
    finding = check("input.epoch_restart", found)
    assert (finding.state, finding.title) == (
        "fires",
        "A new iterator of the DataLoader in every step",
    )
    assert (
        "at train.py:25 drawn: 60 % of the time. Each one starts 2 worker processes"
        in finding.summary
    )
    assert (
        finding.suggestions[0].changes == {"persistent_workers": True}
        and "second best" in finding.suggestions[0].why
    )
    one_batch = check(
        "input.epoch_restart", case(knobs=WORKERS, **on, loader__calls_per_epoch=2.0, **FAST)
    )
    assert one_batch.title == "Every epoch restarts the loader processes", (
        "a loop over a loader whose epoch is one batch"
    )
    no_workers = check(
        "input.epoch_restart",
        case(**on, loader__calls_per_epoch=1.0, loader__sampler_ratio=0.01, **FAST),
    )
    assert no_workers.state == "clear", "the batch is loaded in any case"


def test_rows_of_tensors_that_are_fetched_one_by_one_are_indexed_at_once() -> None:
    loads = loader(rate=200.0, plus_1=300.0, cpu=0.9)
    found = case(data_wait_ratio=0.8, loader__row_bytes=132.0, **loads)
    finding = check("input.one_by_one", found)
    assert (
        finding.state == "fires"
        and "BatchSampler(RandomSampler(dataset), 16, drop_last=False), batch_size=None)"
        in finding.summary
    )
    assert [
        other.rule
        for other in evaluate(found)
        if other.state == "fires" and other.rule.startswith("input.")
    ] == ["input.one_by_one"]
    for other in (
        case(data_wait_ratio=0.8, loader__row_bytes=1e6, **loads),
        case(data_wait_ratio=0.8, **loads),
        case(loader__row_bytes=132.0),
    ):
        assert check("input.one_by_one", other).state == "clear"


def test_workers_for_a_stream_that_divides_no_samples_come_with_the_lines_that_divide_them() -> (
    None
):
    slow = {"data_wait_ratio": 0.6, **loader(rate=60.0, plus_1=120.0, cpu=0.1)}
    code = check("input.slow_storage", case(**slow, loader__unsharded=1.0)).suggestions[0].code
    assert code.index("get_worker_info()") < code.index("DataLoader(")
    assert (
        "get_worker_info"
        not in check("input.slow_storage", case(**slow, loader__unsharded=0.0)).suggestions[0].code
    )
    trainer = dataclasses.replace(
        case(**slow, loader__unsharded=1.0), is_job=True, loop="transformers"
    )
    code = check("input.slow_storage", trainer).suggestions[0].code
    assert code.index("get_worker_info()") < code.index(
        "TrainingArguments(..., dataloader_num_workers="
    )


def test_the_lines_that_divide_a_stream_give_each_sample_once() -> None:
    names: dict[str, object] = {"torch": torch, "itertools": itertools}
    exec(loader_family.SHARDING, names)
    stream = type(
        "Stream",
        (torch.utils.data.IterableDataset,),
        {"__iter__": names["__iter__"], "samples": lambda self: iter(range(10))},
    )
    workers: tuple[int, ...] = (0, 2)
    for number in workers:
        batches = torch.utils.data.DataLoader(
            stream(),
            batch_size=None,
            num_workers=number,
            multiprocessing_context="fork" if number else None,
        )
        assert sorted(int(sample) for sample in batches) == list(range(10))


SLOW_STREAM = {"data_wait_ratio": 0.6, **loader(rate=60.0, plus_1=120.0, cpu=0.1)}


@pytest.mark.parametrize(
    ("loop", "rule", "changes", "code"),
    [
        (
            "transformers",
            "input.slow_storage",
            SLOW_STREAM,
            "TrainingArguments(..., dataloader_num_workers=",
        ),
        ("lightning", "input.slow_storage", SLOW_STREAM, "DataLoader(dataset, ..., num_workers="),
        (
            "lightning",
            "host.logging_io",
            {"logging_ratio": 0.5, "probe__step_no_side_work_s": 0.05},
            "if batch_idx % 20 == 0:",
        ),
        (
            "transformers",
            "host.logging_io",
            {"logging_ratio": 0.5, "probe__step_no_side_work_s": 0.05},
            "logging_steps=20)",
        ),
        (
            "",
            "host.logging_io",
            {"logging_ratio": 0.5, "probe__step_no_side_work_s": 0.05},
            "if step % 20 == 0:",
        ),
    ],
)
def test_where_a_framework_runs_the_loop_the_code_is_its_own_setting(
    loop: str, rule: str, changes: dict[str, float], code: str
) -> None:
    finding = check(rule, dataclasses.replace(case(**changes), is_job=True, loop=loop))
    assert code in finding.suggestions[0].code, finding.suggestions
    assert "log_every is" not in finding.summary, "the program has no setting of that name"


AT_23 = CodePlace("train.py:23", "Model.training_step", "loss")


def test_the_values_of_log_records_belong_to_logging() -> None:
    """As with Lightning: the line that logs makes the values, too. One cause, one finding."""
    logs = case(
        logging_ratio=0.62,
        probe__step_no_side_work_s=0.04,
        other_ratio=0.14,
        stack__script_ratio=0.2,
        stack__line_ratio=0.2,
    )
    signals = dict(logs.signals)
    signals["stack.line_ratio"] = Signal(0.2, "ratio", "788 stack samples", AT_23)
    signals["stack.logging_ratio"] = Signal(
        0.41, "ratio", "788 stack samples", dataclasses.replace(AT_23, caller="train.py:44 main")
    )
    at_one_line = Case({"log_every": 1}, dict(signals), is_job=True)
    assert check("host.python_overhead", at_one_line).state == "clear"
    signals["stack.line_ratio"] = Signal(
        0.2, "ratio", "788 stack samples", dataclasses.replace(AT_23, line="train.py:99")
    )
    assert (
        check("host.python_overhead", Case({"log_every": 1}, signals, is_job=True)).state == "fires"
    )
    predicted, alone = (
        check("host.logging_io", Case({"log_every": 1}, known, is_job=True))
        .suggestions[0]
        .predicted_speedup
        for known in (at_one_line.signals, signals)
    )
    assert (
        predicted is not None
        and alone is not None
        and predicted.high > alone.high
        and predicted.low == alone.low
    )


def test_a_loop_of_thousands_of_short_operators_is_named() -> None:
    """Measured on a cell of an LSTM that runs step by step: 5 117 operators in 14 ms; nn.LSTM has
    4.1 times the rate. In seven runs the samples gave the loop 23 to 33 % of a step."""
    known = {
        "is_gpu": 0.0,
        "stack.function_python_ratio": 0.16,
        "stack.function_waits_ratio": 0.0,
        "stack.no_grad_ratio": 0.0,
        "step_s": 0.0142,
        "forward_ratio": 0.38,
        "backward_ratio": 0.54,
    }
    cases = [
        (5117.0, 0.23, "forward", "fires"),
        (5117.0, 0.33, "forward", "fires"),
        (500.0, 0.33, "forward", "clear"),
    ]
    for operators, share, part, state in [
        *cases,
        (5117.0, 0.1, "forward", "clear"),
        (5117.0, 0.33, "loss", "clear"),
    ]:
        signals = {name: Signal(value, "", "") for name, value in known.items()}
        signals |= {
            "stack.function_ratio": Signal(
                share,
                "ratio",
                "614 stack samples",
                CodePlace("model.py:18", "ByHand.forward", part, "model.py:32 Tagger.forward"),
            ),
            "operators_per_step": Signal(operators, "", ""),
        }
        finding = check("host.slow_function", Case({}, signals, is_job=True))
        assert finding.state == state, finding
        assert state == "clear" or (
            "ByHand.forward at model.py:18" in finding.summary
            and 1 / (1 - finding.recoverable_ratio) < 2
        )


def test_a_processor_that_becomes_slower_is_no_program_that_slows_down() -> None:
    parts = {"forward_ratio": 0.2, "backward_ratio": 0.4, "optimizer_ratio": 0.3}
    grows = {
        f"trend__{name.removesuffix('_ratio')}_s": GROWS["trend__per_100_steps_s"] * share
        for name, share in parts.items()
    }
    even = {**GROWS, "trend__other_s": 0.0001, **grows, **parts}
    assert check("host.slowing_down", of_job(case(**even), COMPUTE)).state == "clear"
    one = {
        **even,
        "trend__forward_s": 0.0,
        "trend__optimizer_s": 0.0,
        "trend__backward_s": GROWS["trend__per_100_steps_s"],
    }
    assert check("host.slowing_down", of_job(case(**one), COMPUTE)).state == "fires"


def test_a_thread_that_writes_records_widens_what_rarer_records_may_gain() -> None:
    """Measured on a program that writes histograms in each step: 8.5 times the rate; the share of
    logging alone promises at most 6.9."""
    alone, beside = (
        check(
            "host.logging_io",
            case(logging_ratio=0.87, probe__step_no_side_work_s=0.013, stack__thread_ratio=thread),
        )
        .suggestions[0]
        .predicted_speedup
        for thread in (0.0, 0.4)
    )
    assert alone is not None and beside is not None
    assert beside.low == alone.low and beside.high > 9.5 > alone.high


def test_a_larger_batch_without_a_loader_is_no_line_of_a_loader() -> None:
    small = case(probe__batch_cost_ratio=0.4)
    assert (
        check("gpu.small_batch", small).suggestions[0].code
        == "DataLoader(dataset, batch_size=64, ...)"
    )
    without = {name: value for name, value in small.knobs.items() if name != "num_workers"}
    found = check("gpu.small_batch", dataclasses.replace(small, knobs=without, is_job=True))
    assert found.suggestions[0].code.startswith("batch_size = 64")


GROWS = {
    "trend__per_100_steps_s": 0.0015, "trend__per_100_steps_low_s": 0.0013,
    "trend__per_100_steps_high_s": 0.0017, "trend__growth_ratio": 2.0, "trend__start_s": 0.005,
    "trend__steps": 700.0, "trend__rises_ratio": 1.0, "trend__jump_ratio": 0.3,
    "trend__fall_ratio": 0.0, "trend__late_ratio": 1.0, "trend__work_ratio": 0.0,
    "trend__other_s": 0.0014,
}  # fmt: skip
"""A step that takes three times as long as at the start, in lines of the program."""


COMPUTE = CodePlace("metric.py:27", "compute", "between")


def of_job(a_case: Case, place: CodePlace | None = None) -> Case:
    signals = dict(a_case.signals)
    if place is not None:
        signals["trend.place_ratio"] = Signal(0.9, "ratio", "stack samples", place)
    return Case({}, signals, is_job=True)


def test_steps_that_become_longer_are_a_finding_with_the_function_that_grows() -> None:
    finding = check("host.slowing_down", of_job(case(**GROWS), COMPUTE))
    assert (
        finding.state == "fires"
        and not finding.note
        and finding.recoverable_ratio == pytest.approx(2 / 3)
    )
    assert finding.summary.startswith(
        "each 100 steps make the step 1.50 ms longer [1.30, 1.70]: from 5 ms to 15 ms in 700 steps."
        " 90 % of the growth is in compute at metric.py:27"
    )
    assert "loss.item()" in finding.summary
    without = check("host.slowing_down", of_job(case(**GROWS)))
    assert "Most of the growth is in the time between the phases" in without.summary


@pytest.mark.parametrize(
    "differs",
    [
        {"trend__growth_ratio": 0.1},
        {"trend__per_100_steps_low_s": 0.0},
        {"trend__rises_ratio": 0.7},
        {"trend__jump_ratio": 0.9},
        {"trend__fall_ratio": 0.5},
        {"trend__late_ratio": 0.3},
        {"trend__work_ratio": 0.8},
    ],
)
def test_noise_shifts_clocks_and_longer_batches_are_no_trend(differs: dict[str, float]) -> None:
    assert check("host.slowing_down", of_job(case(**{**GROWS, **differs}))).state == "clear"


def test_a_trend_is_said_where_the_run_is_not_steady_because_of_it() -> None:
    grows = {name.replace("__", "."): Signal(value, "", "test") for name, value in GROWS.items()}
    unsteady = Case({}, {"seconds_not_steady": Signal(40.0, "s", "test"), **grows}, is_job=True)
    assert [finding.rule for finding in evaluate(unsteady) if finding.state == "fires"] == [
        "host.slowing_down"
    ]


@pytest.mark.parametrize("script", [0.6, 0.95])
def test_the_growth_claims_the_time_of_the_lines_that_grow(script: float) -> None:
    lines = {"other_ratio": script, "stack__script_ratio": script, "stack__line_ratio": script}
    firing = [
        finding
        for finding in evaluate(of_job(case(**GROWS, **lines)))
        if finding.state == "fires" and finding.recoverable_ratio
    ]
    assert [finding.rule for finding in firing] == ["host.slowing_down"]


def test_where_the_growth_is_a_small_part_of_other_work_the_work_is_the_finding() -> None:
    lines = {"other_ratio": 0.8, "stack__script_ratio": 0.8, "stack__line_ratio": 0.8}
    firing = {
        f.rule: f
        for f in evaluate(of_job(case(**{**GROWS, "trend__growth_ratio": 0.3}, **lines)))
        if f.state == "fires"
    }
    assert (
        firing["host.python_overhead"].recoverable_ratio > 0.7 and firing["host.slowing_down"].note
    )


def test_a_loader_that_becomes_slower_keeps_its_own_finding() -> None:
    waits = Case(
        {"num_workers": 0},
        of_job(case(**{**GROWS, "trend__other_s": 0.0}, trend__data_wait_s=0.0014)).signals,
        is_job=True,
    )
    finding = check("host.slowing_down", waits)
    assert finding.note and "the dataset" in finding.summary
