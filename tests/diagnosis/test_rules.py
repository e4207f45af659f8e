"""Each rule on ten lines of data: its cause, its look-alikes, its boundary, and its missing
signal."""

import ast
import inspect
import math
import random
import sys
from dataclasses import replace

import pytest

from gpuconsole.diagnosis.engine import about, all_rules, conclude, evaluate, wanted_probes
from gpuconsole.diagnosis.families import loader as loader_family
from gpuconsole.diagnosis.rule import CantTell, Case, Rule
from gpuconsole.model.finding import CodePlace, Finding, Signal
from gpuconsole.model.knobs.catalogue import CATALOGUE
from tests.diagnosis.cases import HEALTHY, KNOBS, case, check, loader


def firing(a_case: Case) -> list[str]:
    return [finding.rule for finding in evaluate(a_case) if finding.state == "fires"]


def top(a_case: Case) -> Finding:
    return evaluate(a_case)[0]


def test_a_healthy_run_is_called_healthy_and_nothing_else() -> None:
    assert firing(case()) == ["gpu.compute_bound_healthy"]


def test_a_sleeping_loader_is_slow_storage_and_asks_for_workers_beyond_the_cores() -> None:
    starved = case(
        data_wait_ratio=0.66,
        forward_ratio=0.11,
        backward_ratio=0.22,
        mfu_ratio=0.2,
        step_s=0.12,
        probe__cached_pass_s=0.038,
        **loader(208, 198, 0.15),
    )
    assert firing(starved) == ["input.slow_storage"]
    suggestion = top(starved).suggestions[0]
    assert suggestion.changes == {"num_workers": 3}, (
        "the model uses 392 samples/s, 470 with a reserve"
    )
    assert suggestion.predicted_speedup is not None
    assert suggestion.predicted_speedup.low < 2.9 < suggestion.predicted_speedup.high
    assert top(starved).recoverable_ratio == pytest.approx(0.66, abs=0.02)


def test_what_the_storage_gives_limits_the_workers_and_what_they_promise() -> None:
    """20 samples in 0.2 s, 0.15 of them waiting: four workers would do 520 a second if the disk
    gave more than 220."""
    knobs = {"num_workers": 0}
    starved = case(
        knobs=knobs,
        data_wait_ratio=0.75,
        step_s=0.2,
        samples_per_step=20.0,
        **loader(133, 130, 0.1),
    )
    limited = case(
        knobs=knobs,
        data_wait_ratio=0.75,
        step_s=0.2,
        samples_per_step=20.0,
        probe__loader_plus_4_samples_per_s=220.0,
        **loader(133, 130, 0.1),
    )
    free, bound = (top(one).suggestions[0] for one in (starved, limited))
    assert (free.changes, bound.changes) == ({"num_workers": 4}, {"num_workers": 2})
    assert bound.predicted_speedup is not None and free.predicted_speedup is not None
    assert (
        bound.predicted_speedup.low
        < 0.2 / (20 / 220)
        < bound.predicted_speedup.high
        < free.predicted_speedup.high
    )


def test_where_the_storage_gives_no_more_no_workers_are_suggested() -> None:
    """Four workers do what five and eight do."""
    rates = {"probe__loader_plus_4_samples_per_s": 101.0, **loader(100, 100, 0.1)}
    starved = case(
        knobs={"num_workers": 4}, data_wait_ratio=0.75, step_s=0.2, samples_per_step=20.0, **rates
    )
    assert firing(starved) == ["input.slow_storage"]
    assert top(starved).suggestions == () and "no more from the storage" in top(starved).summary


def test_a_computing_loader_with_a_free_core_lacks_workers() -> None:
    starved = case(
        data_wait_ratio=0.4, mfu_ratio=0.3, probe__cached_pass_s=0.055, **loader(400, 380, 0.99)
    )
    assert firing(starved) == ["input.too_few_workers"]
    assert top(starved).suggestions[0].changes == {"num_workers": 1}
    assert top(starved).summary.endswith(
        "Loading in the training process is the bottleneck; a core is free"
    )
    several = [
        case(
            knobs={"num_workers": n},
            cores=8.0,
            data_wait_ratio=0.4,
            mfu_ratio=0.3,
            **loader(400, 400 * (n + 1) / n, 0.99),
        )
        for n in (1, 2)
    ]
    assert [top(one).summary.partition(". ")[2] for one in several] == [
        "Loading with 1 worker is the bottleneck; a core is free",
        "Loading with 2 workers is the bottleneck; a core is free",
    ]


