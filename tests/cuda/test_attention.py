"""A user's GPT whose attention is written out, and the same with torch's attention: what the
finding says of each."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.cuda.conftest import Machines
from tests.matrix import matrix

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).parents[2] / "benchmarks" / "own_job" / "gpu_jobs" / "script.py"
WRITTEN_OUT = "@ v"


@pytest.mark.parametrize("attention", matrix(["math", "sdpa"], in_ci=["math"]))
def test_attention_that_is_written_out_is_the_cause_and_not_its_elementwise_operations(
    simulated: Machines, cli: Cli, tmp_path: Path, attention: str
) -> None:
    line = next(
        number
        for number, text in enumerate(PROGRAM.read_text().splitlines(), 1)
        if text.endswith(WRITTEN_OUT)
    )
    env = simulated("card h100", "values none").environment(OMP_NUM_THREADS="1")
    options = f"--attention {attention} --batch 8 --seq 2048 --layers 4 --seconds 10".split()
    shown = cli(
        "run",
        "--headless",
        "--snapshot",
        "snap.json",
        "--",
        sys.executable,
        str(PROGRAM),
        *options,
        env=env,
    )
    assert shown.returncode == 0, shown.stderr
    run = json.loads((tmp_path / "snap.json").read_text())["runs"][0]
    findings = {finding["rule"]: finding for finding in run["findings"]}
    found, moved = findings["gpu.attention_math"], run["signals"]["attention.scores_bytes"]["value"]
    if attention == "sdpa":
        assert found["state"] == "clear" and moved == 0
        return
    top = next(
        finding
        for finding in run["findings"]
        if finding["state"] == "fires" and not finding.get("note")
    )
    assert top is found, top
    assert f"attention is written out at script.py:{line}: " in found["summary"]
    assert findings["gpu.elementwise_membw"]["state"] != "fires"
