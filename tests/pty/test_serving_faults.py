"""Faults of a model server on the screen: a message within 5 s, `q` ends the console at once, and the snapshot has the verdict.

`python -m benchmarks.serving_faults --ways screen` shows every fault.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks.serving_faults import CASES, Result, measure

FAULTS = ("death in mid-stream", "silence in mid-stream", "http:// to a TLS port")

pytestmark = pytest.mark.xdist_group("serving faults on the screen")


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    """The faults at the same time: a console under a fault mostly waits."""
    with ThreadPoolExecutor(len(FAULTS)) as pool:
        found = pool.map(lambda case: measure(case, "screen"), (case for case in CASES if case.name in FAULTS))
        return {result.case.name: result for result in found}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_shown_soon_and_q_ends_the_console(results: dict[str, Result], name: str) -> None:
    result = results[name]
    assert not result.wrong(), f"{result.wrong()}\n{result.outputs}"
