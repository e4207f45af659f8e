"""Signals of a user's own job that stand in place of a probe's: from what the agent reads without
any experiment.

They have the names of the probe's signals, so the rules are the same for both kinds of job. Their
sources say that nothing was tried. Where a passive figure could be wrong, there is none: the rule
then waits for the probe.
"""

from __future__ import annotations

import os
import statistics
from dataclasses import replace

from gpuconsole.model.finding import CodePlace, Signal
from gpuconsole.model.run import PHASES, Step
from gpuconsole.session.places import (
    avoidable_signals,
    by_breakdown,
    side_work_signals,
    signals_of,
    thread_signals,
)
from gpuconsole.session.run import RunRecord
from gpuconsole.session.side_work import SIDE_WORK, SideWork

LOSS = PHASES.index("loss")
EVERY = {"save_every": "checkpoint", "log_every": "logging", "eval_every": "eval"}
"""Knobs that the account shows, and the phase that shows each."""
OBSERVABLE = 0.05
"""Share of step time. A loader that the steps wait for less than this has a queue that is full at
times, so its rate does not show."""
IN_TIME = 0.05
"""Share of time. If the median round waits for data less than this, most batches are ready. A round
is as many steps as there are workers. Workers of the same speed deliver their batches at the same
time, so only one step of each round waits."""
RECEIVE_S, SEND_S = (0.0006, 0.00035, 0.2e-9), (0.0006, 0.00035, 1.2e-9)
"""CPU seconds of the training thread to receive a batch from a worker process, and of the worker to
send the batch: per batch, per tensor and per byte. Measured for 1 to 16 tensors and 64 B to 20 MB
on busy machines with 2 and 4 cores (torch 2.13): each tensor travels through its own file
descriptor, and the worker copies it into shared memory. A program without workers does not show
these times."""
TENSORS = 2.0
"""The assumed number of tensors in a batch, if the agent has not seen a batch."""
MIN_LOADING_S = 0.2
MIN_LOADING_HERE_S = 0.02
"""The least seconds of loading that a signal needs. First: in the loader's processes, because /proc
counts their CPU time in ticks of the scheduler. Second: in the training thread, because the agent
reads the clocks of that thread at some batches only."""


def job_signals(
    record: RunRecord, steps: list[Step], signals: dict[str, Signal]
) -> dict[str, Signal]:
    """The passive signals over these steady steps. `signals`: those of the run so far."""
    training = record.stacks.since(steps[0].t)
    loss_ratio = sum(step.phases[LOSS] for step in steps) / sum(step.wall_s for step in steps)
    stacks = signals_of(training, loss_ratio) | thread_signals(
        record.stacks.of_others(steps[0].t), training
    )
    if record.run.device == "cpu":  # on a GPU the breakdown has the times of the stream
        names = ("forward", "loss")
        measured = {
            name: signals[f"{name}_ratio"].value for name in names if f"{name}_ratio" in signals
        }
        stacks |= by_breakdown(stacks, training, measured)
    stacks |= avoidable_signals(training)
    of_eval = signals.get("eval_ratio")
    stacks |= side_work_signals(
        record.stacks.since(steps[0].t if record.steady_t is None else record.steady_t),
        of_eval.value if of_eval is not None else 0.0,
    )
    return (
        _side_work(record.side_work, steps, signals)
        | _loader(record, steps, signals)
        | _program(record, signals)
        | stacks
    )


def _program(record: RunRecord, signals: dict[str, Signal]) -> dict[str, Signal]:
    """What the agent has read of the training's dataset, where the optimizer works, and the line
    that makes an iterator for each batch."""
    passive = {}
    if record.facts.get("loader.row_bytes"):
        passive["loader.row_bytes"] = Signal(
            record.facts["loader.row_bytes"],
            "B",
            "torch.utils.data.TensorDataset, stacked by default_collate: a sample",
        )
    if "loader.unsharded" in record.facts:
        source = "an IterableDataset of the program: whether its class never asks get_worker_info"
        passive["loader.unsharded"] = Signal(record.facts["loader.unsharded"], "", source)
    if record.facts.get("parameters") and "trainable_parameters" in record.facts:
        trained = record.facts["trainable_parameters"] / record.facts["parameters"]
        passive["model.trained_ratio"] = Signal(
            trained, "ratio", "parameters of the model with gradients over all"
        )
    if record.facts.get("trained_tensors"):
        source = "the parameters of the program's optimizers, each tensor once"
        passive["model.trained_tensors"] = Signal(record.facts["trained_tensors"], "", source)
    if record.facts.get("optimizer_groups"):
        source = "the parameter groups of the program's optimizers"
        passive["model.optimizer_groups"] = Signal(record.facts["optimizer_groups"], "", source)
    if "embeddings" in record.facts:
        source = "modules of the program with an embedding table"
        passive["model.embeddings"] = Signal(record.facts["embeddings"], "", source)
    if "optimizer_on_host_ratio" in record.facts:
        source = (
            "the program's optimizers: share of their parameters that are in the memory of the host"
        )
        passive["optimizer.on_host_ratio"] = Signal(
            record.facts["optimizer_on_host_ratio"], "ratio", source
        )
    sites = record.run.job.sites if record.run.job is not None else []
    site = next((site for site in sites if site.kind == "iterator"), None)
    calls = signals.get("loader.calls_per_epoch")
    if site is not None and calls is not None:
        passive["loader.calls_per_epoch"] = replace(
            calls, place=CodePlace(f"{os.path.basename(site.file)}:{site.line}", site.function)
        )
    return passive


