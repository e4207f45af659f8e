"""The attainable rate of a run: the roofline of its work, and a waterfall whose parts add up to the
time that was measured."""

from __future__ import annotations

import random

import msgspec
import pytest

from gpuconsole.diagnosis.models.inputs import ModelInputs
from gpuconsole.diagnosis.models.roofline import Ceilings, decode_iteration, least
from gpuconsole.diagnosis.models.serving import serving_attainable
from gpuconsole.diagnosis.models.training import training_attainable
from gpuconsole.model.figures import Attainable
from gpuconsole.model.finding import Signal
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.machine import Device, Peaks
from gpuconsole.model.peaks import peaks_of
from gpuconsole.model.run import PHASES, Distribution, Run, Summary
from gpuconsole.model.serving import SERVING_PHASES
from tests.diagnosis.models.test_figures import FACTS, KNOBS

CPU = Device("cpu", "a CPU", memory_bytes=32 * 2**30)
CALIBRATION = {
    "gemm_fp32_flops_per_s": 1e11,
    "gemm_bf16_flops_per_s": 2e11,
    "copy_bytes_per_s": 2e10,
}
NO_DATASHEET = Peaks()
CASES = 300


def one(value: float) -> Distribution:
    return Distribution(value, 0.0, 10, value)


def signals(**values: float) -> dict[str, Signal]:
    return {name.replace("__", "."): Signal(value, "", "test") for name, value in values.items()}


def shares(draw: random.Random, names: tuple[str, ...]) -> dict[str, float]:
    drawn = {name: draw.random() ** 3 for name in names}
    return {name: value / sum(drawn.values()) for name, value in drawn.items()}


def training(
    rate: float,
    phases: dict[str, float],
    knobs: Knobs = KNOBS,
    facts: dict[str, float] = FACTS,
    peaks: Peaks = NO_DATASHEET,
    calibration: dict[str, float] = CALIBRATION,
    is_gpu: bool = False,
    **values: float,
) -> Attainable:
    """The attainable rate of a run with `rate` samples/s. `values`: further signals."""
    summary = Summary(samples_per_s=one(rate), tokens_per_s=one(rate * 1024), phases_ratio=phases)
    known = signals(
        step_s=16 / rate,
        samples_per_step=16.0,
        **{f"{name}_ratio": value for name, value in phases.items()},
        **values,
    )
    return training_attainable(
        ModelInputs(knobs, facts, known, summary, peaks, calibration, is_gpu)
    )


def serving(
    rate: float,
    phases: dict[str, float],
    facts: dict[str, float] | None = None,
    knobs: Knobs | None = None,
    running: float = 1.0,
    prompt: float = 64,
    output: float = 64,
    **values: float,
) -> Attainable:
    summary = Summary(
        tokens_per_s=one(rate),
        requests_per_s=one(rate / output),
        tpot_s=one(running / rate),
        phases_ratio=phases,
    )
    known = signals(
        client__prompt_tokens=prompt,
        client__output_tokens=output,
        server__requests_running=running,
        **values,
    )
    reported = {
        "weight_bytes": 1e9,
        "kv_bytes_per_token": 1e4,
        "matrix_parameters": 2.5e8,
        "d_model": 1024.0,
        "n_layer": 6.0,
    }
    run = Run(
        "1",
        "serve",
        "inference.serving",
        {"concurrency": 1, "dtype": "float32", **(knobs or {})},
        "cpu",
        summary=summary,
    )
    run.signals, run.facts = known, reported if facts is None else facts
    return serving_attainable(run, CPU, CALIBRATION)


