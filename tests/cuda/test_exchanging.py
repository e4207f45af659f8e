"""`gpuconsole run -- torchrun --nproc-per-node=2 ...` on two simulated L4, whose link carries 10
GB/s: DistributedDataParallel exchanges its gradients over it. No probe runs. The program writes the
device's own times (programs/exchanging.py)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cuda.conftest import Machines

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("simulated pair")]

PROGRAM = Path(__file__).parent / "programs" / "exchanging.py"
STEPS, SKIPPED = {"exposed": 1800, "hidden": 600, "straggler": 600}, 10
"""The first hundred steps, in which DDP has timed only its first iterations, shall be a small
part."""
POINTS = 0.05
"""The agent samples some steps, DDP times each 100th iteration, and the host of the simulated
device shares its cores with other tests."""


class Job(NamedTuple):
    """A finished job: its run in the snapshot, its conclusions by rule (the first one first), and
    the share of the exposed exchange in the steps of each card."""

    run: dict[str, Any]
    findings: dict[str, dict[str, Any]]
    exposed: list[float]

    @property
    def first(self) -> str:
        return next(
            (
                rule
                for rule, finding in self.findings.items()
                if finding["state"] == "fires" and not rule.startswith("host.")
            ),
            "",
        )

    def comm(self, rank: int) -> float:
        return float(self.run["ranks"][rank]["phases_ratio"]["comm"])


def job(simulated: Machines, folder: Path, kind: str) -> Job:
    machine = simulated("card l4", "card l4", "values none")
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
    words += [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=2",
        str(PROGRAM),
        kind,
        str(STEPS[kind]),
    ]
    environment = machine.environment(OMP_NUM_THREADS="1")
    done = subprocess.run(
        words, env=environment, cwd=folder, capture_output=True, text=True, timeout=270, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    run = json.loads((folder / "snapshot.json").read_text())["runs"][-1]
    exposed = []
    for rank in (0, 1):
        times = json.loads((folder / f"{kind}.rank{rank}.json").read_text())
        exposed.append(sum(times["exposed_s"][SKIPPED:]) / sum(times["step_s"][SKIPPED:]))
    return Job(run, {finding["rule"]: finding for finding in run["findings"]}, exposed)


@pytest.mark.rates
def test_an_exchange_over_a_slow_link_is_named_and_is_a_phase(
    simulated: Machines, tmp_path: Path
) -> None:
    found = job(simulated, tmp_path, "exposed")
    assert found.run["device"].startswith("gpu")
    assert found.first == "comm.exposed"
    changes = [
        suggestion["changes"] for suggestion in found.findings["comm.exposed"]["suggestions"]
    ]
    assert changes == [{"gradient_accumulation_steps": 4}, {"comm_hook": "bf16"}]
    assert (
        found.findings["comm.straggler"]["state"]
        == found.findings["comm.slow_link"]["state"]
        == "clear"
    )
    for rank in (0, 1):
        assert found.exposed[rank] > 0.5
        assert found.comm(rank) == pytest.approx(found.exposed[rank], abs=POINTS)


@pytest.mark.matrix
def test_an_exchange_that_computation_hides_is_no_finding(
    simulated: Machines, tmp_path: Path
) -> None:
    found = job(simulated, tmp_path, "hidden")
    assert {
        finding["state"] for rule, finding in found.findings.items() if rule.startswith("comm.")
    } == {"clear"}
    for rank in (0, 1):
        assert found.comm(rank) == pytest.approx(found.exposed[rank], abs=POINTS)


@pytest.mark.matrix
def test_the_card_that_the_other_waits_for_is_named(simulated: Machines, tmp_path: Path) -> None:
    found = job(simulated, tmp_path, "straggler")
    assert (
        found.first == "comm.straggler" and "rank 1" in found.findings["comm.straggler"]["summary"]
    )
    assert found.exposed[0] > 0.3 > found.exposed[1]
    for rank in (0, 1):
        assert found.comm(rank) == pytest.approx(found.exposed[rank], abs=POINTS)
