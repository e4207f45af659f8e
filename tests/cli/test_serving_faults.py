"""Faults of a model server through the real command line: the message, the exit code, the verdict,
and the end in time.

`python -m benchmarks.serving_faults` has more faults and prints what was said.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks.serving_faults import CASES, Result, measure

DURATION_S = 6.0
FAULTS = (
    "too long prompt, all",
    "death in mid-stream",
    "silence before the first byte",
    "silence in mid-stream",
    "HTTP 500 on half of the requests",
    "http:// to a TLS port",
    "DNS failure",
    "wrong model",
    "one character per token",
)

SLACK = 3.0
"""Other tests run at the same time. The benchmark holds the limits themselves."""

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("serving faults")]


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    """All faults, several at a time: a console under a fault mostly waits."""
    with ThreadPoolExecutor(3) as pool:
        found = pool.map(
            lambda case: measure(case, "headless", DURATION_S),
            (case for case in CASES if case.name in FAULTS),
        )
        return {result.case.name: result for result in found}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_soon_and_the_run_ends_with_the_right_verdict(
    results: dict[str, Result], name: str
) -> None:
    result = results[name]
    assert not result.wrong(SLACK), f"{result.wrong(SLACK)}\n{result.outputs}"