def check_adds_up(found: Attainable, time_s: float) -> None:
    """The parts add up to the time, the losses of the rate to the gap, and a part that is negative
    says why."""
    assert not found.reason and found.main is not None and found.share_ratio is not None
    assert sum(part.time_s for part in found.parts) == pytest.approx(time_s, rel=0.01)
    reached, attainable = found.main.reached_per_s, found.main.attainable_per_s
    assert reached is not None and attainable is not None
    assert sum(part.lost_per_s for part in found.parts) == pytest.approx(
        attainable - reached, rel=0.01, abs=0.01 * attainable
    )
    assert found.parts[0].time_s > 0
    assert all(part.note for part in found.parts if part.time_s < 0)
    if found.share_ratio > 1:
        assert any("more than 100 %" in note for note in found.notes)


def test_the_lower_roof_limits_and_a_missing_roof_gives_no_figure() -> None:
    both = Ceilings((1e12, "a"), (1e10, "b"))
    assert least(1e12, 1e9, both) == (1.0, "compute")
    assert least(1e11, 1e10, both) == (1.0, "memory bandwidth")
    assert least(1e12, 0.0, Ceilings((1e12, "a"), None)) == (1.0, "compute")
    assert least(1e12, 1.0, Ceilings((1e12, "a"), None)) is None


def test_decoding_reads_all_weights_once_and_the_keys_and_values_of_each_sequence() -> None:
    ceilings = Ceilings((1e12, "a"), (1e10, "b"))
    assert decode_iteration(1e9, 1e7, 5e8, 1, ceilings) == pytest.approx(
        (0.101, "memory bandwidth")
    )
    assert decode_iteration(1e9, 1e7, 5e8, 500, ceilings) == pytest.approx(
        (0.6, "memory bandwidth")
    )
    assert decode_iteration(1e9, 0, 5e9, 500, ceilings) == pytest.approx((2.5, "compute"))


def test_a_training_step_is_limited_by_its_flops_and_its_optimizer_by_its_bytes() -> None:
    found = training(2.0, {"forward": 0.3, "backward": 0.5, "optimizer": 0.1, "data_wait": 0.1})
    least_s = 16 * FACTS["flops_per_sample"] / 2e11 + 28 * FACTS["trainable_parameters"] / 2e10
    assert found.bound == "compute"
    assert found.main is not None and found.main.unit == "tokens/s"
    assert found.main.attainable_per_s == pytest.approx(16 * 1024 / least_s)
    assert {pair.unit for pair in found.rates} == {
        "tokens/s",
        "samples/s",
        "steps/s",
        "FLOP/s",
        "bytes/s",
    }
    assert len({round(pair.share_ratio or 0, 9) for pair in found.rates}) == 1
    assert "bf16 matrix product, calibrated" in found.source and "copy, calibrated" in found.source


def test_the_parts_of_a_step_add_up_whatever_the_run_does() -> None:
    draw = random.Random(21)
    for _ in range(CASES):
        rate, phases = 10 ** draw.uniform(-3, 4), shares(draw, PHASES)
        knobs = {**KNOBS, "gradient_checkpointing": draw.random() < 0.3}
        probes = (
            {"probe__pass_gpu_s": draw.random(), "probe__pass_s": 1.0}
            if draw.random() < 0.5
            else {}
        )
        is_gpu = draw.random() < 0.5
        peaks = peaks_of("NVIDIA H200") if is_gpu else Peaks()
        calibration = CALIBRATION if draw.random() < 0.5 or not is_gpu else {}
        found = training(
            rate,
            phases,
            knobs,
            FACTS,
            peaks,
            calibration,
            is_gpu,
            runq_ratio=draw.random() ** 2,
            **probes,
        )
        check_adds_up(found, 16 / rate)


def test_the_parts_of_a_token_add_up_whatever_the_server_does() -> None:
    draw = random.Random(22)
    for _ in range(CASES):
        rate = 10 ** draw.uniform(-1, 4)
        knobs: Knobs = {
            "concurrency": draw.choice([1, 4, 64]),
            "request_rate": draw.choice([0.0, 0.0, 0.1, 50.0]),
        }
        phases = shares(draw, SERVING_PHASES) if draw.random() < 0.8 else {}
        found = serving(
            rate,
            phases,
            None,
            knobs,
            draw.uniform(0, 64),
            draw.uniform(1, 2000),
            draw.uniform(1, 500),
            server__prefill_s=0.1,
        )
        check_adds_up(found, 1 / rate)


