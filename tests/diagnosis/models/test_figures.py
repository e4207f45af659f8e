"""Every model beside its measurement, or the reason why one of them is missing."""

from __future__ import annotations

import pytest

from gpuconsole.diagnosis.models.training import training_figures
from gpuconsole.model.figures import Figure
from gpuconsole.model.finding import Signal
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.machine import Peaks
from gpuconsole.model.peaks import peaks_of, published_of
from gpuconsole.model.run import Distribution, Summary

H200 = "NVIDIA H200"
KNOBS: Knobs = {
    "batch_size": 16, "seq_len": 1024, "d_model": 768, "n_layer": 12, "precision": "bf16",
    "torch_compile": "off", "attention": "sdpa", "gradient_checkpointing": False,
    "gradient_accumulation_steps": 1, "optim": "adamw_fused", "nproc": 1, "sharding": "none",
    "tensor_parallel": 1, "comm_hook": "none", "bucket_cap_mb": 25.0, "peft": "none",
    "lora_rank": 8, "pad_to_multiple_of": 0, "varied_lengths": False,
}  # fmt: skip
LINEAR = 12 * 12 * 768**2 + 256 * 768
PARAMETERS = LINEAR + 12 * 13 * 768 + 2 * 768 + (256 + 4096) * 768
FACTS = {
    "vocabulary": 256.0, "tokens_per_sample": 1024.0, "parameters": float(PARAMETERS),
    "trainable_parameters": float(PARAMETERS), "linear_parameters": float(LINEAR),
    "flops_per_sample": 1024 * (6.0 * LINEAR + 12 * 12 * 768 * 1024), "world_size": 1.0,
}  # fmt: skip


def summary(tokens_per_s: float, flops_per_s: float) -> Summary:
    def one(value: float) -> Distribution:
        return Distribution(value, 0.0, 10, value)

    return Summary(
        tokens_per_s=one(tokens_per_s),
        samples_per_s=one(tokens_per_s / 1024),
        flops_per_s=flops_per_s,
    )


def by_name(found: list[Figure]) -> dict[str, Figure]:
    assert len({figure.name for figure in found}) == len(found)
    return {figure.name: figure for figure in found}


def signals(**values: float) -> dict[str, Signal]:
    return {name.replace("__", "."): Signal(value, "", "test") for name, value in values.items()}


def on_h200(
    knobs: Knobs = KNOBS, facts: dict[str, float] = FACTS, **values: float
) -> dict[str, Figure]:
    each = FACTS["flops_per_sample"] / 1024
    found = training_figures(
        knobs,
        facts,
        signals(**{name.replace("__", "."): value for name, value in values.items()}),
        summary(400_000, 400_000 * each),
        peaks_of(H200),
        {"gemm_bf16_flops_per_s": 780e12},
        True,
        published_of(H200),
    )
    return by_name(found)


@pytest.mark.parametrize(
    "knobs", [{}, KNOBS, {"batch_size": 8}], ids=["nothing", "gpt", "another workload"]
)
@pytest.mark.parametrize("is_gpu", [False, True], ids=["cpu", "gpu"])
def test_whatever_is_missing_has_its_reason(knobs: Knobs, is_gpu: bool) -> None:
    for figure in training_figures(knobs, {}, {}, Summary(), Peaks(), {}, is_gpu):
        assert figure.measured is None
        assert figure.note, figure.name


def test_states_and_activations_stand_beside_what_was_measured() -> None:
    found = on_h200(
        memory__parameters_bytes=4.0 * PARAMETERS, memory__optimizer_bytes=8.1 * PARAMETERS
    )
    assert found["memory.parameters_bytes"].error_ratio == 0
    assert found["memory.optimizer_bytes"].error_ratio == pytest.approx(-0.0123, abs=1e-3)
    assert found["memory.activations_bytes"].predicted is not None
    assert "not measured" in found["memory.activations_bytes"].note


def test_a_model_whose_seq_len_was_changed_keeps_its_positions() -> None:
    found = on_h200({**KNOBS, "seq_len": 512}, memory__parameters_bytes=4.0 * PARAMETERS)
    assert found["memory.parameters_bytes"].error_ratio == 0


def test_peak_lies_above_its_parts() -> None:
    found = on_h200()
    parts = ("parameters", "optimizer", "activations")
    assert (found["memory.allocated_peak_bytes"].predicted or 0) > sum(
        found[f"memory.{part}_bytes"].predicted or 0 for part in parts
    )


def test_fragmentation_is_what_is_reserved_beyond_the_peak() -> None:
    found = on_h200(memory__reserved_bytes=30e9, memory__allocated_peak_bytes=22e9)
    assert found["memory.fragmentation_bytes"].measured == 8e9


def test_what_torch_compile_keeps_is_not_predicted() -> None:
    found = on_h200({**KNOBS, "torch_compile": "default"})
    for part in ("activations", "allocated_peak"):
        figure = found[f"memory.{part}_bytes"]
        assert figure.predicted is None
        assert "torch.compile" in figure.note