def _side_work(
    side_work: SideWork, steps: list[Step], signals: dict[str, Signal]
) -> dict[str, Signal]:
    """What a step takes without its logging, checkpoints and evaluation (probe P3 leaves them out),
    and how often each of them comes."""
    places = [PHASES.index(name) for name in SIDE_WORK]
    rest = sum(step.wall_s - sum(step.phases[place] for place in places) for step in steps) / sum(
        step.wall_s for step in steps
    )
    source = (
        f"step breakdown, n={len(steps)}: steps less their logging, checkpoints and evaluation;"
        " nothing was left out"
    )
    passive = {"probe.step_no_side_work_s": Signal(signals["step_s"].value * rest, "s", source)}
    every = side_work.every()
    for knob, phase in EVERY.items():
        if phase in every:
            source = (
                f"step breakdown, all {side_work.totals.steps} steady steps: median distance"
                " between two of them"
            )
            passive[f"job.{knob}"] = Signal(float(every[phase]), "steps", source)
    return passive


def _loader(record: RunRecord, steps: list[Step], signals: dict[str, Signal]) -> dict[str, Signal]:
    """Whether the loader computes or waits, and its rate: a loop that waits for data runs at the
    rate of its loader."""
    workers = record.run.knobs.get("num_workers")
    if workers is None:
        return {}
    workers = int(workers)
    in_time = _wait_of_a_round(steps, workers) < IN_TIME
    if workers and in_time:
        # most batches are ready: workers that sleep may wait for room in a full queue
        return _rates(record, workers, in_time, signals)
    seconds, gained = record.work.gained(steps[0].t)
    passive: dict[str, Signal] = {}
    who = "workers" if workers else "here"
    present = gained[f"loader.{who}_s"] - gained[f"loader.{who}_runq_s"]
    if present >= (MIN_LOADING_S if workers else MIN_LOADING_HERE_S):
        where = (
            "/proc/PID/schedstat of the workers"
            if workers
            else "schedstat of the training thread while it loads"
        )
        source = (
            f"{where}, {seconds:.0f} s of ordinary steps, nothing was tried: CPU time over time"
            " outside of run queues"
        )
        passive["probe.loader_cpu_ratio"] = Signal(
            min(1.0, gained[f"loader.{who}_cpu_s"] / present), "ratio", source
        )
    inside = gained["loader.here_s"] - gained["loader.here_runq_s"]
    if workers and inside > 0:
        source = (
            "schedstat of the training thread within next(): CPU time over time outside of run"
            " queues, nothing was tried"
        )
        passive["probe.loader_receive_ratio"] = Signal(
            min(1.0, gained["loader.here_cpu_s"] / inside), "ratio", source
        )
    return passive | _rates(record, workers, in_time, signals)


def _wait_of_a_round(steps: list[Step], workers: int) -> float:
    """The share of time that the median round waits for data. A round is as many steps as there are
    workers."""
    size, place = max(1, workers), PHASES.index("data_wait")
    rounds = [
        steps[start : start + size] for start in range(0, max(1, len(steps) - size + 1), size)
    ]
    median_s = statistics.median(sum(step.phases[place] for step in part) for part in rounds)
    return median_s / (len(rounds[0]) * statistics.fmean(step.wall_s for step in steps))


def _transfer(record: RunRecord) -> dict[str, Signal]:
    """Estimate the CPU time of receiving and of sending a batch, if a worker made the batch."""
    tensors, size = (
        record.facts.get("loader.batch_tensors", TENSORS),
        record.facts.get("loader.batch_bytes", 0.0),
    )
    seen = (
        f"{tensors:.0f} tensors, {size / 1e6:.3g} MB"
        if "loader.batch_tensors" in record.facts
        else "two tensors"
    )
    return {
        name: Signal(
            batch + each * tensors + byte * size,
            "s",
            f"assumed: a batch of {seen}, {what} a worker",
        )
        for name, what, (batch, each, byte) in (
            ("loader.receive_s", "from", RECEIVE_S),
            ("loader.send_s", "sent by", SEND_S),
        )
    }


def _rates(
    record: RunRecord, workers: int, in_time: bool, signals: dict[str, Signal]
) -> dict[str, Signal]:
    """Rates of the loader now and with one worker more; empty where the loop does not wait, or
    where only some batches are late."""
    wait, samples, step_s = (
        signals[name].value for name in ("data_wait_ratio", "samples_per_step", "step_s")
    )
    if wait < OBSERVABLE or not samples:
        return {}
    if workers > 1 and in_time:
        return {}
    rate = samples / (step_s if workers else step_s * wait)
    source = "step breakdown: the loop waits for the loader and runs at its rate, nothing was tried"
    if not workers:
        source = (
            "step breakdown: samples over the time of loading them in the training thread, nothing"
            " was tried"
        )
    return ({} if workers else _transfer(record)) | {
        "probe.loader_samples_per_s": Signal(rate, "samples/s", source),
        "probe.loader_plus_1_samples_per_s": Signal(
            rate * (workers + 1) / max(1, workers),
            "samples/s",
            f"{source}; in proportion to the workers",
        ),
    }
