"""The whole program on a machine with simulated cards."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.cuda.conftest import Machines

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).parents[1] / "agent" / "programs" / "on_gpu.py"


def test_a_run_is_on_the_simulated_card_and_says_so(
    simulated: Machines, cli: Cli, tmp_path: Path
) -> None:
    machine = simulated("card h100", "values none")
    shown = cli(
        "run",
        "data-starved",
        "--headless",
        "--duration",
        "2",
        "--snapshot",
        "snap.json",
        env=machine.environment(),
    )
    assert shown.returncode == 0, shown.stderr
    assert "gpu:0  simulated NVIDIA H100 80GB HBM3\n" in shown.stdout
    assert "run 1  data-starved  on gpu:0  finished" in shown.stdout
    snapshot = json.loads((tmp_path / "snap.json").read_text())
    assert snapshot["environment"]["devices"][0]["name"] == "simulated NVIDIA H100 80GB HBM3"
    run = snapshot["runs"][0]
    assert run["device"] == "gpu:0" and run["knobs"]["precision"] == "bf16"
    assert (
        abs(sum(run["summary"]["phases_ratio"].values()) - 1) < 1e-6
        and run["summary"]["phases_ratio"]["data_wait"] > 0.5
    )
    assert max(run["series"]["gpu.hbm_used_bytes{device=gpu:0}"]["v"]) > 1e9, (
        "the driver reports the worker's memory"
    )


def test_the_user_chooses_the_card_by_the_environment(
    simulated: Machines, cli: Cli, tmp_path: Path
) -> None:
    machine = simulated("card l4", "card h100", "values none")
    env = machine.environment(CUDA_VISIBLE_DEVICES="1")
    shown = cli(
        "run", "chatty-logging", "--headless", "--duration", "1", "--snapshot", "snap.json", env=env
    )
    assert shown.returncode == 0, shown.stderr
    run = json.loads((tmp_path / "snap.json").read_text())["runs"][0]
    assert run["device"] == "gpu:1", "the second card by NVML, the only one for CUDA"
    used = {
        card: max(run["series"][f"gpu.hbm_used_bytes{{device=gpu:{card}}}"]["v"]) for card in (0, 1)
    }
    assert used[0] == 0 and used[1] > 1e9, "it was measured where it ran"
    refused = cli("run", "chatty-logging", "--device", "gpu:0", "--headless", env=env)
    assert (
        refused.returncode == 2
        and "gpu:0 is hidden from CUDA programs by CUDA_VISIBLE_DEVICES=1" in refused.stderr
    )


def test_a_job_on_cores_of_another_node_than_its_card_is_told_so(
    simulated: Machines, cli: Cli, tmp_path: Path
) -> None:
    """The driver says which cores are beside the card; the agent says on which cores the job may
    run."""
    elsewhere = next(
        (core for core in range(63, -1, -1) if core not in os.sched_getaffinity(0)), None
    )
    if elsewhere is None:
        pytest.skip("this process may run on each of the first 64 cores")
    found = {}
    for name, cores in (
        ("beside", sum(2**core for core in os.sched_getaffinity(0) if core < 64)),
        ("elsewhere", 2**elsewhere),
    ):
        machine = simulated(f"card l4 cores={cores}", "values none")
        job = ("--", sys.executable, str(PROGRAM), "40")
        shown = cli(
            "run",
            "--headless",
            "--snapshot",
            f"{name}.json",
            *job,
            env=machine.environment(STAMPS=str(tmp_path / "stamps.json")),
        )
        assert shown.returncode == 0, shown.stderr
        findings = json.loads((tmp_path / f"{name}.json").read_text())["runs"][0]["findings"]
        found[name] = next(finding for finding in findings if finding["rule"] == "host.numa_node")
    assert found["beside"]["state"] == "clear" and found["elsewhere"]["state"] == "fires"
    own = ",".join(str(core) for core in sorted(os.sched_getaffinity(0)))
    assert f"NUMA node 0 with cores {elsewhere}" in found["elsewhere"]["evidence"][0]["source"]
    assert (
        len(own) > 3
        or f"cores {own.replace(',', '-')}" in found["elsewhere"]["evidence"][0]["source"]
    )
    assert "numactl --cpunodebind=0 --membind=0" in found["elsewhere"]["summary"]


@pytest.mark.slow
def test_the_ranks_of_a_run_get_the_cards_that_the_user_chose(
    simulated: Machines, cli: Cli, tmp_path: Path
) -> None:
    machine = simulated("card l4", "card h100", "card h100", "values none")
    small = [
        word
        for setting in ("nproc=2", "d_model=256", "n_layer=2", "batch_size=2")
        for word in ("--set", setting)
    ]
    env = machine.environment(CUDA_VISIBLE_DEVICES="0,2,1")
    shown = cli(
        "run",
        "ddp-small-batch",
        *small,
        "--device",
        "gpu:2",
        "--headless",
        "--duration",
        "1",
        "--snapshot",
        "snap.json",
        env=env,
    )
    assert shown.returncode == 0, shown.stderr
    run = json.loads((tmp_path / "snap.json").read_text())["runs"][0]
    assert run["device"] == "gpu:2" and run["knobs"]["nproc"] == 2
    used = [
        max(run["series"][f"gpu.hbm_used_bytes{{device=gpu:{card}}}"]["v"]) for card in range(3)
    ]
    assert used[1] == 0 and used[2] > 4e8 and used[0] > 4e8, (
        "the card that --device names, and then the first visible card"
    )