def test_flops_by_formula_and_by_count() -> None:
    found = on_h200()
    assert found["flops.per_sample"].error_ratio == pytest.approx(0, abs=0.01)
    causal = found["flops.causal_per_sample"]
    assert (causal.predicted or 0) < (found["flops.per_sample"].predicted or 0)
    assert "causal" in causal.formula
    assert "flops.hardware_per_sample" not in found
    again = on_h200({**KNOBS, "gradient_checkpointing": True})["flops.hardware_per_sample"]
    assert 1.2 < (again.predicted or 0) / FACTS["flops_per_sample"] < 4 / 3


def test_flops_of_varied_lengths_are_the_mean_over_them() -> None:
    knobs = {**KNOBS, "varied_lengths": True}
    predicted = on_h200(knobs)["flops.per_sample"].predicted
    mean = sum(t * (6 * LINEAR + 12 * 12 * 768 * t) for t in range(256, 1025)) / 769
    assert predicted == pytest.approx(mean, rel=1e-3)


def test_mfu_by_each_method() -> None:
    found = on_h200(gpu__tensor_active_ratio=0.5)
    each = FACTS["flops_per_sample"] / 1024
    mfu = 400_000 * each / 989.4e12
    assert found["mfu.flops"].measured == pytest.approx(mfu)
    assert found["mfu.flops"].predicted == pytest.approx(mfu)
    assert found["mfu.reached"].measured == pytest.approx(400_000 * each / 780e12)
    assert found["mfu.published"].measured == 400_000
    assert found["mfu.published"].predicted == pytest.approx(0.578 * 989.4e12 / each)
    assert "KempnerForge" in found["mfu.published"].formula
    assert (found["mfu.tensor_active"].predicted, found["mfu.tensor_active"].measured) == (
        pytest.approx(mfu),
        0.5,
    )


def test_fp32_is_held_against_no_published_bf16_run() -> None:
    figure = on_h200({**KNOBS, "precision": "fp32"})["mfu.published"]
    assert figure.predicted is None
    assert "no published throughput" in figure.note


def test_optimizer_against_bandwidth() -> None:
    found = on_h200(step_s=0.05, optimizer_ratio=0.02)
    assert found["bandwidth.optimizer_s"].predicted == pytest.approx(28 * PARAMETERS / 4.8e12)
    assert found["bandwidth.optimizer_s"].measured == pytest.approx(0.001)
    assert found["mbu.optimizer"].measured == pytest.approx(28 * PARAMETERS / 4.8e12 / 0.001)


def test_intensity_against_the_ridge() -> None:
    found = on_h200(step_s=0.04, samples_per_step=16.0, gpu__dram_active_ratio=0.4)
    intensity = found["roofline.intensity"]
    assert intensity.predicted is not None and intensity.measured is not None
    assert "ridge at 206 FLOP/B" in intensity.note
    assert (found["roofline.flops_per_s"].predicted or 0) <= 989.4e12


def test_one_process_has_no_collectives() -> None:
    assert not any(name.startswith("comm.") for name in on_h200())


def test_collectives_of_data_parallel_training() -> None:
    knobs, facts = {**KNOBS, "sharding": "ddp", "nproc": 8}, {**FACTS, "world_size": 8.0}
    found = on_h200(
        knobs,
        facts,
        step_s=0.05,
        backward_ratio=0.6,
        forward_ratio=0.3,
        comm__exposed_s=0.001,
        comm__bytes_per_step=4.0 * PARAMETERS,
    )
    ring = 2 * 7 / 8 * 4 * PARAMETERS / 450e9  # NVLink, one direction
    assert found["comm.bytes_per_step"].error_ratio == 0
    assert found["comm.ring_s"].predicted == pytest.approx(ring)
    assert found["comm.exposed_s"].measured == 0.001
    assert 0 < (found["comm.exposed_s"].predicted or 0) < ring
    assert found["mfu.published"].measured == 400_000 / 8


def test_zero_shards_states_and_moves_its_share() -> None:
    facts = {**FACTS, "world_size": 8.0}
    zero3 = on_h200({**KNOBS, "sharding": "zero3", "nproc": 8}, facts)
    assert zero3["memory.optimizer_bytes"].predicted == pytest.approx(PARAMETERS, rel=0.01)
    assert "FSDP2" in zero3["memory.optimizer_bytes"].formula
    assert zero3["bandwidth.optimizer_s"].predicted == pytest.approx(28 * PARAMETERS / 8 / 4.8e12)


@pytest.mark.parametrize("sharding", ["ddp", "zero1", "zero2", "zero3"])
def test_processes_that_split_the_matrices_exchange_their_parts_only(sharding: str) -> None:
    """Two replicas of four processes each: the whole gradients were counted for each process."""
    split = on_h200(
        {**KNOBS, "sharding": sharding, "nproc": 8, "tensor_parallel": 4},
        {**FACTS, "world_size": 8.0},
    )
    own = on_h200({**KNOBS, "nproc": 4, "tensor_parallel": 4}, {**FACTS, "world_size": 4.0})[
        "memory.gradients_bytes"
    ].predicted
    whole = on_h200({**KNOBS, "sharding": sharding, "nproc": 2}, {**FACTS, "world_size": 2.0})
    assert own is not None and split["comm.bytes_per_step"].predicted == own < 4 * PARAMETERS / 3
    assert split["comm.ring_s"].predicted == pytest.approx(
        (whole["comm.ring_s"].predicted or 0) * own / (4 * PARAMETERS)
    )


