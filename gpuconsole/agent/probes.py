"""The parts of which probes are made: timed passes in a loop that stays as it was.

On a CPU times are wall time less the run-queue delay of the training thread, unless the delay itself is in question.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .clock import now
from .loop import Loop, PassLoop

if TYPE_CHECKING:
    import torch


class ProbeError(RuntimeError):
    """The probe does not apply to this workload. The message says why."""


@contextmanager
def untouched(loop: PassLoop) -> Iterator[None]:
    """After the block, the buffers of the model (batch norm), the random state of torch and the loop's own state are as before.

    Gradients are dropped, before the block too: beside the activations of a pass there may be no room for those of the last step.
    """
    import torch

    loop.drop_gradients()
    buffers = {name: buffer.clone() for name, buffer in loop.model.named_buffers()}
    try:
        with torch.random.fork_rng(devices=[loop.device] if loop.device.type == "cuda" else []), loop.preserved():
            yield
    finally:
        with torch.no_grad():
            for name, buffer in loop.model.named_buffers():
                buffer.copy_(buffers[name])
        loop.release_cached_memory()


def resident_batch(loop: PassLoop) -> tuple[torch.Tensor, ...]:
    """The batch of the last step, on the device. Raises ProbeError before the first step."""
    if loop.last_batch is None:
        raise ProbeError("no step has run yet")
    return loop.last_batch


def rounds(loop: PassLoop, budget_s: float, least: int, most: int) -> Iterator[int]:
    """Counts from 0 until the budget is used; all processes of a run end at the same round."""
    deadline = now() + budget_s
    for index in range(most):
        if index >= least and loop.world.agree(now() >= deadline):
            return
        yield index


@contextmanager
def stopwatch(loop: Loop, contention_free: bool = True) -> Iterator[list[float]]:
    """Yields a list, and appends the seconds of the block to it; less the run-queue delay of the training thread where `contention_free`.

    On a GPU nothing is subtracted: while the thread waits for a core, the device continues with the queued work.
    """
    times: list[float] = []
    synchronize(loop)
    start, runq = now(), loop.account.times.runq_s()
    yield times
    synchronize(loop)
    delay = loop.account.times.runq_s() - runq if contention_free and loop.device.type == "cpu" else 0.0
    times.append(max(1e-9, now() - start - delay))


def timed_pass(loop: PassLoop, batch: tuple[torch.Tensor, ...], contention_free: bool = True) -> float:
    """Seconds of one forward and backward pass (see `stopwatch`), without communication: another probe measures that."""
    with loop.silence(), stopwatch(loop, contention_free) as times:
        loop.forward(batch).backward()
    loop.drop_gradients()
    return times[0]


def rehearse(loop: PassLoop) -> None:
    """Run a pass without communication on a new batch. What does not fit fails here, where no other process waits for this process."""
    with untouched(loop):
        timed_pass(loop, loop.fresh_batch())
    loop.account.restart()


def repeat_last_pass(loop: PassLoop) -> None:
    """Run a pass on the last batch after a pass that broke off. FSDP2 then has its shards where the other processes have theirs."""
    with untouched(loop):
        timed_pass(loop, resident_batch(loop))
    loop.account.restart()


def synchronize(loop: Loop) -> None:
    """Wait until the device has done all issued work."""
    if loop.device.type == "cuda":
        import torch

        torch.cuda.synchronize(loop.device)


def half_width(values: list[float]) -> float:
    """Twice the standard error of the median (1.25 sigma / sqrt n for a normal sample); 1.0 for fewer than two values."""
    if len(values) < 2:
        return 1.0
    return 2 * 1.25 * statistics.stdev(values) / len(values) ** 0.5
