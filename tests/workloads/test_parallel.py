"""DDP, ZeRO 1 to 3, comm hooks and tensor parallelism on two real processes: the same training, the
bytes that the models predict."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from gpuconsole.diagnosis.models.inputs import first_positions, gpt_shape, gpt_tensors
from gpuconsole.diagnosis.models.memory import states
from gpuconsole.engine.catalog import workloads
from tests.workloads import parallel_modes

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("parallel")]
Found = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What both processes report of each way, by rank."""
    knobs = json.dumps(workloads()["training.gpt"].knobs)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "tests.workloads.parallel_modes",
    ]
    done = subprocess.run(
        [*command, knobs, str(tmp_path_factory.mktemp("ranks"))],
        capture_output=True,
        text=True,
        timeout=270,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: Found = {}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            one = json.loads(line)
            found.setdefault(one["way"], []).append(one)
    return found


@pytest.mark.parametrize("way", ["zero1", "zero2", "zero3"])
def test_sharding_trains_as_ddp_does(ways: Found, way: str) -> None:
    assert ways[way][0]["losses"] == pytest.approx(ways["ddp"][0]["losses"], rel=1e-4)


def test_zero1_hands_the_optimizer_all_its_settings(ways: Found) -> None:
    assert ways["zero1 sgd"][0]["losses"] == pytest.approx(ways["ddp sgd"][0]["losses"], rel=1e-4)
    assert ways["zero1 sgd"][0]["optimizer"] > 0


def test_a_sharded_optimizer_changes_its_kind_and_keeps_its_moments(ways: Found) -> None:
    for found in ways["another optimizer"]:
        assert (found["seen"], found["fused"]) == ([[2.0], [3.0]], True)


@pytest.mark.parametrize(
    ("way", "tolerance"), [("bf16 hook", 0.01), ("fp16 hook", 0.01), ("powersgd", 0.05)]
)
def test_compressed_gradients_train_nearly_as_well(ways: Found, way: str, tolerance: float) -> None:
    assert ways[way][0]["losses"][: parallel_modes.STEPS] == pytest.approx(
        ways["ddp"][0]["losses"], rel=tolerance
    )


def test_powersgd_still_learns_once_it_compresses(ways: Found) -> None:
    losses = ways["powersgd"][0]["losses"]
    assert (
        len(losses) == parallel_modes.POWERSGD_STEPS and losses[-1] < losses[parallel_modes.STEPS]
    )


@pytest.mark.parametrize("way", ["ddp", "zero1", "zero2", "zero3"])
def test_bytes_of_each_process_are_those_of_the_model(ways: Found, way: str) -> None:
    shape = gpt_shape({**parallel_modes.SMALL, "peft": "none"}, 256)
    tensors = gpt_tensors(shape, first_positions(32))
    for rank in (0, 1):
        model = states(tensors, "adamw_fused", way, 2, rank)
        for part in ("parameters", "gradients", "optimizer"):
            assert ways[way][rank][part] == pytest.approx(getattr(model, part), rel=0.05), (
                rank,
                part,
            )


def test_matrices_are_split_and_still_learn(ways: Found) -> None:
    split, whole = ways["tensor parallel"][0], ways["ddp"][0]
    assert split["parameters"] < 0.75 * whole["parameters"]
    assert split["losses"][-1] < split["losses"][0]


@pytest.mark.parametrize("way", parallel_modes.WAYS)
def test_passes_without_communication_leave_the_weights_alone(ways: Found, way: str) -> None:
    assert ways[way][0]["unchanged"]


@pytest.mark.parametrize("way", ["ddp", "zero3", "tensor parallel"])
def test_a_change_that_one_process_cannot_carry_out_is_refused_by_all_and_training_goes_on(
    ways: Found, way: str
) -> None:
    leader, other = ways[f"refused, {way}"]
    assert len(leader["errors"]) == 1 and leader["errors"][0].startswith("rank 1: out of memory")
    assert leader["batch_size"] == other["batch_size"] == 2


def test_processes_that_fail_together_go_on_and_one_that_fails_alone_ends_the_run(
    ways: Found,
) -> None:
    for found in ways["outcomes"]:
        assert (found["none"], found["all"], found["one"]) == (
            None,
            "no room",
            "torn: rank 1: no room",
        )
