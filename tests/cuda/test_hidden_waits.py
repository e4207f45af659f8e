"""A wait for the GPU in a function that nobody times: the finding names its line and function from
stack samples."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.cuda.conftest import Machines

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).parent / "programs" / "masked_loss.py"
MASK = "kept = out[keep]"


def test_the_line_of_a_masked_loss_is_named_and_not_that_of_the_numbers_that_are_read_after_it(
    simulated: Machines, cli: Cli, tmp_path: Path
) -> None:
    """The six numbers are there once the mask is known. The agent times the calls that read them,
    and not the mask."""
    line = next(
        number for number, text in enumerate(PROGRAM.read_text().splitlines(), 1) if MASK in text
    )
    machine = simulated("card h100", "values none")
    env = machine.environment(OMP_NUM_THREADS="1")
    shown = cli(
        "run",
        "--headless",
        "--snapshot",
        "snap.json",
        "--",
        sys.executable,
        str(PROGRAM),
        "12",
        env=env,
    )
    assert shown.returncode == 0, shown.stderr
    run = json.loads((tmp_path / "snap.json").read_text())["runs"][0]
    finding = next(finding for finding in run["findings"] if finding["rule"] == "host.sync_stall")
    assert run["signals"]["sync.calls"]["value"] == 6
    assert finding["state"] == "fires", finding
    assert "6 times or more per step, " in finding["summary"]
    assert f"mostly in masked_loss.py:{line} masked_loss, called by " in finding["summary"]
    assert "by stack samples" in finding["summary"]
