"""The workloads that each show one cause: they run, they learn, and what they say of themselves is
so."""

from __future__ import annotations

import importlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gpuconsole.agent.counters import compile_counters
from gpuconsole.agent.world import World
from gpuconsole.engine.catalog import find_scenario
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.run import PHASES
from gpuconsole.wire.events import ProbeDone, RunProbe, Started
from gpuconsole.workloads.calibration import gemm, stream
from gpuconsole.workloads.calibration.repeating import RepeatingLoop
from gpuconsole.workloads.device_memory import allocator_stats
from gpuconsole.workloads.training import exchange, ragged, recommender
from gpuconsole.workloads.training.loop import TrainingLoop, losing_backward, lost_s
from gpuconsole.workloads.training.probes.memory import heap_peaks
from tests.workloads.running import RunningWorker, knobs_of
from tests.workloads.small import CPU, added_up, job_state, losses

SMALL: dict[str, dict[str, Any]] = {
    "embedding-bound": {"num_embeddings": 2000, "embedding_dim": 8, "batch_size": 64},
    "unfused-chain": {"batch_size": 32, "d_model": 64},
    "dynamic-shapes": {"batch_size": 64, "d_model": 32, "torch_compile": "off"},
    "fragmented-memory": {"batch_size": 16, "d_model": 32},
}


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def small_loop(scenario: str, folder: Path, **changes: Any) -> TrainingLoop:
    knobs = knobs_of(scenario, **{**SMALL[scenario], **changes})
    torch.manual_seed(0)
    module = importlib.import_module(
        f"gpuconsole.workloads.{find_scenario(scenario).workload.name}"
    )
    return TrainingLoop(module.create(knobs, CPU, 0), knobs, CPU, folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "changes"),
    [
        *((name, {}) for name in SMALL),
        ("embedding-bound", {"sparse": True}),
        ("fragmented-memory", {"precision": "bf16"}),
    ],
)
def test_it_learns(scenario: str, changes: Knobs, tmp_path: Path) -> None:
    loop = small_loop(scenario, tmp_path, lr_scheduler="constant", **changes)
    for group in loop.optimizer.param_groups:
        group["lr"] = 0.01  # a test has no time for the usual rate
    unseen = loop.task.eval_batch({**loop.knobs, "batch_size": 4 * int(loop.knobs["batch_size"])})

    def loss() -> float:
        with torch.no_grad():
            return loop.forward(unseen).item()

    before = loss()
    losses(loop, 100)
    loop.close()
    assert loss() < 0.97 * before


def test_sparse_gradients_update_the_rows_that_were_looked_up_and_no_others(tmp_path: Path) -> None:
    loop = small_loop("embedding-bound", tmp_path, sparse=True)
    model = loop.task.model
    assert isinstance(model, recommender.Recommender)
    before, mlp = model.table.weight.detach().clone(), model.mlp[0].weight.detach().clone()
    loop.step()
    assert loop.last_batch is not None
    changed = (model.table.weight.detach() != before).any(1).nonzero().flatten()
    assert changed.tolist() == loop.last_batch[0].unique().tolist()
    assert not torch.equal(model.mlp[0].weight, mlp)
    loop.set_knobs({"optim": "sgd", "log_gradients": True, "log_every": 1, "save_every": 1}, 0)
    loop.step()  # a histogram of a sparse gradient, a checkpoint with both optimizers in it
    loop.close()


def test_the_tables_facts_are_those_of_its_batches(tmp_path: Path) -> None:
    loop = small_loop("embedding-bound", tmp_path)
    task = loop.task
    assert isinstance(task, recommender.RecommenderTask)
    loop.step()
    assert loop.last_batch is not None
    facts = task.facts(loop.knobs)
    loop.close()
    assert facts["embedding.table_bytes"] == 2000 * 8 * 4
    assert facts["embedding.rows_touched_ratio"] == pytest.approx(
        loop.last_batch[0].unique().numel() / 2000, rel=0.1
    )


def test_verses_are_padded_to_the_longest_or_to_a_multiple() -> None:
    found = ragged.Verses()
    knobs: Knobs = {"batch_size": 16, "seq_len": 400, "pad_to_multiple_of": 0}
    tokens, named = found.batch(torch.tensor([0, 1, 2]), knobs)
    assert (
        bytes(tokens[0][tokens[0] != ragged.PADDING].tolist())
        == b"In the beginning God created the heaven and the earth."
    )
    assert tokens.shape == (3, int(found.lengths[:3].max()))
    assert (
        found.batch(torch.tensor([0, 1, 2]), {**knobs, "pad_to_multiple_of": 64})[0].shape[1] % 64
        == 0
    )
    assert found.batch(torch.tensor([0, 1, 2]), {**knobs, "seq_len": 20})[0].shape[1] == 20
    assert named.tolist() == [0, 0, 0]
    assert 0.1 < found.named.float().mean() < 0.5


def test_a_pass_of_the_exchange_gives_every_piece_a_gradient(tmp_path: Path) -> None:
    """In one process, so without an exchange. Two processes run the scenario
    allreduce-bandwidth."""
    knobs = knobs_of("allreduce-bandwidth", buffer_mb=0.25)
    loop = TrainingLoop(exchange.create(knobs, CPU, 0), knobs, CPU, tmp_path)
    loop.task.loss(loop.task.open_stream(knobs).next()).backward()
    gradients = [piece.grad for piece in loop.task.model.parameters()]
    assert len(gradients) == 16 and all(
        gradient is not None and not gradient.any() for gradient in gradients
    )
    loop.step()


