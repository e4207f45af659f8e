"""A GPU whose driver is too old for torch: every way to use it says so, with the command that
helps. The driver is the fake one, and torch's version is given (the installed CPU build stands in
for a CUDA build that finds no GPU)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Cli, Machine
from tests.fakes.torch_build import torch_build
from tests.matrix import matrix

WHY = (
    "driver 535.104.05 is too old for torch 2.13.0 (CUDA 13.0), which needs driver 580 or newer:"
    " pip install --force-reinstall torch==2.13.0 "
)
WHY += "--index-url https://download.pytorch.org/whl/cu126"
TRAIN = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
print("trained on", next(model.parameters()).device)
"""


@pytest.fixture
def old(machine: Machine, tmp_path: Path) -> dict[str, str]:
    """The environment of a machine with an H200 on driver 535, and with torch's wheel for
    CUDA 13."""
    _, environment = machine("gpus 1", "driver 535.104.05")
    return torch_build(tmp_path / "build", "2.13.0+cu130", "13.0", environment)


def test_doctor(cli: Cli, old: dict[str, str]) -> None:
    told = " ".join(cli("doctor", env=old).stdout.split())
    assert "torch 2.13.0+cu130, built for CUDA 13.0; the driver runs CUDA 12.2" in told
    assert f"gpu:0 torch {WHY}" in told


def test_doctor_about_a_card_that_cuda_13_does_not_know(
    cli: Cli, machine: Machine, tmp_path: Path
) -> None:
    _, environment = machine(
        "gpus 1",
        "gpu 0 name Tesla V100-SXM2-16GB",
        "gpu 0 capability_major 7",
        "gpu 0 capability_minor 0",
    )
    told = " ".join(
        cli(
            "doctor", env=torch_build(tmp_path / "build", "2.13.0+cu130", "13.0", environment)
        ).stdout.split()
    )
    assert (
        "torch 2.13.0 (CUDA 13.0) has no code for Tesla V100-SXM2-16GB (compute capability"
        " 7.0): pip install"
    ) in told


@pytest.mark.slow
@pytest.mark.parametrize("processes", matrix([1, 2], in_ci=(1,)))
def test_run(cli: Cli, old: dict[str, str], processes: int) -> None:
    knobs = ("--set", "nproc=2") if processes == 2 else ()
    done = cli(
        "run",
        "train-gpt" if processes == 1 else "ddp-small-batch",
        "--headless",
        "--device",
        "gpu:0",
        "--duration",
        "2",
        *knobs,
        env=old,
    )
    assert done.returncode == 1
    rank = "rank " if processes == 2 else ""
    assert f"run 1 failed: {rank}" in done.stderr
    assert (
        f"(CUDA 13.0) cannot use gpu:0: {WHY}. Or run on the host with --device cpu" in done.stderr
    )
    assert f"torch here cannot use gpu:0: {WHY}" in done.stderr, (
        "said before the worker has started"
    )


@pytest.mark.slow
def test_a_job_of_the_users_own(cli: Cli, old: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    done = cli("run", "--headless", "--", sys.executable, "train.py", env=old)
    assert (done.returncode, done.stdout) == (0, "trained on cpu\n")
    assert done.stderr.count(WHY) == 1


@pytest.mark.slow
def test_a_job_that_torch_ends(cli: Cli, old: dict[str, str], tmp_path: Path) -> None:
    """torch raises at the first use of the GPU, before the first step."""
    (tmp_path / "train.py").write_text(
        "import torch\nraise RuntimeError('The NVIDIA driver on your system is too old (found"
        " version 12020).')\n"
    )
    done = cli("run", "--headless", "--", sys.executable, "train.py", env=old)
    assert done.returncode == 1 and WHY in done.stderr


@pytest.mark.matrix
@pytest.mark.slow
def test_a_job_with_a_torch_of_its_own(cli: Cli, machine: Machine, tmp_path: Path) -> None:
    """The console's torch is a CPU build. What counts is the torch of the job."""
    _, environment = machine("gpus 1", "driver 535.104.05")
    env = torch_build(tmp_path / "build", "2.13.0+cu130", "13.0", {"PYTHONPATH": ""})
    (tmp_path / "train.py").write_text(TRAIN)
    words = ("env", f"PYTHONPATH={env['PYTHONPATH']}", sys.executable, "train.py")
    before = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    shell = f'PYTHONPATH="$PYTHONPATH:{env["PYTHONPATH"]}" exec "$0" train.py'
    done = cli("run", "--headless", "--", "sh", "-c", shell, sys.executable, env=environment)
    assert done.stdout == before.stdout
    assert f"torch of the job cannot use gpu:0: {WHY}" in done.stderr