def waiting(cores: float, cpu: float = 0.55, ranks: int = 1, **changes: float) -> Case:
    """A job on a GPU with 2 workers in each process: it uses 376 samples/s, and each worker makes
    160."""
    probe = loader(320.0, 480.0, cpu)
    values = {
        "is_gpu": 1.0,
        "cores": cores,
        "data_wait_ratio": 0.15,
        "step_s": 0.1,
        "samples_per_step": 32.0,
        **probe,
        **changes,
    }
    return case(knobs={"num_workers": 2, "nproc": ranks}, **values)


@pytest.mark.parametrize(
    ("cores", "cpu", "ranks"),
    [(8, 0.55, 1), (64, 0.55, 1), (64, 0.7, 1), (64, 0.95, 1), (192, 0.55, 1), (64, 0.9, 8)],
)
def test_as_many_workers_as_hide_the_wait_are_suggested(
    cores: float, cpu: float, ranks: int
) -> None:
    """13, 115, 90, 66, 347 (beyond the maximum of the setting) and 70 in each of eight processes
    were suggested."""
    assert check("input.too_few_workers", waiting(cores, cpu, ranks)).suggestions[0].changes == {
        "num_workers": 3
    }


@pytest.mark.parametrize("rule", ["input.too_few_workers", "input.slow_storage", "input.jitter"])
@pytest.mark.parametrize("cores", [32.0, 64.0, 192.0])
@pytest.mark.parametrize("ranks", [1, 8])
def test_no_suggestion_has_more_workers_than_the_cores_of_the_host_allow(
    rule: str, cores: float, ranks: int
) -> None:
    late = (
        {"data_wait_typical_ratio": 0.0, "data_wait_excess_ratio": 0.98, "data_wait_long_s": 60.0}
        if rule == "input.jitter"
        else {}
    )
    slow = (
        loader(99e3, 99e3, 0.9)
        if late
        else loader(320.0, 480.0, 0.2 if rule == "input.slow_storage" else 0.9)
    )
    starved = waiting(cores, ranks=ranks, **{"data_wait_ratio": 0.98, **slow, **late})
    starved = replace(starved, knobs={**starved.knobs, "prefetch_factor": 1})
    suggested = [
        change.changes["num_workers"]
        for change in check(rule, starved).suggestions
        if "num_workers" in change.changes
    ]
    most = (
        max(4, cores / ranks) if rule != "input.slow_storage" or ranks > 1 else min(256, 4 * cores)
    )
    assert suggested and 2 < int(suggested[0]) <= most


def test_workers_for_which_the_host_has_no_memory_are_not_suggested() -> None:
    """With 2 workers of 4 GB each, half of 10 GB has room for one more; half of 6 GB for none."""
    starved = {
        **loader(320.0, 480.0, 0.9),
        "data_wait_ratio": 0.6,
        "step_s": 0.08,
        "loader__private_bytes": 8e9,
    }
    fits, full = (
        check("input.too_few_workers", waiting(64.0, **starved, host__memory_available_bytes=free))
        for free in (10e9, 6e9)
    )
    assert fits.suggestions[0].changes == {"num_workers": 3}
    assert (
        full.state == "fires"
        and full.suggestions == ()
        and full.summary.endswith("too little free memory for one more worker")
    )
    assumed = waiting(64.0, data_wait_ratio=0.6, step_s=0.08, host__memory_available_bytes=0.4e9)
    assert check("input.too_few_workers", assumed).suggestions == (), (
        "without a figure a worker counts as 256 MB"
    )


def test_a_short_wait_that_one_worker_hides_lacks_the_worker() -> None:
    """Without its wait of 12 % a step is 14 % faster at most: the finding was that no core is
    free."""
    waits = case(
        data_wait_ratio=0.12,
        step_s=0.1,
        samples_per_step=10.0,
        mfu_ratio=0.3,
        **loader(833, 820, 0.99),
    )
    assert firing(waits) == ["input.too_few_workers"]


def test_a_computing_loader_without_a_free_core_is_the_transform() -> None:
    knobs = {"num_workers": 2}
    starved = case(
        knobs=knobs,
        data_wait_ratio=0.5,
        mfu_ratio=0.3,
        cores=2.0,
        probe__cached_pass_s=0.05,
        **loader(160, 165, 0.97),
    )
    assert firing(starved) == ["input.cpu_transform"]