def test_the_last_process_loses_time_in_the_chosen_phase_and_its_gradients_are_the_same() -> None:
    knobs: Knobs = {"straggler_phase": "backward", "straggler_ms": 20.0}

    def of(rank: int, size: int) -> World:
        world = World()
        world.rank, world.size = rank, size
        return world

    assert [lost_s("backward", knobs, of(rank, 2)) for rank in (0, 1)] == [0.0, 0.02]
    assert lost_s("forward", knobs, of(1, 2)) == lost_s("backward", knobs, of(0, 1)) == 0.0
    weight = torch.tensor(3.0, requires_grad=True)
    loss = losing_backward(weight.square(), 0.02)
    begun = time.perf_counter()
    loss.backward()
    assert time.perf_counter() - begun >= 0.02
    assert (loss.item(), weight.grad) == (9.0, torch.tensor(6.0))


@pytest.mark.parametrize(
    ("module", "knobs", "fact"),
    [
        (gemm, {"precision": "fp32", "num_threads": 1, "matrix_size": 64}, None),
        (stream, {"num_threads": 1, "buffer_mb": 0.5}, 3 * 0.5 * 2**20),
    ],
)
def test_work_that_is_repeated_has_steps_that_are_all_forward(
    module: Any, knobs: Knobs, fact: float | None, tmp_path: Path
) -> None:
    loop = RepeatingLoop(module.create_work(knobs, CPU, 0), knobs, CPU, tmp_path)
    loop.breakdown.restart()
    for _ in range(3):
        loop.step()
    loop.set_knobs({"num_threads": 2}, 1)
    loop.step()
    steps = added_up(loop.breakdown)
    assert [step.kind for step in steps] == [1, 0, 0, 1]
    assert all(
        step.samples > 0 and step.phases[PHASES.index("forward")] > 0.5 * step.wall_s
        for step in steps
    )
    assert loop.task.facts(knobs).get("bytes_per_sample") == fact
    with pytest.raises(ValueError, match="needs a restart"):
        loop.set_knobs({"matrix_size" if module is gemm else "buffer_mb": 128}, 0)


@pytest.mark.slow
def test_a_worker_repeats_work_and_says_that_there_is_nothing_to_probe() -> None:
    with RunningWorker("calibration.stream", knobs_of("memory-bandwidth", buffer_mb=4.0)) as worker:
        facts = worker.wait_for(Started).facts
        worker.send(RunProbe(1, "cached_batch"))
        refused = worker.wait_for(ProbeDone)
        steps = worker.run_until(lambda steps: len(steps) >= 3)
        worker.finish()
    assert "trains nothing" in (refused.error or "")
    assert facts["bytes_per_sample"] == 3 * 4 * 2**20
    assert facts["peak_bytes_per_s"] > 1e8
    assert steps[-1].loss is None


def test_the_compilers_counters_tell_recompiles_and_when_it_gives_up() -> None:
    torch._dynamo.reset()
    before = compile_counters()
    doubled = torch.compile(lambda x: x * 2, dynamic=False, backend="eager")
    seen = []
    for size in range(2, 13):
        doubled(torch.zeros(size))
        now = compile_counters()
        seen.append(
            (
                now["compile.graphs"] - before["compile.graphs"],
                now["compile.given_up"] - before["compile.given_up"],
            )
        )
    torch._dynamo.reset()
    assert seen[:3] == [(1, 0), (2, 0), (3, 0)]
    assert seen[-1] == (8, 1)
    assert now["compile.total_s"] > before["compile.total_s"]


def test_counters_before_the_first_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    # torch 2.5 returns an empty dict then
    monkeypatch.setattr("torch._dynamo.utils.calculate_time_spent", dict)
    assert compile_counters()["compile.total_s"] == 0.0


needs_glibc = pytest.mark.skipif(
    not allocator_stats(CPU), reason="the C library does not report what its heap holds"
)


@needs_glibc
def test_what_is_allocated_is_what_tensors_take() -> None:
    before = allocator_stats(CPU)["heap_allocated_bytes"]
    kept = [torch.empty(2**20) for _ in range(8)]
    assert allocator_stats(CPU)["heap_allocated_bytes"] - before == pytest.approx(
        8 * 4 * 2**20, rel=0.05
    )
    del kept


HOLES = """
import torch
from gpuconsole.workloads.device_memory import allocator_stats, fix_mmap_threshold

def unused():
    stats = allocator_stats(torch.device("cpu"))
    return (stats["heap_reserved_bytes"] - stats["heap_allocated_bytes"]) / 2**20

torch.empty(16 * 2**20, dtype=torch.uint8)  # freed at once: glibc raises its threshold to this
for kilobytes in (0, 256):
    fix_mmap_threshold(kilobytes)
    before = unused()
    blocks = [torch.empty(2 * 2**20, dtype=torch.uint8) for _ in range(64)]
    kept = blocks[::2]
    del blocks
    print(unused() - before)
    kept.clear()
"""


@needs_glibc
def test_holes_between_what_stays_are_lost_unless_blocks_are_mapped_one_by_one() -> None:
    found = subprocess.run(
        [sys.executable, "-c", HOLES], capture_output=True, check=True, text=True
    ).stdout.split()
    assert float(found[0]) > 50  # every other of 64 blocks of 2 MB
    assert float(found[1]) < 5


@needs_glibc
def test_the_heap_probe_leaves_the_job_as_it_was(tmp_path: Path) -> None:
    loop = small_loop("fragmented-memory", tmp_path)
    loop.step()
    before = job_state(loop)
    signals = heap_peaks(loop)
    after = job_state(loop)
    loop.close()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    peaks = {name: signal.value for name, signal in signals.items()}
    assert 0 < peaks["memory.heap_allocated_peak_bytes"] <= peaks["memory.heap_reserved_peak_bytes"]
