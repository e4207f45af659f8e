"""`gpuconsole run -- torchrun --nproc-per-node=2 ...`: two processes with FSDP2 over gloo. Torch's
own record of collectives says which process is late."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.agent.test_own_job import Ran, plain, watched

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("exchanging")]

PROGRAM = Path(__file__).parent / "programs" / "sharded_late.py"
JOB_S = 20
"""A read every 4 s at first."""


def torchrun(kind: str, seconds: float) -> tuple[str, ...]:
    return (
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=2",
        str(PROGRAM),
        kind,
        str(seconds),
    )


def job(folder: Path, kind: str, environment: dict[str, str] | None = None) -> Ran:
    ran = watched(folder, *torchrun(kind, JOB_S), environment=environment)
    assert ran.code == 0, ran.err
    return ran


@pytest.mark.rates
def test_the_late_process_of_a_sharded_job_is_named_with_the_collective(tmp_path: Path) -> None:
    ran = job(tmp_path, "late")
    signals, findings = (
        ran.run["signals"],
        {finding["rule"]: finding for finding in ran.run["findings"]},
    )
    straggler = findings["comm.straggler"]
    assert straggler["state"] == "fires"
    assert "rank 1" in straggler["summary"] and "all_gather" in straggler["summary"]
    assert signals["comm.slowest_rank"]["value"] == 1
    assert signals["comm.late_s"]["value"] == pytest.approx(0.04, rel=0.25)
    layers, shards = 4, 256 * 256 + 256
    assert signals["comm.all_gather_bytes"]["value"] == pytest.approx(
        signals["comm.all_gather_calls"]["value"] * shards * 4, rel=0.01
    )
    assert signals["comm.all_gather_calls"]["value"] >= layers
    assert "comm.collectives" not in ran.run["unavailable"]


@pytest.mark.rates
def test_processes_that_are_even_are_not_accused_and_compute_as_alone(tmp_path: Path) -> None:
    ran = job(tmp_path, "even")
    alone = plain(tmp_path, *torchrun("even", 4))
    losses, others = ran.out.splitlines()[0].split(), alone.out.split()
    both = min(len(losses), len(others))
    assert alone.code == 0 and both >= 20 and losses[:both] == others[:both]
    findings = {finding["rule"]: finding for finding in ran.run["findings"]}
    assert findings["comm.straggler"]["state"] == "clear"


def test_without_a_record_the_reason_is_given(tmp_path: Path) -> None:
    ran = job(tmp_path, "late", {"TORCH_FR_BUFFER_SIZE": "0"})
    assert "comm.slowest_rank" not in ran.run["signals"]
    assert "TORCH_FR_BUFFER_SIZE" in ran.run["unavailable"]["comm.collectives"]