def test_a_worker_that_would_save_little_is_no_lack_of_cores() -> None:
    short = case(
        step_s=0.002,
        samples_per_step=64.0,
        data_wait_ratio=0.14,
        cores=2.0,
        threads=1.0,
        loader__receive_s=0.0013,
        **loader(220e3, 220e3, 0.9),
    )
    finding = check("input.cpu_transform", short)
    assert (
        finding.state == "fires"
        and "no core is free" not in finding.summary
        and "cores" not in finding.title
    )


def small_batches(both_ms: float, tensors: int, cores: float = 2.0, others: float = 0.0) -> Case:
    """A job without workers whose model computes as long as a batch is made; its batches have a few
    kB."""
    step_s, each = 2 * both_ms / 1e3, 0.0006 + 0.00035 * tensors
    rate = 64 / (both_ms / 1e3)
    return case(
        step_s=step_s, samples_per_step=64.0, data_wait_ratio=0.5, cores=cores,
        host__others_cpu_ratio=others, mfu_ratio=0.3, loader__receive_s=each, loader__send_s=each,
        **loader(rate, rate, 0.97),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("both_ms", "tensors", "cores", "others", "why"),
    [
        # graphs: measured 0.76x with a worker
        (2.0, 5, 2.0, 0.0, "sending and receiving a batch takes time too"),
        (20.0, 2, 1.0, 0.0, "no core is free"),  # the only core has the work of both
        (20.0, 2, 2.0, 0.5, "other programs on this machine leave no core"),
    ],
)
def test_where_sending_a_batch_costs_what_a_worker_saves_or_no_core_is_spare_no_worker_is_suggested(
    both_ms: float, tensors: int, cores: float, others: float, why: str
) -> None:
    a_case = small_batches(both_ms, tensors, cores, others)
    assert loader_family.predicted(a_case, 1) < 1.05
    assert check("input.too_few_workers", a_case).state == "clear"
    finding = check("input.cpu_transform", a_case)
    assert finding.state == "fires" and why in finding.summary


def test_a_busy_machine_is_said_once_and_silences_no_cause() -> None:
    """At a load of six: the program's own code within the passes is named all the same, and comes
    first."""
    function = {
        "stack__function_ratio": 0.6,
        "stack__function_python_ratio": 0.9,
        "stack__function_waits_ratio": 0.0,
        "stack__no_grad_ratio": 0.0,
    }
    busy = case(runq_ratio=0.6, host__others_cpu_ratio=0.8, mfu_ratio=0.3, **function)
    source = Signal(
        0.6, "ratio", "400 stack samples", CodePlace("train.py:29", "Matcher.forward", "forward")
    )
    busy = replace(busy, is_job=True, signals={**busy.signals, "stack.function_ratio": source})
    first, *others = (finding for finding in evaluate(busy) if finding.state == "fires")
    assert first.rule == "host.slow_function" and "train.py:29" in first.summary
    assert [(finding.rule, finding.note) for finding in others] == [("host.cpu_contention", True)]


def test_a_worker_that_makes_large_batches_beside_the_model_is_suggested() -> None:
    finding = check("input.too_few_workers", small_batches(20.0, 2))
    assert finding.state == "fires" and finding.suggestions[0].changes["num_workers"] == 1


def test_input_rules_stay_silent_below_their_threshold_without_any_probe() -> None:
    findings = {finding.rule: finding for finding in evaluate(case(data_wait_ratio=0.09))}
    assert all(
        findings[rule].state == "clear"
        for rule in ("input.slow_storage", "input.too_few_workers", "input.cpu_transform")
    )


def test_a_loader_that_sleeps_for_half_of_its_time_can_use_two_workers_on_one_core() -> None:
    """17 samples in 175 ms, of which the model takes 39: one worker does 95 a second, two that
    share a core 186."""
    half_asleep = case(
        data_wait_ratio=0.78,
        step_s=0.175,
        samples_per_step=17.0,
        cores=2.0,
        threads=1.0,
        **loader(119.0, 95.0, 0.51),
    )
    assert firing(half_asleep) == ["input.too_few_workers"]
    finding = next(one for one in evaluate(half_asleep) if one.state == "fires")
    assert finding.suggestions[0].changes == {"num_workers": 2}


