"""The list of tests that CI leaves out (left_out_of_ci.txt) names tests that are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import LEFT_OUT

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", sorted({name.partition("[")[0] for name in LEFT_OUT}))
def test_a_test_that_ci_leaves_out_is_there(name: str) -> None:
    file, _, function = name.partition("::")
    assert f"def {function}(" in (ROOT / file).read_text()
