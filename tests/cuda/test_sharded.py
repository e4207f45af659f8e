"""FSDP 2 in two processes on simulated cards, whose hosts run ahead of the collectives as with
NCCL: `gpuconsole run -- torchrun ...`. No probe runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cuda.conftest import Machines
from tests.fakes.cuda.machine import SimulatedMachine

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("simulated pair")]
PROGRAM = Path(__file__).parent / "programs" / "sharded.py"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2")
ALONE_STEPS = 80


def run(machine: SimulatedMachine, folder: Path, *command: str) -> str:
    environment = machine.environment(OMP_NUM_THREADS="1")
    done = subprocess.run(
        command,
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def job(machine: SimulatedMachine, folder: Path, kind: str, steps: int) -> dict[str, Any]:
    watched = (
        sys.executable,
        "-m",
        "gpuconsole",
        "run",
        "--headless",
        "--snapshot",
        "snapshot.json",
        "--",
    )
    run(machine, folder, *watched, *TORCHRUN, str(PROGRAM), kind, str(steps))
    return json.loads((folder / "snapshot.json").read_text())["runs"][-1]  # type: ignore[no-any-return]


@pytest.mark.matrix
def test_gathers_that_no_computation_hides_are_named_and_are_no_slow_host(
    simulated: Machines, tmp_path: Path
) -> None:
    machine = simulated("card l4 demand_w=0", "card l4 demand_w=0", "values none")
    alone_s = float(
        run(machine, tmp_path, sys.executable, str(PROGRAM), "exposed", str(ALONE_STEPS))
    )
    sharded_s = float(run(machine, tmp_path, *TORCHRUN, str(PROGRAM), "exposed", str(ALONE_STEPS)))
    found = job(machine, tmp_path, "exposed", 300)
    findings = {finding["rule"]: finding for finding in found["findings"]}
    assert findings["comm.exposed"]["state"] == "fires"
    assert (
        findings["host.launch_bound"]["state"] == "clear"
        and findings["host.sync_stall"]["state"] == "clear"
    )
    exposed_s = found["signals"]["comm.exposed_s"]["value"]
    assert 0.1 * sharded_s < exposed_s < 1.1 * (sharded_s - alone_s), (
        "a lower bound of what the exchange adds to a step"
    )


@pytest.mark.rates
def test_gathers_that_computation_hides_accuse_nobody(simulated: Machines, tmp_path: Path) -> None:
    # a step of 90 ms: slow hosts run ahead of the device too
    found = job(
        simulated("card h100", "card h100", "values none", "slowdown 4"), tmp_path, "hidden", 200
    )
    assert [
        finding["rule"]
        for finding in found["findings"]
        if finding["state"] == "fires" and finding["rule"].startswith(("comm.", "host.l", "host.s"))
    ] == []
    assert found["ranks"][0]["phases_ratio"]["comm"] < 0.1