def test_input_rules_ask_for_the_loader_probe_rather_than_guess() -> None:
    findings = evaluate(case(data_wait_ratio=0.5))
    of_capacity = ("input.cpu_transform", "input.slow_storage", "input.too_few_workers")
    assert [f.state for f in findings if f.rule in of_capacity] == ["cant_tell"] * 3
    assert wanted_probes(findings) == ["loader_alone"]


def test_logging_and_checkpoints_are_told_apart() -> None:
    logging = case(logging_ratio=0.3, mfu_ratio=0.4, probe__step_no_side_work_s=0.07)
    assert firing(logging) == ["host.logging_io"]
    assert top(logging).suggestions[0].changes == {"log_every": 20}
    saving = case(checkpoint_ratio=0.3, mfu_ratio=0.4, probe__step_no_side_work_s=0.07)
    assert firing(saving) == ["host.checkpoint_stall"]
    assert top(saving).suggestions[0].changes == {"save_every": 40}
    predicted = top(saving).suggestions[0].predicted_speedup
    assert predicted is not None
    assert predicted.low < 1 / (1 - 0.3 * 0.95) < predicted.high


def test_a_cheap_larger_batch_is_named_unless_memory_is_short() -> None:
    tiny = {
        "probe__batch_cost_ratio": 0.53,
        "forward_ratio": 0.3,
        "backward_ratio": 0.45,
        "optimizer_ratio": 0.24,
        "mfu_ratio": 0.25,
    }
    assert firing(case(**tiny)) == ["gpu.small_batch"]
    assert top(case(**tiny)).suggestions[0].changes == {"batch_size": 64}
    assert top(case(**tiny, memory_used_ratio=0.7)).suggestions == ()


def test_threads_that_wait_for_each_other_are_no_small_batch() -> None:
    tiny = {
        "probe__batch_cost_ratio": 0.53,
        "forward_ratio": 0.3,
        "backward_ratio": 0.65,
        "optimizer_ratio": 0.03,
        "mfu_ratio": 0.05,
    }
    assert firing(case(**tiny, runq_ratio=0.55, threads=9.0)) == ["host.cpu_contention"]
    assert "gpu.small_batch" in firing(case(**tiny, runq_ratio=0.55, threads=1.0)), (
        "those who wait are not its own"
    )
    assert "gpu.small_batch" in firing(case(**tiny, runq_ratio=0.05, threads=9.0))
    beside = {"runq_ratio": 0.5, "threads": 2.0, "cores": 2.0}
    assert "gpu.small_batch" not in firing(case(**(tiny | beside), host__others_cpu_ratio=0.5)), (
        "a busy process leaves one core to two"
    )
    assert "gpu.small_batch" in firing(case(**(tiny | beside), host__others_cpu_ratio=0.2)), (
        "what comes and goes takes no core"
    )


def test_a_small_batch_claims_no_milliseconds_of_logging() -> None:
    """Logging is charged per sample as before, so a larger batch gains nothing there."""
    both = case(
        probe__batch_cost_ratio=0.6,
        logging_ratio=0.5,
        forward_ratio=0.2,
        backward_ratio=0.25,
        optimizer_ratio=0.03,
        probe__step_no_side_work_s=0.05,
        mfu_ratio=0.2,
    )
    shares = {
        finding.rule: finding.recoverable_ratio
        for finding in evaluate(both)
        if finding.state == "fires"
    }
    assert sum(shares.values()) <= 1.0
    assert evaluate(both)[0].rule == "host.logging_io"


def test_contention_by_others_informs_and_by_own_threads_suggests() -> None:
    others = next(f for f in evaluate(case(runq_ratio=0.4)) if f.rule == "host.cpu_contention")
    assert others.state == "fires"
    assert others.note


@pytest.mark.parametrize(("busy", "threads"), [(0.02, 2), (0.2, 1)])
def test_threads_are_as_many_as_cores_are_left_by_others(busy: float, threads: int) -> None:
    found = case(runq_ratio=0.4, threads=8.0, host__others_cpu_ratio=busy)
    own = next(f for f in evaluate(found) if f.rule == "host.cpu_contention")
    assert own.suggestions[0].changes == {"num_threads": threads}


