"""What probes are made of: passes that are timed, in a loop that is left as it was.

On a CPU times are the training thread's own, wall less run-queue delay, unless that very delay is asked for.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

from gpuconsole.agent.clock import now
from gpuconsole.model.finding import Signal
from gpuconsole.workloads.training.loop.loop import TrainingLoop
from gpuconsole.workloads.training.task import Batch

Signals = dict[str, Signal]


class ProbeError(RuntimeError):
    """The probe does not apply to this workload; the message says why."""


@contextmanager
def untouched(loop: TrainingLoop) -> Iterator[None]:
    """Restore buffers (batch norm), gradients, random state and what the task itself keeps afterwards."""
    buffers = {name: buffer.clone() for name, buffer in loop.task.model.named_buffers()}
    cuda = [loop.device] if loop.device.type == "cuda" else []
    preserved = getattr(loop.task, "preserved", nullcontext)  # few tasks keep anything
    try:
        with torch.random.fork_rng(devices=cuda), preserved():
            yield
    finally:
        with torch.no_grad():
            for name, buffer in loop.task.model.named_buffers():
                buffer.copy_(buffers[name])
        loop.release_cached_memory()


def resident_batch(loop: TrainingLoop) -> Batch:
    """The batch of the last step, on the device."""
    if loop.last_batch is None:
        raise ProbeError("no step has run yet")
    return loop.last_batch


def rounds(loop: TrainingLoop, budget_s: float, least: int, most: int) -> Iterator[int]:
    """Counts from 0 until the budget is used; all processes of a run end at the same round."""
    deadline = now() + budget_s
    for index in range(most):
        if index >= least and loop.plan.world.agree(now() >= deadline):
            return
        yield index


@contextmanager
def stopwatch(loop: TrainingLoop, contention_free: bool = True) -> Iterator[list[float]]:
    """Appends the seconds of its block to the list that it gives, less the training thread's run-queue delay where `contention_free`.

    On a GPU nothing is taken off: while the thread waits for a core, the device goes on with what is queued.
    """
    times: list[float] = []
    synchronize(loop)
    start, runq = now(), loop.account.times.runq_s()
    yield times
    synchronize(loop)
    delay = loop.account.times.runq_s() - runq if contention_free and loop.device.type == "cpu" else 0.0
    times.append(max(1e-9, now() - start - delay))


def timed_pass(loop: TrainingLoop, batch: Batch, contention_free: bool = True) -> float:
    """Seconds of one forward and backward pass (see `stopwatch`), without communication: that has a probe of its own."""
    with loop.plan.silence(loop.task.model), stopwatch(loop, contention_free) as times:
        loop.forward(batch).backward()
    loop.optimizer.zero_grad(set_to_none=True)
    return times[0]


def rehearse(loop: TrainingLoop) -> None:
    """A pass without communication on a new batch: what does not fit shows here, where no other process waits for this one."""
    with untouched(loop):
        timed_pass(loop, loop.fresh_batch())
    loop.account.restart()


def recover(loop: TrainingLoop) -> None:
    """After a pass that was broken off: one on the last batch. FSDP2 then has its shards where the other processes have theirs."""
    with untouched(loop):
        timed_pass(loop, resident_batch(loop))
    loop.account.restart()


def synchronize(loop: TrainingLoop) -> None:
    if loop.device.type == "cuda":
        torch.cuda.synchronize(loop.device)


def half_width(values: list[float]) -> float:
    """Twice the standard error of the median (1.25 sigma / sqrt n for a normal sample)."""
    if len(values) < 2:
        return 1.0
    return 2 * 1.25 * statistics.stdev(values) / len(values) ** 0.5
