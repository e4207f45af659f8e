"""`gpuconsole calibrate`: the real command in a subprocess, with little time for each figure."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from gpuconsole.model import machine
from gpuconsole.model.machine import CalibrationRecord, Device, Peaks, Reached, unit_of
from gpuconsole.report.machine.environment import calibration_report
from gpuconsole.report.parts import printed
from tests.conftest import Cli, Machine
from tests.waiting import gone, wait_until

MEASURED = {
    "gemm_fp32_1_thread_flops_per_s",
    "gemm_fp32_flops_per_s",
    "gemm_bf16_flops_per_s",
    "gemm_fp16_flops_per_s",
    "conv_fp32_flops_per_s",
    "copy_bytes_per_s",
    "triad_bytes_per_s",
    "gemv_fp32_bytes_per_s",
    "gemv_bf16_bytes_per_s",
    "gemv_fp16_bytes_per_s",
    "allreduce_latency_s",
    "allreduce_bytes_per_s",
}
DISK = {"disk_write_bytes_per_s", "disk_read_bytes_per_s"}
"""Not measured where the temporary folder lies in memory."""
ON_GPU = {
    f"{way}_{memory}_bytes_per_s" for way in ("h2d", "d2h") for memory in ("pinned", "pageable")
} | {"gemm_tf32_flops_per_s"}


@pytest.fixture
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {**os.environ, "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}


@pytest.mark.slow
def test_every_figure_has_a_value_or_a_reason_and_is_kept(
    cli: Cli, own_cache: dict[str, str]
) -> None:
    done = cli("calibrate", "--device", "cpu", "--json", "--budget", "0.05", env=own_cache)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    reached = {one["name"]: one for one in record["reached"]}
    assert reached.keys() == MEASURED | DISK | ON_GPU
    for name, one in reached.items():
        assert one["unit"] == unit_of(name)
        if "value" in one:
            assert math.isfinite(one["value"]) and one["value"] > 0
            assert one["median"] > 0 and one["n"] >= 3 and one["detail"]
        else:
            assert one["reason"]
    assert all("value" in reached[name] for name in MEASURED)
    assert all("reason" in reached[name] for name in ON_GPU)
    assert "all-reduce" in done.stderr  # what was being measured

    shown = cli("calibrate", "--device", "cpu", "--show", "--json", env=own_cache)
    assert (shown.returncode, json.loads(shown.stdout)) == (0, record)
    table = cli("calibrate", "--device", "cpu", "--show", env=own_cache).stdout
    assert "(just now)" in table or "minute" in table
    assert "GFLOP/s" in table and "TF32 is an arithmetic of GPUs" in table
    assert "calibration" in cli("doctor", env=own_cache).stdout


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_calibration_leaves_no_process_and_keeps_nothing(
    tmp_path: Path, own_cache: dict[str, str], number: signal.Signals
) -> None:
    """Interrupted while its own processes exchange data."""
    command = [
        sys.executable,
        "-m",
        "gpuconsole",
        "calibrate",
        "--device",
        "cpu",
        "--budget",
        "0.05",
    ]
    with (tmp_path / "said.txt").open("w") as said:
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**own_cache, "TMPDIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=said,
        )
    wait_until(lambda: "all-reduce" in (tmp_path / "said.txt").read_text(), 60, "the all-reduce")
    wait_until(lambda: len(children_of(process)) >= 3, 20, "its processes")
    children = children_of(process)
    process.send_signal(number)
    assert process.communicate(timeout=20)[0] == b""
    # those that import torch look for their parent after that
    wait_until(lambda: all(gone(pid) for pid in children), 20, "children gone")
    assert not list(Path(own_cache["XDG_CACHE_HOME"]).rglob("*calibration*"))
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert [path.name for path in tmp_path.iterdir()] == ["said.txt"]


def children_of(process: subprocess.Popen[bytes]) -> list[int]:
    """The calibration process and its children."""
    return [child.pid for child in psutil.Process(process.pid).children(recursive=True)]


def test_a_gpu_that_this_torch_cannot_use(
    cli: Cli, machine: Machine, own_cache: dict[str, str]
) -> None:
    _, environment = machine("gpus 2")
    done = cli(
        "calibrate",
        "--device",
        "gpu:1",
        env={**environment, "XDG_CACHE_HOME": own_cache["XDG_CACHE_HOME"]},
    )
    assert done.returncode == 1
    assert "cannot use gpu:1" in done.stderr.splitlines()[-1]
    assert done.stdout == ""
    assert not list(Path(own_cache["XDG_CACHE_HOME"]).rglob("*calibration*"))


def test_nothing_to_show(cli: Cli, own_cache: dict[str, str]) -> None:
    done = cli("calibrate", "--device", "cpu", "--show", env=own_cache)
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no calibration of" in done.stderr


def test_no_such_device(cli: Cli) -> None:
    done = cli("calibrate", "--device", "gpu:7")
    assert done.returncode == 2
    assert "there is no device 'gpu:7'" in done.stderr


def test_the_table_has_the_share_of_the_datasheet_and_the_load_of_others() -> None:
    gpu = Device(
        "gpu:0",
        "NVIDIA H200",
        peaks=Peaks(bf16_flops_per_s=989.4e12, source="NVIDIA H200 datasheet (SXM), dense"),
    )
    reached = [
        Reached("gemm_bf16_flops_per_s", "FLOP/s", 791.5e12, 780e12, 0.01, 200, "8192 x 8192"),
        Reached("allreduce_latency_s", "s", reason="one GPU in sight"),
    ]
    record = CalibrationRecord(
        machine.Machine("box", "cpu", 2, ()), "gpu:0", "2026-01-01T00:00:00Z", reached, 1.5, 1.4
    )
    lines = printed(calibration_report(record, gpu, now_s=1_800_000_000)).splitlines()
    assert "other processes used 1.4 of 2 cores: these numbers may be too low" in lines
    assert any(
        "792 TFLOP/s" in line and "989 TFLOP/s" in line and " 80 % " in line for line in lines
    )
    assert any("n/a" in line and "one GPU in sight" in line for line in lines)
