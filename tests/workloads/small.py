"""Small training loops in the test's own process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from gpuconsole.agent.step_breakdown import StepBreakdown
from gpuconsole.model.run import Step
from gpuconsole.wire.events import step_of
from gpuconsole.workloads.training import gpt
from gpuconsole.workloads.training.churn import ChurnTask
from gpuconsole.workloads.training.loop import TrainingLoop
from tests.workloads.running import knobs_of

CPU = torch.device("cpu")


def small_gpt_loop(folder: Path, **changes: Any) -> TrainingLoop:
    """A GPT of one block on one thread; two loops made alike are alike to the last bit."""
    sizes = {
        "batch_size": 2,
        "seq_len": 32,
        "d_model": 64,
        "n_layer": 1,
        "num_threads": torch.get_num_threads(),
    }
    knobs = knobs_of("train-gpt", **{**sizes, **changes})
    torch.manual_seed(0)
    return TrainingLoop(gpt.create(knobs, CPU, 0), knobs, CPU, folder)


def added_up(account: StepBreakdown) -> list[Step]:
    """The account's steps, as the console decodes them."""
    return [step_of(step) for step in account.take()]


def losses(loop: TrainingLoop, steps: int) -> list[float]:
    """Train on and give the losses of those steps."""
    loop.breakdown.take()
    for _ in range(steps):
        loop.step()
    return [step.loss for step in loop.breakdown.take() if step.loss is not None]


def job_state(loop: TrainingLoop) -> list[torch.Tensor]:
    """All that a step of the job depends on: weights, buffers, optimizer, random state, and what
    the workload keeps beside its model."""
    tensors = [*loop.task.model.state_dict().values()]
    if isinstance(loop.task, ChurnTask):
        tensors += [tensor for batch in loop.task._kept for tensor in batch]
        tensors.append(torch.tensor(loop.task._chance.getstate()[1]))
    for values in loop.optimizer.state.values():
        tensors += [value for value in values.values() if isinstance(value, torch.Tensor)]
    return [tensor.clone() for tensor in [*tensors, torch.random.get_rng_state()]]
