"""Rules that ask a probe for another value of one knob."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuconsole.diagnosis.engine import Hysteresis, evaluate, wanted_probes
from gpuconsole.diagnosis.rule import Case
from gpuconsole.model.finding import Finding
from tests.diagnosis.cases import case

MATH = {"attention": "math"}
ADAMW = {"optim": "adamw"}
FP32 = {"precision": "fp32"}
NCHW = {"channels_last": False}
OPTIMIZER = {"optimizer_ratio": 0.4, "forward_ratio": 0.2, "backward_ratio": 0.38, "mfu_ratio": 0.3}


def of(rule: str, a_case: Case) -> Finding:
    return next(finding for finding in evaluate(a_case) if finding.rule == rule)


def test_plain_attention_is_named_with_what_the_probe_gained() -> None:
    finding = of(
        "gpu.attention_math",
        case(knobs=MATH, probe__attention_sdpa_speedup=1.5, probe__attention_sdpa_spread=0.05),
    )
    assert finding.state == "fires"
    assert finding.recoverable_ratio == pytest.approx(0.95 * (1 - 1 / 1.5))
    assert finding.confidence == "high"
    suggestion = finding.suggestions[0]
    assert suggestion.changes == {"attention": "sdpa"}
    assert suggestion.predicted_speedup is not None
    assert (
        suggestion.predicted_speedup.low
        < 1 / (1 - finding.recoverable_ratio)
        < suggestion.predicted_speedup.high
    )


def test_plain_attention_that_costs_nothing_is_left_alone() -> None:
    assert (
        of(
            "gpu.attention_math",
            case(knobs=MATH, probe__attention_sdpa_speedup=1.03, probe__attention_sdpa_spread=0.01),
        ).state
        == "clear"
    )
    assert of("gpu.attention_math", case(knobs={"attention": "sdpa"})).state == "clear"


def test_an_uncertain_gain_is_of_medium_confidence() -> None:
    finding = of(
        "gpu.attention_math",
        case(knobs=MATH, probe__attention_sdpa_speedup=1.1, probe__attention_sdpa_spread=0.09),
    )
    assert (finding.state, finding.confidence) == ("fires", "medium")


def test_probes_are_asked_for_only_where_their_knob_is_in_force() -> None:
    assert wanted_probes(evaluate(case())) == []
    assert wanted_probes(evaluate(case(knobs=MATH))) == ["swap_attention"]
    assert wanted_probes(evaluate(case(knobs=FP32))) == ["swap_precision"]
    assert (
        wanted_probes(
            evaluate(case(knobs=FP32, data_wait_ratio=0.05, forward_ratio=0.1, backward_ratio=0.3))
        )
        == []
    )
    assert wanted_probes(evaluate(case(knobs=ADAMW, **OPTIMIZER))) == ["swap_optim"]
    assert wanted_probes(evaluate(case(knobs=ADAMW, optimizer_ratio=0.05))) == []
    all_three = case(knobs={**FP32, **MATH, **ADAMW}, **OPTIMIZER)
    # the note's probe comes last
    assert wanted_probes(evaluate(all_three)) == ["swap_attention", "swap_optim", "swap_precision"]


def test_a_batch_that_does_not_fit_twice_is_not_too_small() -> None:
    found = of(
        "gpu.small_batch", case(without=("probe.batch_cost_ratio",), probe__batch_factor=1.0)
    )
    assert (found.state, found.summary) == ("clear", "twice the batch does not fit into memory")


def test_an_unfused_optimizer_is_named_and_its_milliseconds_are_not_the_small_batchs() -> None:
    timed = {"probe__optim_present_step_s": 0.04, "probe__optim_fused_step_s": 0.01}
    heavy = case(knobs=ADAMW, probe__batch_cost_ratio=0.6, **OPTIMIZER, **timed)
    fired = {finding.rule: finding for finding in evaluate(heavy) if finding.state == "fires"}
    assert fired["gpu.optimizer_unfused"].recoverable_ratio == pytest.approx(0.3)
    assert fired["gpu.optimizer_unfused"].suggestions[0].changes == {"optim": "adamw_fused"}
    # 4x the batch at 1.6 times the samples/s of now, less what the fused update saves
    assert fired["gpu.small_batch"].recoverable_ratio == pytest.approx(0.532 - 0.3)
    fused = case(knobs={"optim": "adamw_fused"}, probe__batch_cost_ratio=0.6, **OPTIMIZER)
    assert of("gpu.small_batch", fused).state == "clear"


def test_a_fused_or_a_cheap_optimizer_is_left_alone() -> None:
    assert (
        of("gpu.optimizer_unfused", case(knobs={"optim": "adamw_fused"}, **OPTIMIZER)).state
        == "clear"
    )
    assert of("gpu.optimizer_unfused", case(knobs={"optim": "sgd"}, **OPTIMIZER)).state == "clear"
    even = case(
        knobs=ADAMW, probe__optim_present_step_s=0.01, probe__optim_fused_step_s=0.0095, **OPTIMIZER
    )
    assert of("gpu.optimizer_unfused", even).state == "clear"


def test_fp32_on_a_gpu_costs_time_and_on_a_cpu_is_a_note() -> None:
    faster = {
        "probe__precision_bf16_native": 1.0,
        "probe__precision_bf16_speedup": 2.0,
        "probe__precision_bf16_spread": 0.1,
    }
    gpu = of(
        "gpu.fp32_no_tensor_core",
        case(knobs=FP32, is_gpu=1.0, probe__precision_tf32_speedup=1.6, **faster),
    )
    assert (gpu.state, gpu.note) == ("fires", False)
    assert gpu.recoverable_ratio == pytest.approx(0.95 / 2)
    assert [suggestion.changes for suggestion in gpu.suggestions] == [
        {"precision": "bf16"},
        {"precision": "tf32"},
    ]
    cpu = of("gpu.fp32_no_tensor_core", case(knobs=FP32, **faster))
    assert (cpu.state, cpu.note, cpu.recoverable_ratio) == ("fires", True, 0.0)
    both = [
        finding.rule for finding in evaluate(case(knobs=FP32, **faster)) if finding.state == "fires"
    ]
    assert both == ["gpu.compute_bound_healthy", "gpu.fp32_no_tensor_core"]


def test_fp32_is_left_alone_where_16_bits_gain_nothing() -> None:
    no_units = case(knobs=FP32, probe__precision_bf16_native=0.0)
    assert of("gpu.fp32_no_tensor_core", no_units).state == "clear"
    slower = case(
        knobs=FP32, is_gpu=1.0, probe__precision_bf16_native=1.0, probe__precision_bf16_speedup=0.9
    )
    assert of("gpu.fp32_no_tensor_core", slower).state == "clear"
    busy = case(knobs=FP32, is_gpu=1.0, profile__tensor_core_ratio=0.4)
    assert of("gpu.fp32_no_tensor_core", busy).state == "clear"
    assert of("gpu.fp32_no_tensor_core", case(knobs={"precision": "bf16"})).state == "clear"


def test_a_run_that_a_swap_would_speed_up_is_not_called_healthy() -> None:
    slow = case(knobs=MATH, probe__attention_sdpa_speedup=1.5, probe__attention_sdpa_spread=0.05)
    assert of("gpu.compute_bound_healthy", slow).state == "clear"
    nchw = {
        "knobs": {**NCHW, "precision": "bf16"},
        "is_gpu": 1.0,
        "probe__channels_last_speedup": 1.4,
    }
    assert of("gpu.compute_bound_healthy", case(**nchw)).state == "clear"  # type: ignore[arg-type]
    idle = {"knobs": {"num_threads": 1}, "probe__threads_speedup": 1.6}
    assert of("gpu.compute_bound_healthy", case(**idle)).state == "clear"  # type: ignore[arg-type]


def test_convolutions_in_nchw_are_an_offer_on_a_cpu_and_a_fault_on_a_gpu_in_16_bits() -> None:
    faster = {"probe__channels_last_speedup": 1.4, "probe__channels_last_spread": 0.02}
    on_cpu = of("gpu.conv_layout_autotune", case(knobs=NCHW, **faster))
    assert (on_cpu.state, on_cpu.note, on_cpu.suggestions[0].changes) == (
        "fires",
        True,
        {"channels_last": True},
    )
    on_gpu = of(
        "gpu.conv_layout_autotune", case(knobs={**NCHW, "precision": "bf16"}, is_gpu=1.0, **faster)
    )
    assert (on_gpu.state, on_gpu.note, on_gpu.recoverable_ratio) == (
        "fires",
        False,
        pytest.approx(0.95 * (1 - 1 / 1.4)),
    )
    assert (
        of(
            "gpu.conv_layout_autotune",
            case(knobs={**NCHW, "precision": "fp32"}, is_gpu=1.0, **faster),
        ).state
        == "clear"
    )
    assert (
        of("gpu.conv_layout_autotune", case(knobs={"channels_last": True}, **faster)).state
        == "clear"
    )
    assert (
        of("gpu.conv_layout_autotune", case(knobs=NCHW, probe__channels_last_speedup=0.9)).state
        == "clear"
    )


IDLE = {"cores": 8.0, "threads": 2.0, "host__others_cpu_ratio": 0.1}
FASTER = {"probe__threads_tried": 7.0, "probe__threads_speedup": 2.0, "probe__threads_spread": 0.05}


def test_an_idle_core_is_named_where_a_pass_on_it_is_faster() -> None:
    knobs = {"num_threads": 2, "num_workers": 1}
    assert wanted_probes(evaluate(case(("probe.threads_speedup",), knobs, **IDLE))) == [
        "swap_threads"
    ]
    found = of("host.idle_cores", case(knobs=knobs, **FASTER, **IDLE))
    assert (found.state, found.note, found.recoverable_ratio) == (
        "fires",
        False,
        pytest.approx(0.95 / 2),
    )
    assert found.suggestions[0].changes == {"num_threads": 7}
    predicted = found.suggestions[0].predicted_speedup
    assert predicted is not None and predicted.low < 1 / (1 - 0.95 / 2) < predicted.high


def test_the_core_that_was_left_free_on_purpose_is_an_offer() -> None:
    found = of(
        "host.idle_cores", case(knobs={"num_threads": 0, "num_workers": 1}, **FASTER, **IDLE)
    )
    assert (found.state, found.note, found.recoverable_ratio) == ("fires", True, 0.0)


@pytest.mark.parametrize(
    "why",
    [
        {"threads": 8.0},
        {"host__others_cpu_ratio": 0.5},
        {"is_gpu": 1.0},
        {"probe__threads_speedup": 1.02},
        {"forward_ratio": 0.02, "backward_ratio": 0.03},
        {"knobs": {"num_threads": 2, "num_workers": 6}},
        {"knobs": {"num_threads": 2, "num_workers": 0, "sharding": "ddp"}},
    ],
)
def test_no_core_is_offered_that_is_not_idle_or_gains_nothing(why: dict[str, object]) -> None:
    signals: dict[str, object] = {
        "knobs": {"num_threads": 2, "num_workers": 0},
        **FASTER,
        **IDLE,
        **why,
    }
    assert of("host.idle_cores", case(**signals)).state == "clear"  # type: ignore[arg-type]


def test_an_offer_of_cores_is_withdrawn_when_others_take_them() -> None:
    steadied, knobs = Hysteresis(), {"num_threads": 0, "num_workers": 1}
    free, taken = (
        evaluate(case(knobs=knobs, **{**FASTER, **IDLE, "host__others_cpu_ratio": others}))
        for others in (0.1, 0.5)
    )
    states = [
        next(one.state for one in steadied.update(found) if one.rule == "host.idle_cores")
        for found in (free, free, taken)
    ]
    assert states == ["cant_tell", "fires", "clear"]


def test_a_model_in_float64_is_named_by_what_is_multiplied_or_by_its_weights() -> None:
    counted = replace(case(knobs={"precision": "fp64"}, precision__fp64_ratio=1.0), is_job=True)
    finding = of("gpu.double_precision", counted)
    assert (finding.state, finding.suggestions[0].changes) == ("fires", {"precision": "fp32"})
    assert finding.recoverable_ratio == pytest.approx(0.95 / 3)
    assert (
        of("gpu.double_precision", replace(case(knobs={"precision": "fp64"}), is_job=True)).state
        == "fires"
    )


@pytest.mark.parametrize(
    ("precision", "signals"),
    [
        ("fp32", {}),
        ("fp32", {"precision__fp64_ratio": 0.2}),
        (
            "fp64",
            {
                "precision__fp64_ratio": 1.0,
                "forward_ratio": 0.05,
                "backward_ratio": 0.1,
                "data_wait_ratio": 0.8,
            },
        ),
        (
            "fp64",
            {
                "precision__fp64_ratio": 1.0,
                "is_gpu": 1.0,
                "host__caught_up_ratio": 1.0,
                "sync__wait_s": 0.0,
                "sync__calls": 0.0,
            },
        ),
    ],
)
def test_float64_that_does_not_decide_the_time_of_a_step_is_left_alone(
    precision: str, signals: dict[str, float]
) -> None:
    assert (
        of(
            "gpu.double_precision",
            replace(case(knobs={"precision": precision}, **signals), is_job=True),
        ).state
        == "clear"
    )


EMPTY = {
    "is_gpu": 1.0,
    "gpu__sm_active_ratio": 0.11,
    "gpu__util_ratio": 0.95,
    "host__caught_up_ratio": 0.02,
    "forward_ratio": 0.3,
    "backward_ratio": 0.6,
    "optimizer_ratio": 0.08,
}


@pytest.mark.parametrize(
    ("changed", "state"),
    [
        ({}, "fires"),
        ({"gpu__sm_active_ratio": 0.5}, "cant_tell"),  # kernels that fill the card
        ({"gpu__util_ratio": 0.6}, "cant_tell"),  # no kernel for much of the time
        ({"host__caught_up_ratio": 0.9}, "cant_tell"),  # the host is the limit
        ({"hw__other_processes": 1.0}, "cant_tell"),  # whose kernels?
        ({"forward_ratio": 0.02, "backward_ratio": 0.05}, "clear"),  # the passes are no large part
    ],
)
def test_kernels_that_leave_most_sms_empty_need_no_probe(
    changed: dict[str, float], state: str
) -> None:
    found = of("gpu.small_batch", case(without=("probe.batch_cost_ratio",), **(EMPTY | changed)))
    assert found.state == state
    if state == "fires":
        # twice the batch at 1 + 0.11 / 0.95 times the time of the passes
        assert found.recoverable_ratio == pytest.approx(
            1 - (0.9 * 1.116 + 0.08 + 0.04) / 2, abs=0.01
        )
        assert found.confidence == "medium"


def test_kernels_that_wait_for_another_process_say_nothing_about_the_batch() -> None:
    """The kernel of an exchange keeps a few SMs while it waits."""
    waiting = case(without=("probe.batch_cost_ratio",), knobs={"sharding": "ddp"}, **EMPTY)
    assert of("gpu.small_batch", waiting).state == "cant_tell"


def test_the_time_of_the_gpu_for_the_optimizer_is_spread_over_a_larger_batch() -> None:
    fixed = {"probe__batch_cost_ratio": 0.3, "is_gpu": 1.0, **OPTIMIZER, "optimizer_ratio": 0.6}
    fixed |= {"forward_ratio": 0.13, "backward_ratio": 0.26}
    assert of("gpu.small_batch", case(**fixed, host__caught_up_ratio=0.01)).state == "fires"
    assert of("gpu.small_batch", case(**fixed, host__caught_up_ratio=0.9)).state == "clear"


def test_a_gpu_needs_no_longer_for_a_table_than_its_memory_does() -> None:
    table = {
        "embedding__table_bytes": 51.6e6, "embedding__rows_touched_ratio": 0.005,
        "optimizer_ratio": 0.33, "forward_ratio": 0.1, "backward_ratio": 0.54, "step_s": 5.7e-3,
    }  # fmt: skip
    here = case(knobs={"sparse": False}, **table)
    assert of("gpu.dense_embedding_grad", here).state == "fires"
    a100 = case(knobs={"sparse": False}, **table, is_gpu=1.0, hw__memory_bytes_per_s=1.555e12)
    assert of("gpu.dense_embedding_grad", a100).state == "clear"
