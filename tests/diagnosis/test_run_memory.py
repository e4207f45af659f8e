"""The memory of our own workloads by their settings: every scenario fits on the cards that people
have."""

from __future__ import annotations

import pytest

from gpuconsole.diagnosis.models.run_memory import CONTEXT_BYTES, PEAKS
from gpuconsole.engine.catalog import scenarios, workloads
from gpuconsole.model.peaks import known_devices, peaks_of

ALLOCATOR_SHARE = 0.97
"""Share of the memory that tensors can take: the caching allocator rounds blocks up and leaves
gaps."""


def test_every_workload_has_a_model() -> None:
    assert PEAKS.keys() == workloads().keys()


@pytest.mark.parametrize(
    "name", [name for name in known_devices() if (peaks_of(name).memory_bytes or 0) >= 22e9]
)
def test_every_scenario_fits(name: str) -> None:
    memory = peaks_of(name).memory_bytes or 0
    for scenario in scenarios()[0].values():
        knobs = scenario.knobs_for("gpu", memory)
        limit = int(knobs.get("memory_limit_mb", 0)) * 2.0**20 or memory
        needed = PEAKS[scenario.workload.name](knobs)
        assert needed is not None and 0 < needed <= ALLOCATOR_SHARE * min(
            limit, memory - CONTEXT_BYTES
        ), scenario.name


def test_settings_that_do_not_fit_are_found() -> None:
    for scenario, changes in (
        ("finetune-lora", {"d_model": 4096, "n_layer": 24, "batch_size": 2}),
        ("fragmented-memory", {"batch_size": 1024}),
    ):
        found = scenarios()[0][scenario]
        needed = PEAKS[found.workload.name]({**found.knobs_for("gpu", 80e9), **changes})
        assert needed is not None and needed > ALLOCATOR_SHARE * (80e9 - CONTEXT_BYTES), scenario
