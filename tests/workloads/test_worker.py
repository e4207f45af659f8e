import itertools
import os
import signal

import psutil
import pytest

from gpuconsole.model.run import PHASES
from gpuconsole.wire.events import Failed, KnobsSet, Pause, ProbeDone, Resume, RunProbe, SetKnobs, Started, Steps
from tests.waiting import gone, wait_until
from tests.workloads.running import RunningWorker, knobs_of


def small_gpt(**changes: object) -> dict:  # type: ignore[type-arg]
    return knobs_of("train-gpt", batch_size=2, seq_len=32, d_model=64, n_layer=2, **changes)


def test_a_run_counts_phases_that_sum_to_the_step_and_the_loss_falls() -> None:
    with RunningWorker("training.gpt", small_gpt(log_every=5, save_every=10, eval_every=20), max_steps=300) as worker:
        started = worker.wait_for(Started)
        steps = worker.read_to_end()
    assert [step.index for step in steps] == list(range(300))
    assert all(sum(step.phases) == pytest.approx(step.wall_s, rel=1e-6) for step in steps)
    wall = sum(step.wall_s for step in steps)
    share = {name: sum(step.phases[i] for step in steps) / wall for i, name in enumerate(PHASES)}
    assert sum(share.values()) == pytest.approx(1.0, abs=0.001)
    assert all(share[name] > 0 for name in ("data_wait", "forward", "backward", "optimizer", "logging", "checkpoint", "eval"))
    losses = [step.loss for step in steps if step.loss is not None]
    assert sum(losses[-20:]) / 20 < 0.8 * sum(losses[:5]) / 5
    # contiguous: a step's wall time is the time since the previous step ended
    gaps = [b.t - a.t for a, b in itertools.pairwise(steps[50:])]
    assert [step.wall_s for step in steps[51:]] == pytest.approx(gaps, abs=1e-6)
    assert started.facts["parameters"] > 100_000
    sampled = sum(step.runq is not None for step in steps)
    assert 300 / 16 * 0.5 < sampled < 300 / 16 * 2


def test_flops_equal_the_published_formula() -> None:
    """6 N + 12 L d T a token (PaLM appendix B), N without embeddings: within 1 %."""
    knobs = small_gpt()
    with RunningWorker("training.gpt", knobs, max_steps=1) as worker:
        facts = worker.wait_for(Started).facts
    d, layers, tokens = 64, 2, 32
    linear = layers * 12 * d * d + d * 256
    expected = (6 * linear + 12 * layers * d * tokens) * tokens
    assert facts["flops_per_sample"] == pytest.approx(expected, rel=0.01)


def test_hot_knobs_change_between_two_steps_and_cold_ones_are_refused() -> None:
    with RunningWorker("training.gpt", small_gpt()) as worker:
        worker.run_until(lambda steps: len(steps) >= 5)
        worker.send(SetKnobs(1, {"batch_size": 4, "optim": "adamw", "gradient_accumulation_steps": 2}, 2))
        answer = worker.wait_for(KnobsSet)
        assert answer.error is None
        worker.run_until(lambda steps: steps[-1].index > answer.step + 3)
        worker.send(SetKnobs(2, {"n_layer": 4}, 0))
        refused = worker.wait_for(KnobsSet)
        worker.finish()
    assert refused.error is not None
    assert "n_layer" in refused.error
    after = [step for step in worker.steps if step.index >= answer.step]
    assert {step.samples for step in worker.steps if step.index < answer.step} == {2}
    assert {step.samples for step in after} == {8}
    assert after[0].kind == 1  # settling
    assert after[2].arm == 2
    assert after[2].runq is not None  # trial steps all carry run-queue delay


def test_every_hot_value_of_every_knob_works_on_a_cpu() -> None:
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
    with RunningWorker("training.gpt", small_gpt(log_every=1)) as worker:
        for knob, options in values.items():
            for value in options:
                worker.send(SetKnobs(1, {knob: value}, 0))
                answer = worker.wait_for(KnobsSet)
                assert answer.error is None, (knob, value)
                worker.run_until(lambda steps, first=answer.step: bool(steps) and steps[-1].index > first)  # type: ignore[misc]
        worker.finish()


def test_vision_switches_between_loaders_and_counts_samples() -> None:
    knobs = knobs_of("vision-healthy", batch_size=8, num_workers=0, width=8)
    with RunningWorker("training.vision", knobs) as worker:
        worker.run_until(lambda steps: len(steps) >= 4)
        for request, workers in enumerate((1, 0, 2)):
            worker.send(SetKnobs(request, {"num_workers": workers, "channels_last": bool(workers)}, 1))
            answer = worker.wait_for(KnobsSet)
            assert answer.error is None
            worker.run_until(lambda steps, first=answer.step: bool(steps) and steps[-1].index > first + 8)  # type: ignore[misc]
        worker.finish()
    assert {step.samples for step in worker.steps} == {8}


