"""A real worker process at the other end of its socket.

Importing torch is most of a test here, so facts that do not disturb each other are asked of the
same worker.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gpuconsole.agent.step_breakdown import SAMPLE_SPAN_S
from gpuconsole.host.installation import install_command
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.run import PHASES
from gpuconsole.wire.events import (
    Failed,
    KnobsSet,
    Pause,
    Paused,
    ProbeDone,
    Resume,
    RunProbe,
    SetKnobs,
    Started,
    Steps,
)
from tests.no_torch import without_torch
from tests.waiting import gone, wait_until
from tests.workloads.running import RunningWorker, knobs_of

of_one_run = pytest.mark.xdist_group("a finished run")


def small_gpt(**changes: object) -> Knobs:
    return knobs_of("train-gpt", batch_size=2, seq_len=32, d_model=64, n_layer=2, **changes)


# --- one run from its start to its end ------------------------------------------------------------


@pytest.fixture(scope="module")
def finished() -> RunningWorker:
    """What a worker has said of 200 steps."""
    with RunningWorker(
        "training.gpt", small_gpt(log_every=5, save_every=10, eval_every=20), max_steps=200
    ) as worker:
        worker.read_to_end()
    return worker


def started(worker: RunningWorker) -> Started:
    return next(event for event in worker.events if isinstance(event, Started))


@of_one_run
def test_a_run_counts_phases_that_sum_to_the_step_and_the_loss_falls(
    finished: RunningWorker,
) -> None:
    steps = finished.steps
    assert [step.index for step in steps] == list(range(200))
    assert all(sum(step.phases) == pytest.approx(step.wall_s, rel=1e-6) for step in steps)
    wall = sum(step.wall_s for step in steps)
    share = {name: sum(step.phases[i] for step in steps) / wall for i, name in enumerate(PHASES)}
    assert sum(share.values()) == pytest.approx(1.0, abs=0.001)
    assert all(
        share[name] > 0
        for name in (
            "data_wait",
            "forward",
            "backward",
            "optimizer",
            "logging",
            "checkpoint",
            "eval",
        )
    )
    losses = [step.loss for step in steps if step.loss is not None]
    assert sum(losses[-20:]) / 20 < 0.8 * sum(losses[:5]) / 5
    # contiguous: a step's wall time is the time since the previous step ended
    gaps = [b.t - a.t for a, b in itertools.pairwise(steps[50:])]
    assert [step.wall_s for step in steps[51:]] == pytest.approx(gaps, abs=1e-6)
    assert started(finished).facts["parameters"] > 100_000
    sampled = sum(step.runq is not None for step in steps)
    # until what is usual is known each of them; then one in so long
    early = sum(step.t - steps[0].t < 0.5 for step in steps)
    assert wall / SAMPLE_SPAN_S / 4 < sampled < early + 3 * wall / SAMPLE_SPAN_S


@of_one_run
def test_flops_equal_the_published_formula(finished: RunningWorker) -> None:
    """6 N + 12 L d T a token (PaLM appendix B), N without embeddings: within 1 %."""
    d, layers, tokens = 64, 2, 32
    linear = layers * 12 * d * d + d * 256
    expected = (6 * linear + 12 * layers * d * tokens) * tokens
    assert started(finished).facts["flops_per_sample"] == pytest.approx(expected, rel=0.01)


@of_one_run
def test_overhead_is_reported(finished: RunningWorker) -> None:
    last = [event for event in finished.events if isinstance(event, Steps)][-1]
    assert 0 < last.overhead_s / len(finished.steps) < 0.01
    assert last.cpu_s > 0
    assert last.memory_bytes > 100e6
    assert last.dropped == 0


# --- commands to a run that goes on ---------------------------------------------------------------


@pytest.fixture(scope="module")
def paused() -> Iterator[RunningWorker]:
    """A run that stands still between two tests."""
    with RunningWorker("training.gpt", small_gpt(log_every=1)) as worker:
        worker.run_until(lambda steps: len(steps) >= 5)
        worker.send(Pause())
        yield worker
        worker.send(Resume())
        worker.finish()


@pytest.fixture
def worker(paused: RunningWorker) -> Iterator[RunningWorker]:
    """It goes on, and has said nothing yet. A test leaves its knobs as it has found them."""
    since = time.monotonic()
    paused.send(Resume())
    paused.run_until(lambda steps: bool(steps) and steps[-1].t > since)
    paused.steps.clear()
    paused.events.clear()
    paused.run_until(lambda steps: len(steps) >= 2)
    yield paused
    paused.send(Pause())


def change(worker: RunningWorker, knobs: Knobs, arm: int = 0) -> KnobsSet:
    """Ask for it, and read on until some steps have been made with it, or without."""
    worker.send(SetKnobs(1, knobs, arm))
    answer = worker.wait_for(KnobsSet)
    worker.run_until(lambda steps: bool(steps) and steps[-1].index > answer.step + 3)
    return answer


@pytest.mark.slow
@pytest.mark.xdist_group("a run that goes on")
def test_hot_knobs_change_between_two_steps_and_cold_ones_are_refused(
    worker: RunningWorker,
) -> None:
    answer = change(
        worker, {"batch_size": 4, "optim": "adamw", "gradient_accumulation_steps": 2}, arm=2
    )
    steps = list(worker.steps)
    refused = change(worker, {"n_layer": 4})
    assert (
        change(
            worker, {"batch_size": 2, "optim": "adamw_fused", "gradient_accumulation_steps": 1}
        ).error
        is None
    )
    assert answer.error is None
    assert refused.error is not None
    assert "n_layer" in refused.error
    after = [step for step in steps if step.index >= answer.step]
    assert {step.samples for step in steps if step.index < answer.step} == {2}
    assert {step.samples for step in after} == {8}
    assert after[0].kind == 1  # settling
    assert after[2].arm == 2
    assert after[2].runq is not None  # trial steps all carry run-queue delay


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.xdist_group("a run that goes on")
def test_every_hot_value_of_every_knob_works_on_a_cpu(worker: RunningWorker) -> None:
    values = {
        "precision": ["bf16", "tf32", "fp16", "fp32"],
        "gradient_checkpointing": [True, False],
        "attention": ["math", "sdpa"],
        "optim": ["adamw", "adamw_foreach", "sgd", "adamw_fused"],
        "lr_scheduler": ["cosine", "linear", "constant"],
        "warmup_steps": [5],
        "non_blocking": [False],
        "h2d_stream": [True],
        "pad_to_multiple_of": [16],
        "varied_lengths": [True, False],
        "num_threads": [1, 2, 0],
        "log_gradients": [True],
    }
    before = small_gpt(log_every=1)
    for knob, options in values.items():
        for value in options:
            assert change(worker, {knob: value}).error is None, (knob, value)
    assert change(worker, {knob: before[knob] for knob in values}).error is None


@pytest.mark.slow
@pytest.mark.xdist_group("a run that goes on")
def test_pause_stands_still_until_resumed(worker: RunningWorker) -> None:
    """Its answer comes after the last step, however often one asks."""
    worker.send(Pause(5))
    assert worker.wait_for(Paused).request == 5
    made = len(worker.steps)
    worker.send(Pause(6))
    assert worker.wait_for(Paused).request == 6
    worker.send(SetKnobs(7, {"log_every": 2}))
    assert "paused" in (worker.wait_for(KnobsSet).error or "")
    assert len(worker.steps) == made
    worker.send(Resume(2))
    worker.run_until(lambda steps: steps[-1].arm == 2)
    resumed = next(step for step in worker.steps if step.arm == 2)
    assert resumed.wall_s < 5.0
    worker.send(Resume(0))


@pytest.mark.slow
@pytest.mark.xdist_group("a run that goes on")
def test_a_change_that_the_model_cannot_take_is_refused_and_the_run_goes_on(
    worker: RunningWorker,
) -> None:
    assert "positions" in (change(worker, {"seq_len": 4096}).error or "")


@pytest.mark.slow
@pytest.mark.xdist_group("a run that goes on")
@pytest.mark.parametrize("probe", ["cached_batch", "batch_elasticity", "side_work_off"])
def test_probes_answer_with_signals_and_their_cost(worker: RunningWorker, probe: str) -> None:
    worker.send(RunProbe(7, probe))
    done = worker.wait_for(ProbeDone)
    assert (done.request, done.error) == (7, None)
    assert done.signals
    assert all(signal.value > 0 and "probe" in signal.source for signal in done.signals.values())
    assert done.cost_s < 20
    if probe == "side_work_off":
        seen = worker.steps[-1].index
        worker.run_until(lambda steps: steps[-1].index > seen)
        marked = [step for step in worker.steps if step.kind == 2]
        assert marked
        assert all(step.phases[PHASES.index("logging")] == 0 for step in marked)


@pytest.mark.slow
@pytest.mark.xdist_group("a run that goes on")
def test_a_change_that_does_not_fit_is_refused_and_the_run_goes_on(worker: RunningWorker) -> None:
    process = psutil.Process(worker.process.pid)
    limits = process.rlimit(psutil.RLIMIT_AS)
    process.rlimit(psutil.RLIMIT_AS, (process.memory_info().vms + 300 * 2**20, limits[1]))
    answer = change(worker, {"batch_size": 4096, "seq_len": 128})
    process.rlimit(psutil.RLIMIT_AS, limits)
    assert answer.error is not None
    assert answer.error.startswith("out of memory at batch_size 4096")
    assert worker.steps[-1].samples == 2  # and the run goes on as before


# --- how workers end ------------------------------------------------------------------------------


@pytest.mark.slow
def test_loaders_are_switched_and_end_with_their_worker_when_the_parent_does() -> None:
    knobs = knobs_of("vision-healthy", batch_size=8, num_workers=0, width=8)
    with RunningWorker("training.vision", knobs) as worker:
        worker.run_until(lambda steps: len(steps) >= 4)
        for workers in (1, 0, 2):
            answer = change(worker, {"num_workers": workers, "channels_last": bool(workers)}, arm=1)
            assert answer.error is None
            worker.run_until(lambda steps, first=answer.step: steps[-1].index > first + 8)  # type: ignore[misc]
        assert {step.samples for step in worker.steps} == {8}
        pids = [
            worker.process.pid,
            *(child.pid for child in psutil.Process(worker.process.pid).children(recursive=True)),
        ]
        assert len(pids) >= 3
        worker._lines.close()
        worker.socket.close()
        wait_until(lambda: worker.process.poll() is not None, 10, "the worker's end")
        wait_until(lambda: all(gone(pid) for pid in pids), 10, "the end of its loader processes")


@pytest.mark.slow
def test_a_killed_worker_takes_its_loader_processes_along() -> None:
    knobs = knobs_of("vision-healthy", batch_size=8, num_workers=2, width=8)
    with RunningWorker("training.vision", knobs) as worker:
        worker.run_until(lambda steps: len(steps) >= 2)
        children = [
            child.pid for child in psutil.Process(worker.process.pid).children(recursive=True)
        ]
        assert len(children) >= 2
        os.kill(worker.process.pid, signal.SIGKILL)
        wait_until(
            lambda: all(gone(pid) for pid in children), 10, "the end of its loader processes"
        )


def test_unknown_workload_is_a_failure_not_a_hang() -> None:
    with RunningWorker("training.nothing", small_gpt()) as worker:
        assert "training.nothing" in worker.wait_for(Failed).cause


def test_without_torch_one_line_says_what_to_install(tmp_path: Path) -> None:
    with RunningWorker(
        "training.gpt", small_gpt(), env={**os.environ, **without_torch(tmp_path)}
    ) as worker:
        assert (
            worker.wait_for(Failed).cause == f"torch is not installed: {install_command('torch')}"
        )
