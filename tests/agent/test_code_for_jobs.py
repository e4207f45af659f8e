"""The code that a finding about a job shows to copy fits the program: an IterableDataset, no
DataLoader, a framework that runs the loop."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.agent.test_own_job import PROGRAMS, Ran, watched
from tests.matrix import matrix

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("a job")]
PROGRAM = PROGRAMS / "streamed.py"
LOOP = """
import time, torch
def train(batches, seconds):
    model = torch.nn.Linear(32, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    end = time.monotonic() + seconds
    for x in batches:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        if time.monotonic() > end:
            break
"""


def codes(ran: Ran) -> list[str]:
    assert ran.code == 0, ran.err
    suggestions: list[dict[str, Any]] = [
        entry for finding in ran.run["findings"] for entry in finding.get("suggestions", ())
    ]
    return [entry["code"] for entry in suggestions if "num_workers" in entry["changes"]]


@pytest.mark.parametrize("kind", matrix(["whole", "divided"], in_ci=("whole",)))
def test_workers_for_a_stream_are_shown_with_the_lines_that_divide_it(
    kind: str, tmp_path: Path
) -> None:
    shown = codes(watched(tmp_path, sys.executable, str(PROGRAM), kind, "7"))
    assert shown and all("num_workers=" in code for code in shown)
    assert all(("get_worker_info()" in code) == (kind == "whole") for code in shown), shown


def test_a_program_without_a_loader_is_told_no_line_of_one(tmp_path: Path) -> None:
    ran = watched(tmp_path, sys.executable, str(PROGRAM), "lines", "6")
    assert codes(ran) == [] and "DataLoader" not in ran.run["unavailable"]["knob.batch_size"]


def test_the_framework_that_runs_the_loop_is_known(tmp_path: Path) -> None:
    package = tmp_path / "lightning" / "pytorch"
    package.mkdir(parents=True)
    for file, text in (
        (package.parent / "__init__.py", ""),
        (package / "__init__.py", ""),
        (package / "loops.py", LOOP),
    ):
        file.write_text(text)
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    ran = watched(
        tmp_path,
        sys.executable,
        str(PROGRAM),
        "divided",
        "5",
        "framework",
        environment={"PYTHONPATH": path},
    )
    assert ran.code == 0, ran.err
    assert ran.run["job"]["loop"] == "lightning"
