"""Profiler windows of real workers and loops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from gpuconsole.model.profile import ProfileReport
from gpuconsole.wire.events import Pause, Profile, Profiled, Resume
from gpuconsole.workloads.profiling.summary import Update
from gpuconsole.workloads.profiling.trace import read_trace
from gpuconsole.workloads.profiling.window import ProfileError, Profiling, profile_passes, update_of
from gpuconsole.workloads.training import gpt, vision
from gpuconsole.workloads.training.loop import TrainingLoop
from gpuconsole.workloads.training.probes.catalog import op_mix
from tests.waiting import wait_until
from tests.workloads.running import RunningWorker, knobs_of

CPU = torch.device("cpu")


def small_gpt(**changes: Any) -> Any:
    return knobs_of(
        "train-gpt", batch_size=4, seq_len=64, d_model=128, n_layer=2, num_threads=1, **changes
    )


def share(report: ProfileReport, name: str) -> float:
    return next((one.share_ratio for one in report.classes if one.name == name), 0.0)


def most_flops(report: ProfileReport) -> str:
    return max(report.classes, key=lambda one: one.flops or 0.0).name


@pytest.mark.slow
def test_a_window_of_a_worker_that_goes_on_training(tmp_path: Path) -> None:
    kept = tmp_path / "trace.json.gz"
    with RunningWorker("training.gpt", small_gpt()) as worker:
        worker.run_until(lambda steps: len(steps) >= 5)
        worker.send(Profile(1, 2, str(kept)))
        answer = worker.wait_for(Profiled)
        profiled = [step for step in worker.steps if step.kind == 2]
        after = len(worker.steps)
        worker.run_until(lambda steps: steps[-1].kind == 0 and len(steps) > after)
        assert (answer.request, answer.error) == (1, None)
        assert answer.report is not None
        assert len(profiled) == 1 + 2  # one to warm the profiler up; none of them counts
        indices = [step.index for step in worker.steps]
        assert indices == list(range(len(indices)))

        worker.send(Pause())
        worker.send(Profile(2, 2, str(kept)))
        assert worker.wait_for(Profiled).error == "the worker is paused"
        worker.send(Resume())
        worker.send(Profile(3, 1, str(tmp_path / "nowhere" / "t.json.gz")))
        second = worker.wait_for(Profiled).report
    report = answer.report
    assert report.steps == 2
    assert sum(one.share_ratio for one in report.classes) == pytest.approx(1.0)
    # by count: on a busy machine a pause in any one operator is a large share of two steps
    assert most_flops(report) == "gemm"
    assert {"attention", "elementwise", "normalization", "optimizer"} <= {
        one.name for one in report.classes
    }
    optimizer = next(one for one in report.classes if one.name == "optimizer")
    parameters = 12 * 128 * 128 * 2
    assert optimizer.bytes is not None
    # of both steps: AdamW reads four and writes three numbers a parameter
    assert optimizer.bytes > 2 * 7 * 4 * parameters
    assert 0 < report.busy_ratio <= 1
    assert report.trace == str(kept)
    events = read_trace(kept)
    assert sum(event.name.startswith("ProfilerStep#") for event in events) == 2
    assert second is not None
    assert "was not kept" in second.notes[0]


@pytest.fixture
def loop(tmp_path: Path) -> Any:
    threads = torch.get_num_threads()
    knobs = small_gpt()
    loop = TrainingLoop(gpt.create(knobs, CPU, 0), knobs, CPU, tmp_path)
    for _ in range(2):
        loop.step()
    yield loop
    loop.close()
    torch.set_num_threads(threads)


def window(loop: TrainingLoop, keep: Path) -> Profiled:
    answers: list[Profiled] = []
    profiling = Profiling(loop, answers.append, leads=True)
    profiling.take(Profile(1, 1, str(keep)))
    wait_until(lambda: profiling.poll() or answers, 60)
    return answers[0]


def test_where_another_profiler_runs_there_is_no_window_and_training_goes_on(
    loop: TrainingLoop, tmp_path: Path
) -> None:
    with profile(activities=[ProfilerActivity.CPU]):
        answer = window(loop, tmp_path / "t.json.gz")
        with pytest.raises(ProfileError, match="another profiler"):
            profile_passes(loop.step, 1, CPU, tmp_path)
    assert answer.report is None
    assert (
        answer.error
        == "torch.profiler cannot profile here: another profiler is running in this process"
    )
    loop.step()
    assert loop.breakdown.take()[-1].kind in (0, 1)


def test_of_several_processes_one_answers_and_all_take_the_steps(
    loop: TrainingLoop, tmp_path: Path
) -> None:
    answers: list[Profiled] = []
    Profiling(loop, answers.append, leads=False).take(Profile(1, 2, str(tmp_path / "t.json.gz")))
    assert answers == []
    assert [step.kind for step in loop.breakdown.take()].count(2) == 3


@pytest.mark.slow
def test_a_compiled_model(loop: TrainingLoop, tmp_path: Path) -> None:
    """Dynamo and AOTAutograd without the C++ compiler, whose code is told by the span around it
    (see test_summary)."""
    loop.task.model = torch.compile(loop.task.model, backend="aot_eager")  # type: ignore[assignment]
    loop.step()
    answer = window(loop, tmp_path / "t.json.gz")
    assert answer.error is None
    assert answer.report is not None
    assert most_flops(answer.report) == "gemm"


def test_shapes_give_the_flops_that_the_formulas_give(loop: TrainingLoop, tmp_path: Path) -> None:
    batch = loop.last_batch
    assert batch is not None

    def one_pass() -> None:
        loop.forward(batch).backward()

    report = profile_passes(one_pass, 1, CPU, tmp_path)
    found = {one.name: one.flops or 0.0 for one in report.classes}
    attention = 12 * 2 * 128 * 64 * 64 * len(batch[0])  # 12 L d T a token, not causal: 6 products
    # 7 of them with the scores computed anew, half of each skipped
    assert found["attention"] == pytest.approx(attention * 7 / 6 / 2)
    assert found["gemm"] + attention == pytest.approx(
        loop.task.flops_per_sample(loop.knobs) * len(batch[0])
    )


def test_shapes_give_the_flops_of_convolutions(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    knobs = knobs_of("vision-healthy", batch_size=2, num_workers=0, width=8)
    loop = TrainingLoop(vision.create(knobs, CPU, 0), knobs, CPU, tmp_path)
    loop.step()
    batch = loop.last_batch
    assert batch is not None
    report = profile_passes(lambda: loop.forward(batch).backward(), 1, CPU, tmp_path)
    dense = sum(one.flops or 0.0 for one in report.classes if one.name in ("convolution", "gemm"))
    loop.close()
    torch.set_num_threads(threads)
    assert dense == pytest.approx(loop.task.flops_per_sample(knobs) * 2, rel=0.01)


def test_elementwise_work_dominates_a_chain_of_it(tmp_path: Path) -> None:
    x = torch.randn(512, 1024, requires_grad=True)

    def chain() -> None:
        y = x
        for _ in range(8):
            y = torch.nn.functional.gelu(y) * torch.sigmoid(y) + x
        y.sum().backward()

    report = profile_passes(chain, 1, CPU, tmp_path)
    assert share(report, "elementwise") > 0.5


def test_the_probes_signals(loop: TrainingLoop) -> None:
    signals = op_mix(loop)
    ratios = [
        signal.value
        for name, signal in signals.items()
        if name.endswith("_ratio") and name != "profile.busy_ratio"
    ]
    assert sum(ratios) == pytest.approx(1.0)
    assert signals["profile.gemm_ratio"].value > 0
    assert signals["profile.elementwise_bytes"].value > 0
    assert signals["profile.mean_kernel_s"].value * signals["profile.launches_per_s"].value <= 1.0


def test_an_optimizer_step_moves_what_it_holds() -> None:
    weight = torch.nn.Parameter(torch.zeros(10, 10))
    optimizer = torch.optim.AdamW([weight], fused=True)
    weight.sum().backward()
    optimizer.step()
    assert update_of(optimizer) == Update(elements=100, bytes=7 * 4 * 100)
