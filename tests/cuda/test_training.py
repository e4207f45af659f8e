"""The training loop on a simulated card: its step breakdown, its waits, its memory, and probes that
change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cuda.conftest import Machines, run_script

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("simulated training")]
PROGRAM = Path(__file__).parent / "programs" / "training.py"


@pytest.fixture(scope="module")
def found(simulated: Machines) -> Any:
    machine = simulated("card h100", "values cpu")
    return run_script(machine, PROGRAM, SIMULATED_CUDA_SYNCS=str(machine.syncs))


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_the_account_is_the_time_of_the_kernels(found: Any, precision: str) -> None:
    one = found["account"][precision]
    assert one["issued_s"] < 0.8 * one["whole_s"], "the host was ahead"
    assert one["account_s"] == pytest.approx(one["kernels_s"], rel=0.01)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_steady_step_waits_for_nothing(found: Any, precision: str) -> None:
    assert found["account"][precision]["syncs"] == []


def test_the_host_is_at_most_a_third_of_a_second_ahead(found: Any) -> None:
    assert found["ahead"]["queued_s"] <= 0.3 and found["ahead"]["steps"] == 20


@pytest.mark.parametrize("workload", ["gpt", "churn"])
def test_probes_leave_everything_as_it_was(found: Any, workload: str) -> None:
    changed = found["changed"][workload]
    assert changed.keys() >= {
        "cached_batch",
        "batch_elasticity",
        "memory_parts",
        "held_out_loss",
        "launch",
        "h2d_copies",
    }
    assert {probe: parts for probe, parts in changed.items() if parts} == {}


def test_the_peak_of_reserved_memory_survives_a_probe(found: Any) -> None:
    peaks = found["peaks"]
    assert peaks["reported"] == peaks["before"] > 200e6
    assert peaks["parts"] > 0


def test_the_peak_is_read_without_sorting_all_figures(found: Any) -> None:
    assert found["reads"] == ["memory_stats_as_nested_dict"]


def test_the_reference_rates_are_measured_beside_a_workload_that_fills_the_memory(
    found: Any,
) -> None:
    assert found["product"] > 0 and found["copy"] > 0
