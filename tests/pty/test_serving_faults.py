"""Faults of a model server on the screen: the message, `q` ends the console at once, and the
snapshot has the verdict.

`python -m benchmarks.serving_faults --ways screen` shows every fault.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks.serving_faults import CASES, Result, measure

FAULTS = ("death in mid-stream",)

SLACK = 3.0
"""Other tests run at the same time. The benchmark holds the limits themselves."""

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("serving faults on the screen")]


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    """The faults at the same time: a console under a fault mostly waits."""
    with ThreadPoolExecutor(len(FAULTS)) as pool:
        found = pool.map(
            lambda case: measure(case, "screen"), (case for case in CASES if case.name in FAULTS)
        )
        return {result.case.name: result for result in found}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_shown_soon_and_q_ends_the_console(
    results: dict[str, Result], name: str
) -> None:
    result = results[name]
    assert not result.wrong(SLACK), f"{result.wrong(SLACK)}\n{result.outputs}"