def test_each_cause_is_a_part_of_its_own() -> None:
    phases = {
        "forward": 0.2,
        "backward": 0.4,
        "data_wait": 0.2,
        "h2d": 0.05,
        "comm": 0.05,
        "logging": 0.05,
        "other": 0.05,
    }
    found = training(
        1.0,
        phases,
        is_gpu=True,
        peaks=peaks_of("NVIDIA H200"),
        calibration={},
        probe__pass_gpu_s=0.6,
        probe__pass_s=1.0,
    )
    times = {part.name: part.time_s for part in found.parts}
    assert times["data_wait"] == pytest.approx(16 * 0.2) and times["h2d"] == pytest.approx(
        16 * 0.05
    )
    assert times["comm"] == pytest.approx(16 * 0.05) and times["launch_gaps"] == pytest.approx(
        16 * 0.6 * 0.4
    )
    assert times["kernels"] > 0
    assert "datasheet" in found.source or "bf16 dense" in found.source


@pytest.mark.parametrize(
    "recent",
    [1.0, 0.67],
    ids=["no checkpoint in the last steps", "one of the last steps has a checkpoint"],
)
def test_side_work_has_its_share_of_all_steps_and_the_other_phases_divide_the_rest(
    recent: float,
) -> None:
    found = training(
        1.0,
        {
            "data_wait": 0.2 * recent,
            "forward": 0.3 * recent,
            "backward": 0.5 * recent,
            "checkpoint": 0.25,
        },
    )
    times = {part.name: part.time_s for part in found.parts}
    assert times["checkpoint"] == pytest.approx(16 * 0.25)
    assert times["data_wait"] == pytest.approx(16 * 0.75 * 0.2)
    check_adds_up(found, 16.0)


def test_the_wait_for_a_core_is_a_part_of_its_own_on_a_cpu() -> None:
    found = training(1.0, {"forward": 0.5, "backward": 0.5}, runq_ratio=0.25)
    times = {part.name: part.time_s for part in found.parts}
    assert times["runq"] == pytest.approx(4.0)


def test_a_machine_without_calibration_reads_na_with_the_command() -> None:
    found = training(1.0, {"forward": 1.0}, calibration={})
    assert (
        found.main is None and found.share_ratio is None and "gpuconsole calibrate" in found.reason
    )
    served = serving_attainable(
        Run(
            "1",
            "s",
            "inference.serving",
            {},
            "cpu",
            summary=Summary(tokens_per_s=one(1.0)),
            facts={"weight_bytes": 1.0},
        ),
        CPU,
        {},
    )
    assert served.reason == "the run is not steady yet"


def test_a_calibration_goes_before_the_first_measurement_sustained_before_best_rate() -> None:
    facts = {**FACTS, "peak_flops_per_s": 4e11, "threads": 2.0}
    assert (
        "measured here, 2 threads"
        in training(1.0, {"forward": 1.0}, facts=facts, calibration={}).source
    )
    found = training(1.0, {"forward": 1.0}, facts=facts)
    assert "bf16 matrix product, calibrated" in found.source
    slower = training(
        1.0,
        {"forward": 1.0},
        facts=facts,
        calibration={**CALIBRATION, "gemm_bf16_sustained_flops_per_s": 1.5e11},
    )
    assert (
        found.share_ratio is not None
        and slower.share_ratio is not None
        and slower.share_ratio > found.share_ratio
    )


def test_cores_without_a_thread_are_a_part_of_their_own() -> None:
    facts = {**FACTS, "peak_flops_per_s": 5e10, "threads": 1.0}
    found = training(0.01, {"forward": 0.5, "backward": 0.5}, facts=facts, cores=4.0)
    part = next(part for part in found.parts if part.name == "threads")
    assert part.title == "1 of 4 cores compute"
    assert part.time_s == pytest.approx(16 * FACTS["flops_per_sample"] * (1 / 5e10 - 1 / 2e11))


