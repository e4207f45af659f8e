"""GPUs without NVML: a machine with two GPUs of AMD, as its kernel driver describes them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpuconsole.model.metrics import GPU_METRICS
from gpuconsole.telemetry import other_gpus
from gpuconsole.telemetry.other_gpus import architecture, find_other_gpus
from tests.conftest import Cli

GPU = "cpu_cores_count 0\nsimd_count 1216\ngfx_target_version 90402\nvendor_id 4098\n"
CPU = "cpu_cores_count 96\nsimd_count 0\n"


@pytest.fixture
def nodes(tmp_path: Path) -> Path:
    """The topology of amdkfd: a processor, then two GPUs with 192 GiB each."""
    for number, text in enumerate((CPU, GPU, GPU)):
        bank = tmp_path / "nodes" / str(number) / "mem_banks" / "0"
        bank.mkdir(parents=True)
        (bank.parents[1] / "properties").write_text(text)
        (bank / "properties").write_text(f"heap_type {int('1216' in text)}\nsize_in_bytes {192 << 30}\nflags 0\n")
    return tmp_path / "nodes"


def test_a_gpu_of_amd_counts_where_torch_can_use_it(nodes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_gpus, "NODES", nodes)
    monkeypatch.setattr(other_gpus, "torch_version", lambda: "2.13.0+rocm7.0")
    found = find_other_gpus()
    assert found is not None
    assert [(one.id, one.name, one.memory_bytes) for one in found.devices()] == [(f"gpu:{n}", "AMD gfx942", 192 << 30) for n in (0, 1)]
    assert found.read(1.0) == [] and set(found.unavailable()["gpu:1"]) == {metric.name for metric in GPU_METRICS}
    monkeypatch.setattr(other_gpus, "torch_version", lambda: "2.13.0+cpu")
    assert find_other_gpus() is None, "the graphics unit of a desktop processor is no training device"
    monkeypatch.setattr(other_gpus, "torch_version", lambda: "2.13.0+rocm7.0")
    monkeypatch.setattr(other_gpus, "NODES", nodes / "none")
    assert find_other_gpus() is None
    monkeypatch.setattr(other_gpus.sys, "platform", "darwin")
    monkeypatch.setattr(other_gpus.platform, "machine", lambda: "arm64")
    apple = find_other_gpus()
    assert (
        apple is not None and apple.devices()[0].name == "Apple GPU (mps)" and "powermetrics" in apple.unavailable()["gpu:0"]["gpu.power_w"]
    )


def test_the_architecture_is_named_as_in_llvm() -> None:
    assert [architecture(version) for version in (90402, 90010, 110000, 120001)] == ["gfx942", "gfx90a", "gfx1100", "gfx1201"]


@pytest.mark.slow
def test_the_program_shows_it_with_reasons_and_a_torch_that_cannot_use_it_says_so(nodes: Path, cli: Cli, tmp_path: Path) -> None:
    """The real command line; only the topology and torch's own version are stand-ins."""
    stand_in = tmp_path / "stand-in"
    (stand_in / "torch-2.13.0+rocm7.0.dist-info").mkdir(parents=True)
    (stand_in / "torch-2.13.0+rocm7.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0+rocm7.0\n")
    (stand_in / "sitecustomize.py").write_text(
        f"import pathlib, gpuconsole.telemetry.other_gpus as other\nother.NODES = pathlib.Path({str(nodes)!r})\n"
    )
    env = {**os.environ, "PYTHONPATH": f"{stand_in}{os.pathsep}{os.environ['PYTHONPATH']}"}
    shown = json.loads(cli("devices", "--json", env=env).stdout)
    assert [device["id"] for device in shown["devices"]] == ["gpu:0", "gpu:1", "cpu"] and shown["no_gpu"] is None
    assert shown["devices"][0]["unavailable"]["gpu.power_w"] == other_gpus.AMD and not shown["devices"][0]["values"]
    run = cli("run", "chatty-logging", "--headless", "--duration", "1", env=env)
    assert run.returncode == 1 and "cannot use gpu:0; run on the host with --device cpu" in run.stderr
    assert "Traceback" not in run.stderr + run.stdout
