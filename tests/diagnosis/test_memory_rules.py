"""Rules about what fills the memory, in bytes of one process."""

from __future__ import annotations

import pytest

from gpuconsole.diagnosis.engine import evaluate
from gpuconsole.diagnosis.models.collective import sharding_s
from gpuconsole.diagnosis.rule import Case
from gpuconsole.model.finding import Finding
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.run import Run
from gpuconsole.report.session import run_text
from tests.diagnosis.cases import case

GPT: Knobs = {
    "attention": "sdpa",
    "gradient_checkpointing": False,
    "gradient_accumulation_steps": 1,
    "peft": "none",
    "lora_rank": 8,
    "d_model": 64,
    "n_layer": 2,
    "optim": "adamw_fused",
    "nproc": 1,
    "sharding": "none",
    "memory_limit_mb": 1,
}
RULES = ("mem.activation_capped", "mem.state_capped")


def memory(
    parameters: float, activations: float, limit: float, knobs: Knobs | None = None, **more: float
) -> Case:
    """AdamW in fp32: gradients as large as the parameters, states twice that."""
    parts = {
        "parameters": parameters,
        "gradients": parameters,
        "optimizer": 2 * parameters,
        "activations": activations,
        "limit": limit,
    }
    return case(
        knobs={**GPT, **(knobs or {})},
        **{f"memory__{name}_bytes": value for name, value in parts.items()},
        **more,
    )


def fired(a_case: Case) -> dict[str, Finding]:
    return {
        finding.rule: finding
        for finding in evaluate(a_case)
        if finding.state == "fires" and finding.rule in RULES
    }


def test_activations_that_fill_the_limit_are_named_and_checkpointing_is_offered_as_slower() -> None:
    finding = fired(memory(100e3, 600e3, 1050e3))["mem.activation_capped"]
    assert finding.resource == "memory"
    assert finding.recoverable_ratio == pytest.approx(0.9 * 600 / 1050)
    checkpointing = next(
        one for one in finding.suggestions if one.changes == {"gradient_checkpointing": True}
    )
    assert checkpointing.predicted_speedup is not None
    assert checkpointing.predicted_speedup.high < 1
    assert {"batch_size": 8, "gradient_accumulation_steps": 2} in [
        one.changes for one in finding.suggestions
    ]


def test_no_finding_frees_more_than_all_memory() -> None:
    """On a CPU the limit is not enforced: 360 % of memory were recoverable."""
    finding = fired(memory(100e3, 4000e3, 1000e3))["mem.activation_capped"]
    assert finding.recoverable_ratio == pytest.approx(0.9 * 4000 / 4400)
    states = fired(memory(1000e3, 100e3, 1000e3))["mem.state_capped"]
    assert states.recoverable_ratio < 0.8


def test_plain_attention_is_the_first_thing_to_change() -> None:
    finding = fired(
        memory(100e3, 600e3, 1050e3, {"attention": "math"}, probe__attention_sdpa_speedup=1.2)
    )["mem.activation_capped"]
    assert finding.suggestions[0].changes == {"attention": "sdpa"}


def test_what_is_checkpointed_already_is_not_offered_again() -> None:
    finding = fired(
        memory(100e3, 600e3, 1050e3, {"gradient_checkpointing": True, "batch_size": 1})
    )["mem.activation_capped"]
    assert finding.suggestions == ()


def test_states_that_fill_the_limit_are_named_and_adapters_or_8_bits_offered() -> None:
    finding = fired(memory(200e3, 100e3, 1000e3))["mem.state_capped"]
    assert [one.changes for one in finding.suggestions] == [
        {"peft": "lora"},
        {"optim": "adamw_8bit"},
    ]
    adapters = 4 * 16 * 8 * 64 * 2
    assert finding.recoverable_ratio == pytest.approx((600e3 - 4 * adapters) / 1000e3)


def test_several_processes_share_the_states_out() -> None:
    finding = fired(memory(200e3, 100e3, 1000e3, {"nproc": 4, "sharding": "ddp"}))[
        "mem.state_capped"
    ]
    assert [one.changes.get("sharding") for one in finding.suggestions[:3]] == [
        "zero2",
        "zero3",
        "zero1",
    ]
    for suggestion in finding.suggestions[:3]:  # DDP: an all-reduce of the gradients
        traffic = sharding_s(str(suggestion.changes["sharding"]), 1.0, 1.0, 4, 1.0) / sharding_s(
            "ddp", 1.0, 1.0, 4, 1.0
        )
        assert (
            "the same traffic as DDP" if traffic == 1 else f"{traffic:.1f}x the traffic of DDP"
        ) in suggestion.why
    # three quarters of gradients and optimizer state, less FSDP2's shard of the parameters, which
    # stays beside the gathered ones
    assert finding.recoverable_ratio == pytest.approx((0.75 * 600 - 200 / 4) / 1000)
    assert "4P + 16P/4" in finding.suggestions[0].why
    sharded = fired(memory(200e3, 100e3, 1000e3, {"nproc": 4, "sharding": "zero3"}))[
        "mem.state_capped"
    ]
    assert all("sharding" not in one.changes for one in sharded.suggestions)


def test_room_is_no_finding() -> None:
    assert fired(memory(100e3, 600e3, 2000e3)) == {}
    assert fired(memory(200e3, 100e3, 2000e3)) == {}
    assert fired(memory(200e3, 100e3, 1290e3)) == {}  # 900 of 1290: 69.8 %
    assert list(fired(memory(200e3, 100e3, 1280e3))) == ["mem.state_capped"]


def test_an_allocators_peak_counts_if_it_is_more_than_the_parts() -> None:
    assert fired(memory(100e3, 600e3, 1250e3)) == {}
    assert list(fired(memory(100e3, 600e3, 1250e3, memory__allocated_peak_bytes=1150e3))) == [
        "mem.activation_capped"
    ]


def test_only_one_rule_claims_a_full_device() -> None:
    full = memory(100e3, 600e3, 1050e3, {"memory_limit_mb": 0}, memory_used_ratio=0.95)
    firing = [finding.rule for finding in evaluate(full) if finding.state == "fires"]
    assert firing[0] == "mem.activation_capped"
    assert "mem.near_capacity" not in firing
    # the device is full, and not by this run's small share
    own_limit = memory(100e3, 600e3, 1050e3, memory_used_ratio=0.95)
    assert "mem.near_capacity" in [
        finding.rule for finding in evaluate(own_limit) if finding.state == "fires"
    ]


def test_memory_is_told_as_memory_and_comes_before_notes() -> None:
    findings = evaluate(memory(200e3, 100e3, 1000e3))
    assert [finding.rule for finding in findings if finding.state == "fires"] == [
        "mem.state_capped",
        "gpu.compute_bound_healthy",
    ]
    text = run_text(Run("1", "s", "training.gpt", {}, "cpu", findings=findings))
    assert "of memory" in text
    assert "recoverable" not in text
