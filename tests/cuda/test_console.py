"""The whole program on a machine with simulated cards."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conftest import Cli
from tests.cuda.conftest import Machines


def test_a_run_is_on_the_simulated_card_and_says_so(simulated: Machines, cli: Cli, tmp_path: Path) -> None:
    machine = simulated("card h100", "values none")
    shown = cli("run", "data-starved", "--headless", "--duration", "4", "--snapshot", "snap.json", env=machine.environment())
    assert shown.returncode == 0, shown.stderr
    assert "run 1  data-starved  on gpu:0  finished" in shown.stdout
    snapshot = json.loads((tmp_path / "snap.json").read_text())
    assert snapshot["environment"]["devices"][0]["name"] == "simulated NVIDIA H100 80GB HBM3"
    run = snapshot["runs"][0]
    assert run["device"] == "gpu:0" and run["knobs"]["precision"] == "bf16"
    assert abs(sum(run["summary"]["phases_ratio"].values()) - 1) < 1e-6 and run["summary"]["phases_ratio"]["data_wait"] > 0.5
    assert max(run["series"]["gpu.hbm_used_bytes{device=gpu:0}"]["v"]) > 1e9, "the driver reports the worker's memory"
