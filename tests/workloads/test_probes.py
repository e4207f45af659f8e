"""Probes leave no trace: weights, optimizer, buffers and random state are bit for bit what they were."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from gpuconsole.workloads.training import gpt, gpu_probes, vision
from gpuconsole.workloads.training.gpu_probes import GPU_PROBES, h2d_copies, launch, sync_gaps
from gpuconsole.workloads.training.loop import TrainingLoop
from gpuconsole.workloads.training.probes import batch_elasticity, cached_batch, loader_alone, memory_parts, op_mix
from gpuconsole.workloads.training.probing import ProbeError
from tests.workloads.running import knobs_of
from tests.workloads.small import job_state


@pytest.fixture(params=["gpt", "vision"])
def loop(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    device = torch.device("cpu")
    threads = torch.get_num_threads()
    if request.param == "gpt":
        knobs = knobs_of("train-gpt", batch_size=2, seq_len=32, d_model=64, n_layer=1)
        task: Any = gpt.create(knobs, device, 0)
    else:
        knobs = knobs_of("vision-healthy", batch_size=4, num_workers=0, width=8)
        task = vision.create(knobs, device, 0)
    loop = TrainingLoop(task, knobs, device, tmp_path)
    for _ in range(3):
        loop.step()
    yield loop
    loop.close()
    torch.set_num_threads(threads)


@pytest.mark.parametrize("probe", [cached_batch, batch_elasticity, loader_alone, op_mix, memory_parts])
def test_nothing_is_changed(loop: TrainingLoop, probe: Any) -> None:
    if probe is loader_alone and "num_workers" not in loop.knobs:
        pytest.skip("no loader in this workload")
    before = job_state(loop)
    signals = probe(loop)
    assert signals
    after = job_state(loop)
    assert len(before) == len(after)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    loop.step()  # and the next step is an ordinary one: no gradient of a probe is left to be added to
    assert loop.account.take()[-1].kind == 0


def test_the_loader_probe_tells_sleeping_from_computing(tmp_path: Path) -> None:
    ratios = {}
    for name, changes in {"sleeps": {"storage_latency_ms": 10.0}, "computes": {"transform_cost": 8}}.items():
        knobs = knobs_of("vision-healthy", batch_size=4, num_workers=0, width=8, **changes)
        loop = TrainingLoop(vision.create(knobs, torch.device("cpu"), 0), knobs, torch.device("cpu"), tmp_path)
        ratios[name] = loader_alone(loop)["probe.loader_cpu_ratio"].value
        loop.close()
    assert ratios["sleeps"] < 0.5 < 0.7 < ratios["computes"]


@pytest.mark.parametrize("probe", GPU_PROBES.values(), ids=GPU_PROBES)
def test_probes_of_a_gpu_say_so_on_a_cpu(loop: TrainingLoop, probe: Any) -> None:
    with pytest.raises(ProbeError, match="no GPU"):
        probe(loop)


class HostEvent:
    """What torch.cuda.Event is to a probe, on the host's clock."""

    def __init__(self, enable_timing: bool) -> None:
        self._t = 0.0

    def record(self) -> None:
        self._t = time.perf_counter()

    def elapsed_time(self, end: HostEvent) -> float:
        return (end._t - self._t) * 1e3


@pytest.mark.parametrize("probe", [launch, h2d_copies, sync_gaps])
def test_probes_of_a_gpu_change_nothing(loop: TrainingLoop, probe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the host in place of a GPU: what they measure is nonsense then, what they leave behind is not."""
    monkeypatch.setattr(gpu_probes, "_needs_gpu", lambda loop: None)
    monkeypatch.setattr(gpu_probes, "BUDGET_S", 0.05)
    monkeypatch.setattr(gpu_probes, "LINK_BYTES", 1 << 16)
    monkeypatch.setattr(torch.cuda, "Event", HostEvent)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor.clone())
    monkeypatch.setattr(gpu_probes, "_pinned", lambda size: torch.empty(size, dtype=torch.uint8))
    if probe is sync_gaps:
        with pytest.raises(ProbeError, match="no GPU kernel"):
            probe(loop)
        assert not list(loop.scratch.glob("*.json"))
        assert {step.kind for step in loop.account.take()[3:]} == {2}  # the steps that it took count as a probe's
        return
    before = job_state(loop)
    assert all(signal.value > 0 for signal in probe(loop).values())
    assert all(torch.equal(a, b) for a, b in zip(before, job_state(loop), strict=True))
