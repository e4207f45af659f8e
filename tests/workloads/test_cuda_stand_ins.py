"""What only a GPU can run, as far as stand-ins go: what is refused there, and what is set up."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gpuconsole.engine.catalog import scenarios
from gpuconsole.model.knobs.catalogue import CATALOGUE, Knobs
from gpuconsole.workloads import device_memory
from gpuconsole.workloads.profiling import window
from gpuconsole.workloads.serving.engine import build as server_build
from gpuconsole.workloads.training.settings import check_compile
from tests.workloads.small import small_gpt_loop

CUDA = torch.device("cuda", 0)
CARD_BYTES, MAX_BYTES = 80e9, 75e9
"""Of weights as they are made, keys and values: what a GPU of 80 GB has room for."""


def test_cuda_graphs_do_not_go_with_accumulation() -> None:
    knobs = {"torch_compile": "reduce-overhead", "gradient_accumulation_steps": 2}
    with pytest.raises(ValueError, match="try default"):
        check_compile(knobs, CUDA)
    check_compile(knobs, torch.device("cpu"))
    check_compile({**knobs, "gradient_accumulation_steps": 1}, CUDA)
    check_compile({**knobs, "sharding": "ddp"}, CUDA)


def test_what_a_probe_takes_is_not_the_jobs_peak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocator = {"now": 1e9, "peak": 1e9}
    monkeypatch.setattr(device_memory, "peak_bytes", lambda device: allocator["peak"])
    monkeypatch.setattr(
        device_memory, "restart_peak", lambda device: allocator.update(peak=allocator["now"])
    )
    loop = small_gpt_loop(tmp_path)
    try:
        with loop.beside_the_peak():
            allocator["peak"] = 4e9
        assert loop.peak_memory_bytes() == 1e9
        allocator.update(now=1.5e9, peak=1.5e9)
        assert loop.peak_memory_bytes() == 1.5e9, "the job itself has grown"
        allocator["now"] = 0.8e9
        loop.restart_peak_memory()
        assert loop.peak_memory_bytes() == 0.8e9, "a change has made it smaller"
    finally:
        loop.close()


@pytest.mark.parametrize(
    ("version", "names"),
    [("2.8.0+cu128", 2), ("2.9.1+cu130", 2), ("2.10.0", 2), ("2.11.0", 1), ("2.13.0+cpu", 1)],
)
def test_the_allocators_setting_is_ours_alone(
    monkeypatch: pytest.MonkeyPatch, version: str, names: int
) -> None:
    """Torch 2.9 and 2.10 read the new name of the variable, but take expandable_segments from the
    old name only."""
    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.setattr(
        os, "environ", {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}
    )
    device_memory.set_up_allocator({"pytorch_alloc_conf": "expandable_segments:True"})
    found = [os.environ.get(name) for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")]
    assert found == ["expandable_segments:True", "expandable_segments:True" if names == 2 else None]


def test_a_memory_limit_above_the_card_is_the_memory_of_the_card(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fractions: list[float] = []
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=80 * 10**9)
    )
    monkeypatch.setattr(
        torch.cuda,
        "set_per_process_memory_fraction",
        lambda fraction, device: fractions.append(fraction),
    )
    assert device_memory.limit_bytes(CUDA, {"memory_limit_mb": 110_000}) == 80e9
    assert device_memory.limit_bytes(CUDA, {"memory_limit_mb": 1000}) == 1000 * 2**20
    assert device_memory.limit_bytes(CUDA, {}) == 80e9
    assert (
        device_memory.limit_bytes(torch.device("cpu"), {"memory_limit_mb": 10**6}) == 10**6 * 2**20
    ), "on a CPU it is a reference"
    for limit in (110_000, 40_000):
        device_memory.enforce_limit(CUDA, {"memory_limit_mb": limit})
    assert fractions == [1.0, pytest.approx(40_000 * 2**20 / 80e9)]


@pytest.mark.parametrize(("version", "expected"), [("13.0", "1"), ("12.4", None), (None, None)])
def test_cupti_is_let_go_where_that_is_safe(
    monkeypatch: pytest.MonkeyPatch, version: str | None, expected: str | None
) -> None:
    monkeypatch.setattr(torch.version, "cuda", version)
    monkeypatch.setenv("TEARDOWN_CUPTI", "x")
    monkeypatch.delenv("TEARDOWN_CUPTI")
    window._let_cupti_go_afterwards()
    assert os.environ.get("TEARDOWN_CUPTI") == expected


def test_a_kv_cache_that_does_not_fit_is_refused_before_it_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_build, "_free_bytes", lambda device: 10**9)
    server_build._check_room(9 * 10**8, CUDA)
    with pytest.raises(ValueError, match=r"takes 2\.0 GB .* 1\.0 GB are free"):
        server_build._check_room(2 * 10**9, CUDA)


def test_every_served_scenario_and_the_trial_of_its_fix_fit_on_a_gpu() -> None:
    for scenario in scenarios()[0].values():
        if scenario.workload.name != "inference.serving":
            continue
        knobs, fix = scenario.knobs_for("gpu", CARD_BYTES), scenario.teaches.fix
        # beside the first
        second = [{**knobs, **fix}] if any(CATALOGUE[name].apply == "cold" for name in fix) else []
        needed = sum(map(server_bytes, [knobs, *second]))
        assert needed <= MAX_BYTES, f"{scenario.name}: {needed / 1e9:.0f} GB"


def server_bytes(knobs: Knobs) -> int:
    width, depth, seats, length = (
        int(knobs[name]) for name in ("d_model", "n_layer", "max_num_seqs", "max_model_len")
    )
    return 12 * width * width * depth * 4 + 2 * depth * width * 2 * seats * length