def test_memory_and_steadiness() -> None:
    assert "mem.near_capacity" in firing(case(memory_used_ratio=0.93))
    assert "meta.not_steady" in firing(case(seconds_not_steady=20.0))
    assert "meta.not_steady" not in firing(case(seconds_not_steady=10.0))


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.id)
def test_a_rule_without_its_first_signal_can_not_tell(rule: Rule) -> None:
    unmeasured = Case(
        {"num_workers": 0, "batch_size": 1},
        {},
        rule.subject in ("serving", "load"),
        is_job=rule.jobs_only,
    )
    finding = next(f for f in evaluate(unmeasured) if f.rule == rule.id)
    assert finding.state == "cant_tell"
    assert finding.missing


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.id)
def test_a_rule_is_complete(rule) -> None:  # type: ignore[no-untyped-def]
    assert rule.title
    assert len(rule.text) > 100
    assert all(threshold.source for threshold in rule.thresholds)


def test_evidence_carries_value_threshold_and_source_and_suggestions_name_real_knobs() -> None:
    for a_case in (
        case(),
        case(logging_ratio=0.3, mfu_ratio=0.4),
        case(data_wait_ratio=0.6, **loader(200, 190, 0.1)),
    ):
        for finding in evaluate(a_case):
            if finding.state == "fires":
                assert any(item.threshold is not None and item.source for item in finding.evidence)
                assert all(
                    name in CATALOGUE
                    for suggestion in finding.suggestions
                    for name in suggestion.changes
                )


def test_every_rule_names_the_knobs_that_its_suggestions_turn() -> None:
    """As its file has them: the keys of the changes that it may suggest."""
    for rule in all_rules():
        tree = ast.parse(inspect.getsource(sys.modules[type(rule).__module__]))
        keys = [
            key.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Dict)
            for key in node.keys
            if isinstance(key, ast.Constant)
        ]
        assert set(rule.knobs) == {key for key in keys if key in CATALOGUE}, rule.id


def test_probes_of_rules_that_turn_what_is_asked_for() -> None:
    findings = evaluate(case(data_wait_ratio=0.5))
    assert {finding.rule for finding in about(findings, {"num_workers"})} == {
        "input.jitter",
        "input.slow_storage",
        "input.too_few_workers",
    }
    assert about(findings, ()) == findings


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.id)
def test_a_signal_that_is_no_number_is_a_signal_that_was_not_measured(rule: Rule) -> None:
    """No comparison with NaN is true, so `share < limit` did not make a rule clear: side work fired
    with a predicted interval of [1, nan]."""
    draw = random.Random(rule.id)
    for _ in range(20):
        values = {
            name: HEALTHY.get(name, draw.choice((0.0, 0.05, 0.5, 1.0, 2.0)))
            for name in (*HEALTHY, *rule.reads)
        }
        absent = draw.sample(rule.reads, min(2, len(rule.reads)))
        knobs = {**KNOBS, "num_workers": draw.choice((0, 2))}
        without, with_nan = (
            Case(
                knobs,
                {name: Signal(value, "", "test") for name, value in shown.items()},
                rule.subject in ("serving", "load"),
                is_job=rule.jobs_only,
            )
            for shown in (
                {name: value for name, value in values.items() if name not in absent},
                {**values, **dict.fromkeys(absent, math.nan)},
            )
        )
        assert conclude(rule, with_nan) == conclude(rule, without)


def test_no_share_above_1_and_none_that_is_no_number_is_recoverable() -> None:
    rule = next(rule for rule in all_rules() if rule.id == "host.gil")
    assert rule.fires(2.0, (), "", recoverable=3.6, confidence="high").recoverable_ratio == 1.0
    with pytest.raises(CantTell):
        rule.fires(math.nan, (), "", recoverable=0.5, confidence="high")


@pytest.mark.parametrize(
    ("phase", "share"), [("eval", 0.28), ("h2d", 0.2), ("other", 0.15), ("logging", 0.06)]
)
@pytest.mark.parametrize("rule", ["gpu.compute_bound_healthy", "gpu.bandwidth_bound_healthy"])
def test_no_device_is_called_healthy_beside_much_other_time(
    rule: str, phase: str, share: float
) -> None:
    """`MFU 42 %; no bottleneck found` stood beside an evaluation of 28 % of each step."""
    signals = {"mfu_ratio": 0.42, "mbu_ratio": 0.8, f"{phase}_ratio": share}
    assert check(rule, case(**signals)).state == "clear"
    assert check(rule, case(**{**signals, f"{phase}_ratio": 0.01})).state == "fires"
