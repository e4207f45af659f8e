"""Passive signals of a user's own job: the same names as the probes' signals, from the step
breakdown and the counters of the agent."""

from __future__ import annotations

import pytest

from gpuconsole.diagnosis.engine import evaluate
from gpuconsole.diagnosis.rule import Case
from gpuconsole.diagnosis.signals.run import run_signals
from gpuconsole.model.finding import Signal
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.machine import Device
from gpuconsole.model.run import PHASES, Step, Summary
from gpuconsole.session.state import SessionState
from gpuconsole.wire.events import Devices, ProbeDone, RunOpened, Started, Steps

KNOBS: Knobs = {
    "num_workers": 0,
    "batch_size": 16,
    "num_threads": 1,
    "precision": "fp32",
    "optim": "adamw_fused",
}


def watched(
    phases: dict[str, float],
    knobs: Knobs,
    rare: dict[str, float] | None = None,
    every: int = 1,
    held_s: float = 0.0,
    **per_step: float,
) -> tuple[dict[str, Signal], str]:
    """The signals of a job with such phases in seconds, and the rule of its first finding. `rare`:
    phases of each step number `every`.

    `per_step`: the growth of a counter in each step; `loader__here_s` is `loader.here_s`. `held_s`:
    a probe holds the training thread for so long before the message number 10, and the workers
    sleep meanwhile.
    """
    state = SessionState()
    state.apply(Devices(0.0, [Device("cpu", "cpu")]))
    state.apply(RunOpened(0.0, "1", "train.py", "job", {}, "cpu"))
    state.apply(Started(0.0, {**KNOBS, **knobs}, {"threads": 1.0}, {}))
    t = 0.0
    for message in range(20):
        steps = []
        for number in range(10):
            index = 10 * message + number
            parts = phases | (rare or {} if index % every == 0 else {})
            wall = sum(parts.values())
            t += wall
            steps.append(
                Step(
                    index,
                    t,
                    wall,
                    16,
                    0,
                    tuple(parts.get(name, 0.0) for name in PHASES),
                    (0.0,) * len(PHASES),
                )
            )
        counters = {
            name.replace("__", "."): value * 10 * (message + 1) for name, value in per_step.items()
        }
        if held_s and message >= 10:
            counters["loader.workers_s"] += held_s
        if held_s and message == 10:
            t += held_s
            state.apply(ProbeDone(t, 1, "batch_elasticity", cost_s=held_s))
        state.apply(
            Steps(
                t, steps, 0.0, 0.0, 0.0, 1e6, 0, 0, {"work.steps": 10.0 * (message + 1), **counters}
            )
        )
    record = state.record
    assert record is not None
    record.steady_t = 0.0
    signals = run_signals(record, Summary(), 4, None)
    fired = [
        one.rule
        for one in evaluate(Case.of(record.run, signals))
        if one.state == "fires" and not one.note
    ]
    return signals, fired[0] if fired else ""


WORK = {"forward": 0.01, "backward": 0.02}


@pytest.mark.parametrize(
    ("cpu_s", "rule"),
    [(0.004, "input.slow_storage"), (0.038, "input.too_few_workers")],
    ids=["the thread sleeps", "the thread computes"],
)
def test_loading_in_the_training_thread(cpu_s: float, rule: str) -> None:
    signals, first = watched(
        {"data_wait": 0.04, **WORK},
        {},
        loader__here_s=0.04,
        loader__here_cpu_s=cpu_s,
        loader__here_runq_s=0.0,
    )
    assert signals["probe.loader_cpu_ratio"].value == pytest.approx(cpu_s / 0.04)
    assert signals["probe.loader_samples_per_s"].value == pytest.approx(16 / 0.04)
    assert "nothing was tried" in signals["probe.loader_cpu_ratio"].source
    assert first == rule