def test_pause_stands_still_until_resumed() -> None:
    with RunningWorker("training.gpt", small_gpt()) as worker:
        worker.run_until(lambda steps: len(steps) >= 3)
        worker.send(Pause())
        worker.send(Resume(2))
        worker.run_until(lambda steps: steps[-1].arm == 2)
        worker.finish()
    paused = next(step for step in worker.steps if step.arm == 2)
    assert paused.wall_s < 5.0


def test_a_change_that_does_not_fit_is_refused_and_the_run_goes_on() -> None:
    with RunningWorker("training.gpt", small_gpt()) as worker:
        worker.run_until(lambda steps: len(steps) >= 2)
        limit = psutil.Process(worker.process.pid).memory_info().vms + 300 * 2**20
        psutil.Process(worker.process.pid).rlimit(psutil.RLIMIT_AS, (limit, limit))
        worker.send(SetKnobs(1, {"batch_size": 4096, "seq_len": 128}, 0))
        answer = worker.wait_for(KnobsSet)
        worker.run_until(lambda steps: steps[-1].index > answer.step + 3)
        worker.finish()
    assert answer.error is not None
    assert answer.error.startswith("out of memory at batch_size 4096")
    assert worker.steps[-1].samples == 2  # and the run goes on as before


def test_a_change_that_the_model_cannot_take_is_refused_and_the_run_goes_on() -> None:
    with RunningWorker("training.gpt", small_gpt()) as worker:
        worker.run_until(lambda steps: len(steps) >= 2)
        worker.send(SetKnobs(1, {"seq_len": 4096}, 0))
        answer = worker.wait_for(KnobsSet)
        worker.run_until(lambda steps: steps[-1].index > answer.step + 3)
        worker.finish()
    assert "positions" in (answer.error or "")


def test_unknown_workload_is_a_failure_not_a_hang() -> None:
    with RunningWorker("training.nothing", small_gpt()) as worker:
        assert "training.nothing" in worker.wait_for(Failed).cause


def test_without_torch_one_line_says_what_to_install(tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')")
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}"}
    with RunningWorker("training.gpt", small_gpt(), env=env) as worker:
        assert worker.wait_for(Failed).cause == 'torch is not installed: pip install "gpuconsole[torch]"'


def test_the_parents_end_ends_the_worker_and_its_loader_processes() -> None:
    knobs = knobs_of("vision-healthy", batch_size=8, num_workers=2, width=8)
    with RunningWorker("training.vision", knobs) as worker:
        worker.run_until(lambda steps: len(steps) >= 2)
        pids = [worker.process.pid, *(child.pid for child in psutil.Process(worker.process.pid).children(recursive=True))]
        assert len(pids) >= 3
        worker._lines.close()
        worker.socket.close()
        wait_until(lambda: worker.process.poll() is not None, 2.0, "worker gone within 2 s")
        wait_until(lambda: all(gone(pid) for pid in pids), 2.0, "loader workers gone within 2 s")


def test_a_killed_worker_takes_its_loader_processes_along() -> None:
    knobs = knobs_of("vision-healthy", batch_size=8, num_workers=2, width=8)
    with RunningWorker("training.vision", knobs) as worker:
        worker.run_until(lambda steps: len(steps) >= 2)
        children = [child.pid for child in psutil.Process(worker.process.pid).children(recursive=True)]
        assert len(children) >= 2
        os.kill(worker.process.pid, signal.SIGKILL)
        wait_until(lambda: all(gone(pid) for pid in children), 2.0, "loader workers gone within 2 s")


def test_overhead_is_reported() -> None:
    with RunningWorker("training.gpt", small_gpt(), max_steps=50) as worker:
        worker.read_to_end()
    last = [event for event in worker.events if isinstance(event, Steps)][-1]
    assert 0 < last.overhead_s / 50 < 0.01
    assert last.cpu_s > 0
    assert last.memory_bytes > 100e6
    assert last.dropped == 0


@pytest.mark.parametrize("probe", ["cached_batch", "batch_elasticity", "side_work_off"])
def test_probes_answer_with_signals_and_their_cost(probe: str) -> None:
    with RunningWorker("training.gpt", small_gpt(log_every=1)) as worker:
        worker.run_until(lambda steps: len(steps) >= 5)
        worker.send(RunProbe(7, probe))
        done = worker.wait_for(ProbeDone)
        worker.finish()
    assert (done.request, done.error) == (7, None)
    assert done.signals
    assert all(signal.value > 0 and "probe" in signal.source for signal in done.signals.values())
    assert done.cost_s < 20
    if probe == "side_work_off":
        marked = [step for step in worker.steps if step.kind == 2]
        assert marked
        assert all(step.phases[PHASES.index("logging")] == 0 for step in marked)
