"""What the scenarios should show on the cards that people have, by arithmetic."""

from __future__ import annotations

import msgspec
import pytest

from gpuconsole.engine.catalog import scenarios, workloads
from gpuconsole.expected.card import Card
from gpuconsole.expected.check import TESTS, Check, check
from gpuconsole.expected.works import LENGTHS_OF, WORKS
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.peaks import known_devices, peaks_of
from gpuconsole.model.scenario import Scenario

CARDS = ("NVIDIA L4", "NVIDIA GeForce RTX 4090", "NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3", "NVIDIA H200")
NOT_PREDICTED = {"fragmented-memory": "no model predicts them"}
"""Scenarios whose lesson no model predicts, with the reason that the check states."""
SCENARIOS = scenarios()[0]


def card(name: str, count: int = 0) -> Card:
    peaks = peaks_of(name)
    assert peaks.memory_bytes
    return Card(name, peaks.memory_bytes, peaks, count)


@pytest.mark.parametrize("name", CARDS)
def test_every_scenario_fits_and_teaches_what_it_says(name: str) -> None:
    for scenario in SCENARIOS.values():
        found = check(scenario, card(name))
        assert found.fits, f"{scenario.name}: {found.why}"
        assert found.step_s and found.step_s > 0 and found.limit
        if scenario.name in NOT_PREDICTED:
            assert found.teaches is None and NOT_PREDICTED[scenario.name] in found.why
        else:
            assert found.teaches, f"{scenario.name}: {found.why}"


@pytest.mark.parametrize("name", known_devices())
def test_no_scenario_runs_out_of_memory_on_a_device_from_24_gb_on(name: str) -> None:
    peaks = peaks_of(name)
    if (peaks.memory_bytes or 0) < 24e9:
        return
    for scenario in SCENARIOS.values():
        found = check(scenario, Card(name, peaks.memory_bytes or 0, peaks))
        assert found.fits, f"{scenario.name}: {found.why}"
        assert found.why


def test_every_workload_and_every_taught_rule_has_a_model() -> None:
    assert WORKS.keys() == workloads().keys()
    assert {scenario.teaches.rule for scenario in SCENARIOS.values() if scenario.teaches.rule} <= TESTS.keys()


def with_knobs(scenario: str, **changes: object) -> Scenario:
    """A scenario with other values on every GPU."""
    values: Knobs = {**SCENARIOS[scenario].gpu, **changes}  # type: ignore[dict-item]
    return msgspec.structs.replace(SCENARIOS[scenario], gpu=values, gpu_sizes={})


def on_h100(scenario: str, **changes: object) -> Check:
    return check(with_knobs(scenario, **changes), card("NVIDIA H100 80GB HBM3"))


@pytest.mark.parametrize(
    ("scenario", "changes", "said"),
    [
        ("train-gpt", {"seq_len": 1024, "d_model": 768, "n_layer": 12, "batch_size": 16}, "MFU 33 %"),
        ("finetune-lora", {"d_model": 4096, "n_layer": 24, "batch_size": 2}, "out of memory"),
        ("fragmented-memory", {"batch_size": 1024}, "out of memory"),
        ("dynamic-shapes", {"batch_size": 4096}, "5 lengths"),
        ("quantized", {"d_model": 1024, "n_layer": 8}, "share of the memory bandwidth 3 %"),
        ("vision-healthy", {"batch_size": 256, "width": 64, "h2d_stream": False}, "copies to the GPU take"),
        ("serve-chat", {"d_model": 2048, "n_layer": 16}, "the GPU computes 52 %"),
        ("serve-long", {"d_model": 2048, "n_layer": 16, "concurrency": 4, "output_tokens": 64}, "prefill"),
        ("long-sequence", {"seq_len": 16384, "d_model": 2048, "memory_limit_mb": 53500}, "memory used 86 %"),
    ],
)
def test_settings_that_do_not_teach_are_found(scenario: str, changes: dict[str, object], said: str) -> None:
    """Values that once were those of the scenarios."""
    found = on_h100(scenario, **changes)
    assert found.teaches is False
    assert said in found.why


def test_train_gpt_is_healthy_on_the_cards_for_training() -> None:
    """At the width of a 7B model. KempnerForge publishes an MFU of 57.8 % at this width on one H200, with all activations recomputed."""
    for name in ("NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA A100-SXM4-40GB"):
        found = check(SCENARIOS["train-gpt"], card(name))
        assert found.teaches and found.limit == "arithmetic"
        assert int(found.why.split("%")[0].removeprefix("MFU ")) >= 50, found.why


def test_on_a_compiled_model_the_rule_lacks_a_probe() -> None:
    found = on_h100("train-gpt", torch_compile="default")
    assert found.teaches is None and "does not run on a compiled model" in found.why


def test_a_machine_with_too_few_cards_is_told_so() -> None:
    found = check(SCENARIOS["tensor-parallel"], card("NVIDIA H200", count=1))
    assert not found.fits and found.teaches is False
    assert found.why == "needs 8 GPUs, and this machine has 1 of them"
    assert check(SCENARIOS["tensor-parallel"], card("NVIDIA H200", count=8)).fits


def test_a_card_without_a_peak_at_this_precision_has_no_prediction() -> None:
    found = check(SCENARIOS["train-gpt"], card("Tesla T4"))
    assert found.teaches is None and found.memory_bytes is None
    assert found.why == "no peak of this card is known at precision bf16"


def test_lengths_of_verses_are_those_of_the_text() -> None:
    torch = pytest.importorskip("torch")
    from gpuconsole.workloads.training.ragged import Verses

    lengths = Verses().lengths
    for size, counted in LENGTHS_OF.items():
        generator = torch.Generator().manual_seed(0)
        longest = {int(lengths[torch.randint(len(lengths), (size,), generator=generator)].max()) for _ in range(50)}
        assert len(longest) == counted