def test_powersgd_sends_what_no_formula_here_knows() -> None:
    found = on_h200(
        {**KNOBS, "sharding": "ddp", "nproc": 2, "comm_hook": "powersgd"},
        {**FACTS, "world_size": 2.0},
    )
    assert found["comm.ring_s"].predicted is None
    assert "PowerSGD" in found["comm.ring_s"].note


def test_another_workload_has_states_by_count() -> None:
    facts = {"parameters": 1e6, "trainable_parameters": 1e6, "flops_per_sample": 1e9}
    found = by_name(
        training_figures(
            {"optim": "sgd", "batch_size": 8}, facts, {}, Summary(), Peaks(), {}, False
        )
    )
    assert found["memory.optimizer_bytes"].predicted == 4e6
    assert found["memory.activations_bytes"].predicted is None
    assert found["flops.per_sample"].measured == 1e9
    assert "only transformers and matrix products" in found["flops.per_sample"].note


@pytest.mark.parametrize(("optim", "predicted"), [("sgd_plain", 0.0), ("rmsprop", None)])
def test_a_foreign_optimizer_is_not_taken_for_adamw(optim: str, predicted: float | None) -> None:
    facts = {"parameters": 1e6, "trainable_parameters": 1e6, "flops_per_sample": 1e9}
    found = by_name(
        training_figures(
            {"optim": optim, "batch_size": 8}, facts, {}, Summary(), Peaks(), {}, False
        )
    )["memory.optimizer_bytes"]
    assert found.predicted == predicted
    assert ("no model for the optimizer rmsprop" in found.note) == (predicted is None)


def test_two_processes_share_a_cpus_bandwidth() -> None:
    knobs, facts = (
        {**KNOBS, "precision": "fp32", "sharding": "ddp", "nproc": 2},
        {**FACTS, "world_size": 2.0},
    )
    found = by_name(
        training_figures(knobs, facts, {}, Summary(), Peaks(), {"copy_bytes_per_s": 10e9}, False)
    )
    assert found["bandwidth.optimizer_s"].predicted == pytest.approx(28 * PARAMETERS / 5e9)


def test_sparse_gradients_leave_most_of_a_table_alone() -> None:
    facts = {
        "parameters": 1.1e6,
        "trainable_parameters": 1.1e6,
        "embedding.table_bytes": 4e6,
        "embedding.rows_touched_ratio": 0.01,
    }
    dense, sparse = (
        by_name(
            training_figures(
                {"optim": "adamw", "sparse": on},
                facts,
                {},
                Summary(),
                Peaks(),
                {"copy_bytes_per_s": 1e9},
                False,
            )
        )
        for on in (False, True)
    )
    assert dense["bandwidth.optimizer_s"].predicted == pytest.approx(28 * 1.1e6 / 1e9)
    assert sparse["bandwidth.optimizer_s"].predicted == pytest.approx(28 * 0.11e6 / 1e9)
    assert sparse["memory.gradients_bytes"].predicted is None


def test_a_model_with_another_count_is_not_ours() -> None:
    found = on_h200(
        facts={**FACTS, "parameters": PARAMETERS + 1.0, "trainable_parameters": PARAMETERS + 1.0}
    )
    assert found["memory.activations_bytes"].predicted is None
    assert found["memory.parameters_bytes"].predicted == 4 * (PARAMETERS + 1)


def test_a_workload_that_counts_its_own_bytes_is_held_against_bandwidth() -> None:
    """A stream through three buffers of 4 MB, 100 passes a step: no parameters, no matrix
    products."""
    facts = {"bytes_per_sample": 12e6, "flops_per_sample": 0.0, "parameters": 0.0}
    found = by_name(
        training_figures(
            {"buffer_mb": 4.0},
            facts,
            signals(samples_per_step=100.0, step_s=0.15),
            Summary(),
            Peaks(),
            {"copy_bytes_per_s": 10e9},
            False,
        )
    )
    assert found["bandwidth.step_s"].predicted == pytest.approx(0.12)
    assert found["mbu.step"].measured == pytest.approx(0.8)
    assert not any(name.startswith(("flops.", "mfu.")) for name in found)


def test_a_matrix_product_has_its_formula_and_no_memory_of_a_training() -> None:
    facts = {"flops_per_sample": 2.0 * 1024**3}
    found = by_name(
        training_figures(
            {"matrix_size": 1024, "precision": "fp32"},
            facts,
            signals(samples_per_step=8.0),
            Summary(),
            Peaks(),
            {"copy_bytes_per_s": 1e10},
            False,
        )
    )
    assert found["flops.per_sample"].error_ratio == 0
    assert found["roofline.intensity"].predicted == pytest.approx(1024 / 6)
    assert not any(name.startswith("memory.") for name in found)
