"""Model servers that are not there yet, and what a model's own files tell."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import aiohttp
import pytest

from gpuconsole.host.installation import install_command
from gpuconsole.model.knobs.catalogue import CATALOGUE, Knobs
from gpuconsole.workloads.serving.servers import (
    VllmServer,
    cuda_devices,
    find_vllm_python,
    model_facts,
    vllm_flags,
)

KNOBS: Knobs = {
    name: knob.default
    for name, knob in CATALOGUE.items()
    if knob.serving and knob.default is not None
}


def test_bytes_of_a_model_are_those_of_its_files_in_the_dtype_that_is_used(tmp_path: Path) -> None:
    config = {
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "hidden_size": 512,
        "num_hidden_layers": 4,
        "dtype": "bfloat16",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 1000)
    assert model_facts(tmp_path, KNOBS) == {
        "kv_bytes_per_token": 2 * 4 * 2 * 64 * 2,
        "weight_bytes": 1000,
    }
    assert model_facts(tmp_path, {**KNOBS, "dtype": "float32"})["weight_bytes"] == 2000
    assert (
        model_facts(tmp_path, {**KNOBS, "kv_cache_dtype": "fp8"})["kv_bytes_per_token"]
        == 2 * 4 * 2 * 64
    )
    assert model_facts(tmp_path / "some" / "name", KNOBS) == {}, "a name on a hub has no files here"


def test_the_python_of_a_vllm_on_the_path_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_vllm_python() == sys.executable
    (tmp_path / "python-of-vllm").symlink_to(sys.executable)
    program = tmp_path / "vllm"
    program.write_text(f"#!{tmp_path}/python-of-vllm\nimport vllm\n")
    program.chmod(0o755)
    assert find_vllm_python() == f"{tmp_path}/python-of-vllm"
    program.write_text("#!/bin/sh\nexec elsewhere\n")
    assert find_vllm_python() == sys.executable


@pytest.mark.parametrize(
    ("on_cpu", "arguments", "blocks"),
    [
        (True, "", "12"),
        (False, "", "100"),
        (True, "--block-size 32", "50"),
        (False, "--block-size=64", "25"),
        (True, "--block-size 4096", "1"),
    ],
)
def test_the_size_of_the_kv_cache_is_the_same_whatever_the_size_of_a_block(
    on_cpu: bool, arguments: str, blocks: str
) -> None:
    """100 blocks of the knob are 1600 tokens. vLLM has blocks of 128 tokens on a CPU, and of 16 on
    a GPU."""
    flags = vllm_flags(
        {**KNOBS, "num_gpu_blocks_override": 100}, {"model": "m", "vllm_args": arguments}, on_cpu
    )
    assert flags[flags.index("--num-gpu-blocks-override") + 1] == blocks
    assert "--num-gpu-blocks-override" not in vllm_flags(
        KNOBS, {"model": "m", "vllm_args": arguments}, on_cpu
    )


STUB = Path(__file__).parents[2] / "fakes" / "vllm_stub"


def test_vllm_gets_a_gpu_by_its_number_and_starts_without_a_flag_that_its_version_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_STUB_FLAGS", str(tmp_path / "flags"))
    monkeypatch.setenv("VLLM_STUB_LACKS", "--enable-mfu-metrics")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-5f0c9f0e")
    monkeypatch.setenv("PYTHONPATH", f"{STUB}:{Path.cwd()}")
    steps: list[str] = []

    async def live() -> None:
        server = VllmServer(
            steps.append, KNOBS, {"model": "some/model"}, ("gpu:1",), "GPU-5f0c9f0e", tmp_path
        )
        async with aiohttp.ClientSession() as session:
            await server.start(session)
            await server.stop()
        assert "GPUs 1 in the order PCI_BUS_ID" in server.log_lines

    asyncio.run(live())
    assert "vLLM: this version lacks --enable-mfu-metrics; starting again" in steps
    flags = (tmp_path / "flags").read_text()
    assert "--max-num-seqs" in flags and "--enable-mfu-metrics" not in flags


def test_vllm_gets_a_mig_slice_by_its_uuid_because_a_slice_has_no_number() -> None:
    assert cuda_devices(("gpu:0/mig:1",), "MIG-7")["CUDA_VISIBLE_DEVICES"] == "MIG-7"


@pytest.mark.parametrize(("device", "installs"), [("gpu:0", True), ("cpu", False)])
def test_without_vllm_the_command_that_installs_it_is_named_where_pypi_has_one_for_the_device(
    device: str, installs: bool, tmp_path: Path
) -> None:
    server = VllmServer(lambda detail: None, KNOBS, {}, (device,), "", tmp_path)
    server.log_lines.append("ModuleNotFoundError: No module named 'vllm'")
    assert server.death().endswith(
        "to a Python that has vLLM" + (f", or {install_command('vllm')}" if installs else "")
    )