def test_a_convolution_is_compared_with_the_calibrated_convolution() -> None:
    facts = {**FACTS, "dense_is_convolution": 1.0}
    found = training(
        1.0,
        {"forward": 1.0},
        {**KNOBS, "precision": "fp32"},
        facts,
        calibration={**CALIBRATION, "conv_fp32_flops_per_s": 3e11},
    )
    assert "fp32 convolution, calibrated" in found.source


def test_a_share_above_100_percent_is_shown_and_explained() -> None:
    found = training(100.0, {"forward": 0.4, "backward": 0.5, "optimizer": 0.1})
    assert found.share_ratio is not None and found.share_ratio > 1
    assert any("calibrate again" in note for note in found.notes)
    assert [part for part in found.parts if part.time_s < 0 and part.note]


def test_one_user_gets_the_bandwidth_over_the_bytes_of_a_token() -> None:
    found = serving(
        10.0, {"decode": 0.9, "prefill": 0.1}, prompt=32, output=1000, server__prefill_s=0.5
    )
    decode = next(pair for pair in found.rates if pair.name == "decode")
    assert decode.attainable_per_s == pytest.approx(2e10 / (1e9 + (32 + 500) * 1e4))
    assert found.bound == "memory bandwidth" and found.per == "output token"
    assert {part.name for part in found.parts} == {"attainable", "prefill", "decode"}


def test_a_low_offered_load_limits_and_no_part_blames_the_model_for_it() -> None:
    found = serving(6.4, {"queue": 0.1, "decode": 0.8, "prefill": 0.1}, knobs={"request_rate": 0.1})
    assert found.bound == "offered load"
    assert found.main is not None and found.main.attainable_per_s == pytest.approx(6.4)


def test_more_users_than_run_together_are_named() -> None:
    found = serving(50.0, {"queue": 0.7, "decode": 0.3}, knobs={"concurrency": 16}, running=4.0)
    assert any("16 requests could run together, 4.0 do" in note for note in found.notes)
    assert {part.name for part in found.parts} >= {"queue"}


def test_the_cards_of_a_tensor_parallel_server_share_its_weights() -> None:
    """70 billion parameters in 16 bits and 64 users on four cards of 80 GB: with the memory of one
    card no cache was left, so only the 8 that run counted: 707 tokens/s."""
    facts = {
        "weight_bytes": 141e9,
        "kv_bytes_per_token": 327_680.0,
        "matrix_parameters": 70e9,
        "d_model": 8192.0,
        "n_layer": 80.0,
    }
    card = Device(
        "gpu:0",
        "H100",
        memory_bytes=80 * 10**9,
        peaks=Peaks(memory_bytes_per_s=3.35e12, bf16_flops_per_s=989e12),
    )
    knobs: Knobs = {"concurrency": 64, "dtype": "bfloat16", "tensor_parallel_size": 4}
    run = Run(
        "1",
        "serve",
        "inference.serving",
        knobs,
        "gpu:0",
        summary=Summary(tokens_per_s=one(300.0), requests_per_s=one(2.0)),
    )
    run.facts = facts
    run.signals = signals(
        client__prompt_tokens=1000.0, client__output_tokens=500.0, server__requests_running=8.0
    )
    found = serving_attainable(run, card, {})
    assert found.main is not None and found.main.attainable_per_s > 3000
    assert any("64 requests could run together, 8.0 do" in note for note in found.notes)


def test_a_server_that_reports_no_weights_reads_na_with_the_reason() -> None:
    found = serving(10.0, {"decode": 1.0}, facts={})
    assert found.reason == (
        "the server does not report the bytes of its weights, the bytes of a token's keys and"
        " values"
    )


def test_the_structure_survives_json() -> None:
    found = training(2.0, {"forward": 0.9, "optimizer": 0.1})
    assert msgspec.json.decode(msgspec.json.encode(found), type=Attainable) == found
