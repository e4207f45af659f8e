"""What only a GPU can run, as far as stand-ins go: the step account on CUDA events, and what is refused or set up there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from gpuconsole.model.run import PHASES
from gpuconsole.runtime.catalog import scenarios
from gpuconsole.workloads.account import MOST_AHEAD, CudaStepAccount
from gpuconsole.workloads.clock import ThreadTimes
from gpuconsole.workloads.inference.engine import building
from gpuconsole.workloads.profiling import recorder
from gpuconsole.workloads.training import memory
from gpuconsole.workloads.training.compiling import check_compile
from tests.workloads.small import small_gpt_loop

CUDA = torch.device("cuda", 0)
MOST_BYTES = 60e9
"""Of weights, keys and values: so that a GPU of 80 GB has room for what else is needed."""


class Timeline:
    """A GPU that takes 1 ms from one event to the next, and reaches one only when somebody waits for it."""

    def __init__(self) -> None:
        self.recorded = self.reached = 0


def event_type(timeline: Timeline) -> type:
    class Event:
        def __init__(self, enable_timing: bool) -> None:
            self.at = 0

        def record(self) -> None:
            timeline.recorded += 1
            self.at = timeline.recorded

        def query(self) -> bool:
            return self.at <= timeline.reached

        def synchronize(self) -> None:
            timeline.reached = max(timeline.reached, self.at)

        def elapsed_time(self, other: Any) -> float:
            assert timeline.reached >= other.at, "an event was read before it was reached"
            return float(other.at - self.at)

    return Event


def test_the_host_is_never_more_than_a_few_steps_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    timeline = Timeline()
    monkeypatch.setattr(torch.cuda, "Event", event_type(timeline))
    account = CudaStepAccount(ThreadTimes())
    account.restart()
    for _ in range(20):
        account.mark(PHASES.index("forward"))
        account.mark(PHASES.index("backward"))
        account.end(4, 0, None, 0, 0)
    told = account.take()
    assert len(told) == 20 - MOST_AHEAD
    assert all(step.wall_s == pytest.approx(3e-3) for step in told)
    account.finish()
    assert len(account.take()) == MOST_AHEAD


def test_cuda_graphs_do_not_go_with_accumulation() -> None:
    knobs = {"torch_compile": "reduce-overhead", "gradient_accumulation_steps": 2}
    with pytest.raises(ValueError, match="try default"):
        check_compile(knobs, CUDA)
    check_compile(knobs, torch.device("cpu"))
    check_compile({**knobs, "gradient_accumulation_steps": 1}, CUDA)


def test_what_a_probe_takes_is_not_the_jobs_peak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allocator = {"now": 1e9, "peak": 1e9}
    monkeypatch.setattr(memory, "peak_bytes", lambda device: allocator["peak"])
    monkeypatch.setattr(memory, "restart_peak", lambda device: allocator.update(peak=allocator["now"]))
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


def test_the_allocators_setting_is_ours_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    memory.set_up_allocator({"pytorch_alloc_conf": "expandable_segments:True"})
    assert "PYTORCH_CUDA_ALLOC_CONF" not in os.environ and os.environ["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    monkeypatch.delenv("PYTORCH_ALLOC_CONF")


@pytest.mark.parametrize(("version", "expected"), [("13.0", "1"), ("12.4", None), (None, None)])
def test_cupti_is_let_go_where_that_is_safe(monkeypatch: pytest.MonkeyPatch, version: str | None, expected: str | None) -> None:
    monkeypatch.setattr(torch.version, "cuda", version)
    monkeypatch.setenv("TEARDOWN_CUPTI", "x")
    monkeypatch.delenv("TEARDOWN_CUPTI")
    recorder._let_cupti_go_afterwards()
    assert os.environ.get("TEARDOWN_CUPTI") == expected


def test_a_kv_cache_that_does_not_fit_is_refused_before_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "_free_bytes", lambda device: 10**9)
    building._check_room(9 * 10**8, CUDA)
    with pytest.raises(ValueError, match=r"takes 2\.0 GB .* 1\.0 GB are free"):
        building._check_room(2 * 10**9, CUDA)


def test_every_served_scenario_fits_on_a_gpu() -> None:
    for scenario in scenarios()[0].values():
        if scenario.workload.name != "inference.serving":
            continue
        knobs = scenario.knobs_for("gpu")
        width, depth, seats, length = (int(knobs[name]) for name in ("d_model", "n_layer", "max_num_seqs", "max_model_len"))
        weights, cache = 12 * width * width * depth * 2, 2 * depth * width * 2 * seats * length
        assert weights + cache <= MOST_BYTES, f"{scenario.name}: {weights / 1e9:.0f} + {cache / 1e9:.0f} GB"
