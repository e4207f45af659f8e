"""Each common fault is on top on each card, and the healthy job that looks like it is accused on
none."""

from __future__ import annotations

import pytest

from tests.diagnosis.common_faults import COLUMNS, FAULTS, Card, Fault
from tests.diagnosis.gpu_jobs import watched

CELLS = [
    pytest.param(fault, card, id=f"{fault.name}, {card.short}")
    for fault in FAULTS
    for card in COLUMNS
]


@pytest.mark.parametrize(("fault", "card"), CELLS)
def test_the_fault_is_on_top_and_never_called_healthy(fault: Fault, card: Card) -> None:
    seen = watched(fault.job(card), fault.probes)
    assert seen.faults and seen.faults[0] in fault.rules
    assert not [rule for rule in seen.notes if rule.endswith("_healthy")]
    assert (seen.run.summary.mfu_ratio or 0.0) <= 1


@pytest.mark.parametrize(("fault", "card"), CELLS)
def test_a_healthy_job_that_looks_like_it_is_not_accused(fault: Fault, card: Card) -> None:
    seen = watched(fault.twin(card), fault.probes)
    assert seen.faults == []
    assert (seen.run.summary.mfu_ratio or 0.0) <= 1
