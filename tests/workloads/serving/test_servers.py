"""Model servers that are not there yet, and what a model's own files tell."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gpuconsole.model.knobs.catalogue import CATALOGUE, Knobs
from gpuconsole.workloads.serving.servers import find_vllm_python, model_facts, vllm_flags

KNOBS: Knobs = {name: knob.default for name, knob in CATALOGUE.items() if knob.serving and knob.default is not None}


def test_bytes_of_a_model_are_those_of_its_files_in_the_dtype_that_is_used(tmp_path: Path) -> None:
    config = {"num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 512, "num_hidden_layers": 4, "dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 1000)
    assert model_facts(tmp_path, KNOBS) == {"kv_bytes_per_token": 2 * 4 * 2 * 64 * 2, "weight_bytes": 1000}
    assert model_facts(tmp_path, {**KNOBS, "dtype": "float32"})["weight_bytes"] == 2000
    assert model_facts(tmp_path, {**KNOBS, "kv_cache_dtype": "fp8"})["kv_bytes_per_token"] == 2 * 4 * 2 * 64
    assert model_facts(tmp_path / "some" / "name", KNOBS) == {}, "a name on a hub has no files here"


def test_the_python_of_a_vllm_on_the_path_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_the_size_of_the_kv_cache_is_the_same_whatever_the_size_of_a_block(on_cpu: bool, arguments: str, blocks: str) -> None:
    """100 blocks of the knob are 1600 tokens. vLLM has blocks of 128 tokens on a CPU, and of 16 on a GPU."""
    flags = vllm_flags({**KNOBS, "num_gpu_blocks_override": 100}, {"model": "m", "vllm_args": arguments}, on_cpu)
    assert flags[flags.index("--num-gpu-blocks-override") + 1] == blocks
    assert "--num-gpu-blocks-override" not in vllm_flags(KNOBS, {"model": "m", "vllm_args": arguments}, on_cpu)
