"""`gpuconsole run --headless` on loops that make a new DataLoader in each epoch: the fault is
named, and the program computes the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.programs.epochs import KINDS
from tests.matrix import matrix

pytestmark = [pytest.mark.slow, pytest.mark.rates, pytest.mark.xdist_group("epochs")]

PROGRAM = Path(__file__).parent / "programs" / "epochs.py"
SECONDS = 13.0
"""Of the loop. The finding is there when it ends, so it comes within 15 s."""
POINTS = 0.03


@pytest.mark.parametrize("kind", matrix(KINDS, in_ci=("validated",)))
def test_a_starved_loop_is_named_whatever_its_loaders_do(kind: str, tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM), kind]
    words = [
        sys.executable,
        "-m",
        "gpuconsole",
        "run",
        "--headless",
        "--snapshot",
        "snapshot.json",
        "--",
        *command,
        str(SECONDS),
    ]
    done = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = next(text for text in done.stdout.splitlines() if text.startswith("waited "))
    alone = subprocess.run([*command, "3"], capture_output=True, text=True, timeout=60, check=True)
    assert told.split("loss ")[1] == alone.stdout.strip().split("loss ")[1], "the same bits"
    run = json.loads((tmp_path / "snapshot.json").read_text())["runs"][-1]
    firing = [
        finding["rule"]
        for finding in run["findings"]
        if finding["state"] == "fires" and not finding.get("note")
    ]
    assert firing and firing[0].startswith("input."), (
        firing,
        run["signals"].get("data_wait_ratio"),
        done.stderr[-1500:],
    )
    waited = float(told.split()[1])
    phases = run["summary"]["phases_ratio"]
    assert phases["data_wait"] + (phases["eval"] if kind == "validated" else 0.0) == pytest.approx(
        waited, abs=POINTS
    )
