"""`gpuconsole run --headless` on loops over a DataLoader: an iterator in each step, and rows that
are fetched one by one, are named; other loops are not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.agent.test_own_job import PROGRAMS, watched
from tests.matrix import matrix

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("a job")]
NEW_ITERATOR, ROWS = (
    "A new iterator of the DataLoader in every step",
    "Rows of tensors are fetched one by one",
)


@pytest.mark.parametrize(
    "kind", matrix(["each", "once", "full", "rows", "batches"], in_ci=("each", "rows", "full"))
)
def test_what_the_program_does_with_its_loader(kind: str, tmp_path: Path) -> None:
    ran = watched(tmp_path, sys.executable, str(PROGRAMS / "renewed.py"), kind, "12")
    assert ran.code == 0 and ran.out == "done\n", ran.err
    findings = {
        finding["title"]: finding for finding in ran.run["findings"] if finding["state"] == "fires"
    }
    assert (NEW_ITERATOR in findings) == (kind == "each"), findings
    assert (ROWS in findings) == (kind == "rows"), findings
    if kind == "each":
        line = (PROGRAMS / "renewed.py").read_text().splitlines().index(
            "    return next(iter(loader))"
        ) + 1
        assert f"at renewed.py:{line} drawn" in findings[NEW_ITERATOR]["summary"]
