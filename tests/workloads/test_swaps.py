"""Probes that try another value of a knob: they measure it, and leave no trace of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gpuconsole.agent import probes as agent_probes
from gpuconsole.agent.loop import Signals
from gpuconsole.agent.probes import ProbeError
from gpuconsole.workloads.device import cores
from gpuconsole.workloads.training import vision
from gpuconsole.workloads.training.loop import TrainingLoop
from gpuconsole.workloads.training.probes import catalog
from gpuconsole.workloads.training.probes import swaps as probes
from gpuconsole.workloads.training.probes.catalog import swap_attention, swap_optim, swap_threads
from gpuconsole.workloads.training.probes.memory import memory_parts
from gpuconsole.workloads.training.probes.swaps import swap_layout, swap_precision
from tests.workloads.running import knobs_of
from tests.workloads.small import CPU, job_state, losses, small_gpt_loop


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "SWAP_BUDGET_S", 0.1)
    monkeypatch.setattr(agent_probes, "UPDATES_BUDGET_S", 0.1)


@pytest.mark.parametrize("probe", [swap_attention, swap_precision, swap_optim, swap_threads])
def test_nothing_is_changed(
    tmp_path: Path, probe: Callable[[TrainingLoop], Signals], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    loop = small_gpt_loop(tmp_path, attention="math", optim="adamw")
    losses(loop, 2)
    before, knobs, threads = job_state(loop), dict(loop.knobs), torch.get_num_threads()
    monkeypatch.setattr(catalog, "cores", lambda: threads + 1)
    signals = probe(loop)
    assert all(signal.value > 0 for name, signal in signals.items() if not name.endswith("_spread"))
    assert loop.knobs == knobs and torch.get_num_threads() == threads
    assert loop.task.model.attention == "math"
    assert all(torch.equal(a, b) for a, b in zip(before, job_state(loop), strict=True))
    loop.step()
    loop.close()


def test_no_probe_where_there_is_nothing_to_swap(tmp_path: Path) -> None:
    loop = small_gpt_loop(tmp_path, precision="bf16", optim="adamw_fused")
    losses(loop, 1)
    for probe, why in (
        (swap_attention, "plain formula"),
        (swap_precision, "bf16 already"),
        (swap_optim, "fused already"),
    ):
        with pytest.raises(ProbeError, match=why):
            probe(loop)
    loop.set_knobs({"num_threads": cores()}, 0)
    with pytest.raises(ProbeError, match="no core is idle"):
        swap_threads(loop)
    loop.set_knobs({"optim": "sgd"}, 0)
    with pytest.raises(ProbeError, match="SGD"):
        swap_optim(loop)
    loop.close()


def test_a_cpu_without_bf16_instructions_is_not_made_to_emulate_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    loop = small_gpt_loop(tmp_path)
    losses(loop, 1)
    signals = swap_precision(loop)
    assert {name: signal.value for name, signal in signals.items()} == {
        "probe.precision_bf16_native": 0.0
    }
    loop.close()


def test_memory_by_part_follows_the_knobs(tmp_path: Path) -> None:
    loop = small_gpt_loop(tmp_path, seq_len=64, n_layer=2, memory_limit_mb=50)
    losses(loop, 1)
    parameters = sum(parameter.numel() for parameter in loop.task.model.parameters())

    def parts() -> dict[str, float]:
        return {
            name: signal.value for name, signal in memory_parts(loop).items() if signal.unit == "B"
        }

    plain = parts()
    assert plain["memory.parameters_bytes"] == plain["memory.gradients_bytes"] == 4 * parameters
    assert plain["memory.optimizer_bytes"] == pytest.approx(8 * parameters, rel=0.001)
    assert plain["memory.limit_bytes"] == 50 * 2**20
    loop.set_knobs({"attention": "math"}, 0)
    scores = 2 * 2 * 1 * 64 * 64  # blocks, batch, heads, T x T
    assert parts()["memory.activations_bytes"] >= plain["memory.activations_bytes"] + 4 * scores
    loop.set_knobs({"attention": "sdpa", "gradient_checkpointing": True}, 0)
    assert parts()["memory.activations_bytes"] < 0.4 * plain["memory.activations_bytes"]
    loop.close()


def test_the_layout_is_put_back_as_it_was(tmp_path: Path) -> None:
    knobs = knobs_of("train-vision", batch_size=4, num_workers=0)
    loop = TrainingLoop(vision.create(knobs, CPU, 0), knobs, CPU, tmp_path)
    losses(loop, 2)
    before, strides = (
        job_state(loop),
        [parameter.stride() for parameter in loop.task.model.parameters()],
    )
    assert swap_layout(loop)["probe.channels_last_speedup"].value > 0
    assert [parameter.stride() for parameter in loop.task.model.parameters()] == strides
    assert all(torch.equal(a, b) for a, b in zip(before, job_state(loop), strict=True))
    loop.set_knobs({"channels_last": True}, 0)
    with pytest.raises(ProbeError, match="NHWC already"):
        swap_layout(loop)
    loop.close()
