"""The training loop on a simulated card; prints what the assertions need, as JSON. Values are computed."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gpuconsole.agent import probes
from gpuconsole.agent.clock import ThreadTimes
from gpuconsole.agent.step_breakdown import CudaStepBreakdown
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.workloads.calibration.measures import best_copy_bytes_per_s, dense_flops_per_s
from gpuconsole.workloads.training import churn, gpt
from gpuconsole.workloads.training.loop import TrainingLoop
from gpuconsole.workloads.training.probes import catalog, gpu, loader, memory
from gpuconsole.workloads.training.probes.catalog import PROBES, cached_batch, memory_parts
from tests.workloads.running import knobs_of

GPU = torch.device("cuda", 0)
SYNCS = Path(os.environ["SIMULATED_CUDA_SYNCS"])
device: Any = torch.simulated_cuda  # type: ignore[attr-defined]  # runtime.py
found: dict[str, object] = {}
loops: list[TrainingLoop] = []
AHEAD, TRIES = 0.8, 5
"""The host is ahead if it issues the work in less than this share of its time."""
probes.ELASTICITY_BUDGET_S = probes.UPDATES_BUDGET_S = catalog.SWAP_BUDGET_S = gpu.BUDGET_S = memory.BUDGET_S = loader.LINES_BUDGET_S = 0.05
"""Few repetitions are enough here."""


def loop_of(module: Any, scenario: str, **changes: object) -> TrainingLoop:
    small: Knobs = {"batch_size": 4, "d_model": 64, "n_layer": 2, "num_threads": 1, "non_blocking": True, "log_every": 0}
    known = knobs_of(scenario)
    knobs = {**known, **{name: value for name, value in (small | changes).items() if name in known}}
    torch.manual_seed(0)
    loops.append(TrainingLoop(module.create(knobs, GPU, 0), knobs, GPU, Path(tempfile.mkdtemp(dir=SYNCS.parent))))
    return loops[-1]


def spans(loop: TrainingLoop) -> list[float]:
    return [step.times[-1] - step.start for step in loop.breakdown.take()]


def account_while_the_host_is_ahead(precision: str) -> dict[str, object]:
    """The seconds of the account and of the kernels of two steps, how far ahead the host was, and where it waited. The steps are made again where
    the host was not ahead: only then the account can follow the kernels."""
    device.library.sim_set_kernel_s(1e-3)
    loop = loop_of(gpt, "train-gpt", precision=precision, batch_size=1)  # the host computes the values; bf16 is slow on a CPU without it
    for _ in range(3):
        loop.step()
    found = two_steps(loop)
    for _ in range(TRIES - 1):
        if found["issued_s"] < AHEAD * found["whole_s"]:
            break
        found = two_steps(loop)  # other programs took the core of the host
    device.library.sim_set_kernel_s(3e-6)
    return found


def two_steps(loop: TrainingLoop) -> dict[str, Any]:
    loop.breakdown.finish()
    spans(loop)
    device.library.sim_launch(0, 0.1)  # the host is ahead from the first kernel on
    loop.breakdown.restart()
    known, before, start = SYNCS.read_text().count("\n"), device.clock()["busy_s"], time.perf_counter()
    for _ in range(2):
        loop.step()
    issued, busy = time.perf_counter() - start, device.clock()["busy_s"] - before
    syncs = SYNCS.read_text().splitlines()[known:]
    loop.breakdown.finish()
    whole = time.perf_counter() - start
    return {"account_s": sum(spans(loop)), "kernels_s": busy, "issued_s": issued, "whole_s": whole, "syncs": syncs}


def run_ahead() -> dict[str, float]:
    """The most work that is queued at the end of a step, of 20 steps of 0.1 s that the host issues at once."""
    account, queued = CudaStepBreakdown(ThreadTimes()), 0.0
    for _ in range(20):
        device.library.sim_launch(0, 0.1)
        account.end(1, 1, None, 0, 0)
        queued = max(queued, device.library.sim_queued_s(0))
    account.finish()
    return {"queued_s": queued, "steps": len(account.take())}


def state_of(loop: TrainingLoop) -> dict[str, object]:
    """All that a probe must leave as it was."""
    tensors = {f"weight {name}": value for name, value in loop.task.model.state_dict().items()}
    for number, values in enumerate(loop.optimizer.state.values()):
        tensors |= {f"optimizer {number} {name}": value for name, value in values.items() if isinstance(value, torch.Tensor)}
    tensors |= {"random": torch.get_rng_state(), "random of the device": torch.cuda.get_rng_state(GPU)}
    own = {"kept": [batch[0].float().sum().item() for batch in getattr(loop.task, "_kept", [])]}
    if hasattr(loop.task, "_chance"):
        own["chance"] = [str(loop.task._chance.getstate())]
    figures = {name: value.detach().cpu().double().sum().item() for name, value in tensors.items()}
    return figures | own | {"peaks": loop.peaks.figures(), "peak": loop.peak_memory_bytes()}


def changed_by_probes(module: Any, scenario: str) -> dict[str, list[str]]:
    """The parts of the state that a probe has changed, by probe; only probes that apply."""
    loop = loop_of(module, scenario, precision="fp32", optim="adamw")
    for _ in range(3):
        loop.step()
    changed: dict[str, list[str]] = {}
    for name, probe in PROBES.items():
        if name in ("side_work_off", "script_lines"):
            continue  # they train ordinary steps
        before = state_of(loop)
        try:
            with loop.beside_the_peak():
                probe(loop)
        except Exception as error:  # it does not apply here
            if isinstance(error, torch.OutOfMemoryError | AttributeError | NotImplementedError):
                raise
            continue
        after = state_of(loop)
        changed[name] = [part for part in before if before[part] != after[part]]
    return changed


def peaks_after_a_probe() -> dict[str, float]:
    """Reserved memory at its peak, before the cached-batch probe and as `memory_parts` reports it after that probe."""
    loop = loop_of(gpt, "train-gpt")
    for _ in range(3):
        loop.step()
    block = torch.empty(200 * 2**20, dtype=torch.uint8, device=GPU)
    del block  # the job's own, between two steps
    before = torch.cuda.max_memory_reserved()
    with loop.beside_the_peak():
        cached_batch(loop)
    with loop.beside_the_peak():
        signals = memory_parts(loop)
    return {"before": before, "reported": signals["memory.reserved_peak_bytes"].value, "parts": signals["memory.parameters_bytes"].value}


def reads_for_a_message() -> list[str]:
    """The functions of torch.cuda that one reading of the peak calls: the slow ones sort all figures of the allocator."""
    loop = loop_of(gpt, "train-gpt")
    loop.step()
    called: list[str] = []
    for name in ("memory_stats", "max_memory_allocated", "memory_stats_as_nested_dict"):
        real = getattr(torch.cuda, name)
        setattr(torch.cuda, name, lambda *a, name=name, real=real, **k: (called.append(name), real(*a, **k))[1])
    loop.peak_memory_bytes()
    return called


def in_little_memory(free_bytes: float, measure: Callable[[], float]) -> float:
    """What `measure` returns while this process can allocate only that much more."""
    torch.cuda.empty_cache()
    limit = (torch.cuda.memory_reserved() + free_bytes) / torch.cuda.get_device_properties(GPU).total_memory
    torch.cuda.set_per_process_memory_fraction(limit, GPU)
    try:
        return measure()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, GPU)


found["product"] = in_little_memory(24e6, lambda: dense_flops_per_s("matrix product", GPU, "fp32", 0.01))  # bf16 takes seconds on most CPUs
found["copy"] = in_little_memory(300e6, lambda: best_copy_bytes_per_s(GPU, 0.01))
found["account"] = {precision: account_while_the_host_is_ahead(precision) for precision in ("bf16", "fp32")}
found["ahead"] = run_ahead()
found["changed"] = {"gpt": changed_by_probes(gpt, "train-gpt"), "churn": changed_by_probes(churn, "fragmented-memory")}
found["peaks"] = peaks_after_a_probe()
found["reads"] = reads_for_a_message()
for loop in loops:
    loop.close()
print(json.dumps(found), flush=True)
os._exit(0)  # as a worker ends: a thread of torch that pins memory may be within C++ when Python ends, which aborts the process
