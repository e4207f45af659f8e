"""`gpuconsole run --headless` on loops that wait for data for a cause that more workers, or
processes that stay, would not mend; and on one whose waits are short."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.matrix import matrix

pytestmark = [pytest.mark.slow, pytest.mark.rates, pytest.mark.xdist_group("waits")]

PROGRAM = Path(__file__).parent / "programs" / "ordered.py"


def firing(tmp_path: Path, kind: str, workers: int) -> list[dict[str, Any]]:
    """The findings that fire and name a fault, after 12 s."""
    words = [
        sys.executable,
        "-m",
        "gpuconsole",
        "run",
        "--headless",
        "--snapshot",
        "snapshot.json",
        "--",
    ]
    command = [*words, sys.executable, str(PROGRAM), kind, str(workers), "12"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    run = json.loads((tmp_path / "snapshot.json").read_text())["runs"][-1]
    return [
        finding
        for finding in run["findings"]
        if finding["state"] == "fires" and not finding.get("note")
    ]


@pytest.mark.parametrize("workers", matrix([0, 1], in_ci=(0,)))
def test_a_sampler_that_sorts_all_samples_is_named(workers: int, tmp_path: Path) -> None:
    first = firing(tmp_path, "ordered", workers)[0]
    assert (first["rule"], first["title"]) == (
        "input.epoch_restart",
        "The sampler delays the start of every epoch",
    )
    assert not first.get("suggestions"), "neither workers nor processes that stay shorten it"


@pytest.mark.matrix
def test_short_waits_have_a_cause_soon(tmp_path: Path) -> None:
    assert firing(tmp_path, "short", 0)[0]["rule"].startswith("input.")
