"""Two processes with a simulated card each: collectives between them, and what
DistributedDataParallel calls."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cuda.conftest import Machines

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("simulated pair")]
PROGRAM = Path(__file__).parent / "programs" / "pair.py"


@pytest.fixture(scope="module")
def found(simulated: Machines, tmp_path_factory: pytest.TempPathFactory) -> Any:
    machine, meeting = (
        simulated("card h100", "card h100", "values cpu"),
        tmp_path_factory.mktemp("pair") / "meeting",
    )
    command = [sys.executable, str(PROGRAM), str(meeting)]
    ranks = [
        subprocess.Popen(
            command,
            env=machine.environment(RANK=str(rank), OMP_NUM_THREADS="1"),
            stdout=-1,
            stderr=-1,
            text=True,
        )
        for rank in (0, 1)
    ]
    ends = [rank.communicate(timeout=60) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "".join(
        errors[-2000:] for _, errors in ends
    )
    return json.loads(ends[0][0])


def test_a_collective_begins_when_the_last_card_is_ready(found: Any) -> None:
    assert found["mean"] == 1.5
    assert found["waited_s"] > 0.199, "rank 1 computed for 0.2 s before"
    assert found["issued_s"] < 0.15, "the host does not wait for the cards"


def test_replicas_and_shards_have_the_mean_gradients(found: Any) -> None:
    assert found["sharded"][0] == pytest.approx(found["sharded"][1], rel=1e-4)


def test_only_the_last_bucket_marks_the_end_of_the_backward_pass(found: Any) -> None:
    assert found["last_buckets"] == 1


def test_the_logger_of_distributed_data_parallel_has_times_of_the_stream(found: Any) -> None:
    seconds = found["logged"]
    assert 0 < seconds["forward_compute"] < 0.05 < seconds["backward_compute"] < 0.09
    assert 0.09 < seconds["backward_comm"] < 0.13, "rank 0 waits for rank 1"