@pytest.mark.parametrize(
    ("counters", "rule"),
    [
        ({"loader__workers_s": 0.07, "loader__workers_cpu_s": 0.01}, "input.slow_storage"),
        ({"loader__workers_s": 0.07, "loader__workers_cpu_s": 0.07}, "input.too_few_workers"),
        (
            {
                "loader__workers_s": 0.07,
                "loader__workers_cpu_s": 0.02,
                "loader__here_s": 0.04,
                "loader__here_cpu_s": 0.036,
            },
            "input.ipc_collate",
        ),
    ],
    ids=["workers sleep", "the worker computes", "the training process unpacks"],
)
def test_loading_in_a_worker(counters: dict[str, float], rule: str) -> None:
    signals, first = watched(
        {"data_wait": 0.04, **WORK}, {"num_workers": 1, "prefetch_factor": 2}, **counters
    )
    assert signals["probe.loader_samples_per_s"].value == pytest.approx(16 / 0.07)
    assert first == rule


def test_the_time_in_which_a_probe_held_the_job_is_not_the_workers_waiting() -> None:
    counters = {
        "loader__workers_s": 0.07,
        "loader__workers_cpu_s": 0.07,
        "loader__workers_runq_s": 0.0,
    }
    signals, _ = watched({"data_wait": 0.04, **WORK}, {"num_workers": 1}, held_s=4.0, **counters)
    assert signals["probe.loader_cpu_ratio"].value == pytest.approx(1.0)


def test_a_loader_that_keeps_up_has_no_rate() -> None:
    signals, first = watched(
        {"data_wait": 0.0005, **WORK}, {}, loader__here_s=0.0005, loader__here_cpu_s=0.0005
    )
    assert "probe.loader_samples_per_s" not in signals
    assert first == ""


def test_a_worker_that_sleeps_while_most_batches_are_ready_is_not_accused() -> None:
    """It may wait for room in a full queue."""
    signals, first = watched(
        {"data_wait": 0.001, **WORK},
        {"num_workers": 1, "prefetch_factor": 2},
        {"data_wait": 0.02},
        6,
        loader__workers_s=0.034,
        loader__workers_cpu_s=0.004,
    )
    assert signals["data_wait_ratio"].value > 0.1
    assert "probe.loader_cpu_ratio" not in signals
    assert first == "input.jitter", "single late batches, whatever the workers do"


def test_late_batches_of_several_workers_say_nothing_about_their_rate() -> None:
    """Whether the workers wait for storage or for room in a full queue cannot be seen: the probe
    must measure."""
    signals, first = watched(
        {"data_wait": 0.0, **WORK},
        {"num_workers": 2, "prefetch_factor": 2},
        {"data_wait": 0.2},
        10,
        loader__workers_s=0.1,
        loader__workers_cpu_s=0.01,
    )
    assert signals["data_wait_ratio"].value > 0.1
    assert "probe.loader_samples_per_s" not in signals
    assert first == ""


def test_workers_that_deliver_their_batches_together_are_too_slow() -> None:
    """Two workers of the same pace: every other step waits for both batches, so the median step
    does not show the wait."""
    signals, first = watched(
        {"data_wait": 0.0, **WORK},
        {"num_workers": 2, "prefetch_factor": 2},
        {"data_wait": 0.25},
        2,
        loader__workers_s=0.31,
        loader__workers_cpu_s=0.01,
    )
    assert signals["probe.loader_samples_per_s"].value == pytest.approx(
        16 / signals["step_s"].value
    )
    assert first == "input.slow_storage"


@pytest.mark.parametrize(
    ("phase", "rule", "knob"),
    [
        ("checkpoint", "host.checkpoint_stall", "save_every"),
        ("logging", "host.logging_io", "log_every"),
        ("eval", "host.eval_stall", "eval_every"),
    ],
)
def test_side_work_is_found_without_leaving_it_out(phase: str, rule: str, knob: str) -> None:
    signals, first = watched(WORK, {}, {phase: 0.05}, every=5)
    assert signals["probe.step_no_side_work_s"].value == pytest.approx(0.03)
    assert signals[f"job.{knob}"].value == 5
    assert first == rule
