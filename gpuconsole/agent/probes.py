"""Probes: short experiments on a training loop that stays as it was. Each probe is one function for
workloads of ours and for programs of users.

On a CPU times are wall time less the run-queue delay of the training thread, unless the delay
itself is in question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .clock import now
from .loop import Signals, Subject, Timed
from .protocol import Knobs, PlainError, Signal
from .step_breakdown import median

if TYPE_CHECKING:
    import torch


class ProbeError(PlainError):
    """The probe does not apply to this workload. The message says why."""


# --- the parts of which probes are made -----------------------------------------------------------


@contextmanager
def untouched(subject: Subject) -> Iterator[None]:
    """After the block, the buffers of the model (batch norm), the random state of torch and the
    subject's own state are as before.

    Gradients of a loop of ours are dropped, before the block too: beside the activations of a pass
    there may be no room for those of the last step.
    """
    import torch

    subject.drop_gradients()
    buffers = [(buffer, buffer.detach().clone()) for buffer in subject.model.buffers()]
    try:
        with (
            torch.random.fork_rng(
                devices=[subject.device] if subject.device.type == "cuda" else []
            ),
            subject.preserved(),
        ):
            yield
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                # a copy into a buffer that a live graph has saved would break that graph's backward
                # pass
                if not _equal(buffer, before):
                    buffer.copy_(before)
        subject.release_cached_memory()


def _equal(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether both have the same values. False where torch cannot compare this kind of tensor."""
    import torch

    try:
        return torch.equal(tensor, other)
    except RuntimeError:
        return False


def rounds(subject: Timed, budget_s: float, least: int, most: int) -> Iterator[int]:
    """Counts from 0 until the budget is used; all processes of a run end at the same round."""
    deadline = now() + budget_s
    for index in range(most):
        if index >= least and subject.world.agree(now() >= deadline):
            return
        yield index


@contextmanager
def stopwatch(subject: Timed, contention_free: bool = True) -> Iterator[list[float]]:
    """Yields a list, and appends the seconds of the block to it; less the run-queue delay of the
    training thread where `contention_free`.

    On a GPU nothing is subtracted: while the thread waits for a core, the device continues with the
    queued work.
    """
    times: list[float] = []
    synchronize(subject)
    start, runq = now(), subject.breakdown.times.runq_s()
    yield times
    synchronize(subject)
    delay = (
        subject.breakdown.times.runq_s() - runq
        if contention_free and subject.device.type == "cpu"
        else 0.0
    )
    times.append(max(1e-9, now() - start - delay))


def timed_pass(subject: Subject, batch: Any, contention_free: bool = True) -> float:
    """Seconds of one forward and backward pass (see `stopwatch`), without communication: another
    probe measures that."""
    with subject.silence(), stopwatch(subject, contention_free) as times:
        subject.run_pass(batch)
    subject.drop_gradients()
    return times[0]


def synchronize(subject: Timed) -> None:
    """Wait until the device has done all issued work."""
    if subject.device.type == "cuda":
        import torch

        torch.cuda.synchronize(subject.device)


def half_width(values: list[float]) -> float:
    """Twice the standard error of the median (1.25 sigma / sqrt n for a normal sample); 1.0 for
    fewer than two values."""
    if len(values) < 2:
        return 1.0
    mean = sum(values) / len(values)
    deviation = (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5
    return float(2 * 1.25 * deviation / len(values) ** 0.5)


def refuse_compiled(knobs: Knobs, what: str) -> None:
    """Raises ProbeError where `what` would compile the model again: tens of seconds, on a GPU
    minutes; and later steps may run on the new kernels."""
    if knobs.get("torch_compile", "off") != "off":
        raise ProbeError(f"the model is compiled, and {what} would compile it again")


# --- passes on the last batch (P1, P2) ------------------------------------------------------------

ELASTICITY_BUDGET_S = 1.8
MIN_ROUNDS = 2


def cached_batch(subject: Subject) -> Signals:
    """P1: forward and backward on a batch that is already on the device: the cost of a step without
    input."""
    batch = subject.batch
    times: list[float] = []
    with untouched(subject):
        timed_pass(subject, batch)
        for _ in rounds(subject, 0.8, 3, 30):
            times.append(timed_pass(subject, batch))
    seconds = median(times) * subject.passes_per_step
    return {"probe.cached_pass_s": Signal(seconds, "s", f"probe P1, median of {len(times)}")}


def batch_elasticity(subject: Subject) -> Signals:
    """P2: one forward and backward pass at 1x, 2x and 4x the batch, in turn, until the budget is
    used. In a program that waits meanwhile 4x is left out where its passes take long. Where twice
    the batch does not fit into memory, that is the only figure: a factor of 1."""
    import torch

    refuse_compiled(subject.knobs, "other batch sizes")
    batch = subject.batch
    times: dict[int, list[float]] = {1: [], 2: [], 4: []}
    with untouched(subject):
        pass_s = timed_pass(subject, batch)
        factors = [
            factor
            for factor in factors_in_time(pass_s, subject.longest_hold_s)
            if factor == 1 or subject.make_room(factor)
        ]
        batches = {factor: subject.repeated(batch, factor) for factor in factors}
        for index in rounds(subject, ELASTICITY_BUDGET_S, MIN_ROUNDS + 1, 26):
            if 2 not in batches and subject.world.size == 1:
                break
            # 1x has run already
            for factor in batches if index else [factor for factor in batches if factor > 1]:
                try:
                    seconds = timed_pass(subject, batches[factor])
                except torch.OutOfMemoryError:
                    subject.release_cached_memory()
                    batches = {
                        smaller: repeated
                        for smaller, repeated in batches.items()
                        if smaller < factor
                    }
                    break
                if index:  # the first pass of a size allocates
                    times[factor].append(seconds)
    if 2 not in batches:  # only now: other processes may still be in their rounds
        return {
            "probe.batch_factor": Signal(
                1.0, "x", "probe P2: twice the batch does not fit into memory"
            )
        }
    largest = max(batches)
    ratios = [
        many / (largest * single) for single, many in zip(times[1], times[largest], strict=False)
    ]
    signals = {
        f"probe.pass_{factor}x_s": Signal(
            median(times[factor]), "s", f"probe P2, median of {len(times[factor])}"
        )
        for factor in batches
    }
    source = f"probe P2: t({largest}b) / {largest} t(b), n={len(ratios)}{subject.pass_note}"
    signals["probe.batch_cost_ratio"] = Signal(median(ratios), "ratio", source)
    signals["probe.batch_cost_spread"] = Signal(
        half_width(ratios), "ratio", "probe P2: 2 standard errors of that median"
    )
    fits = (
        ""
        if subject.longest_hold_s == float("inf")
        else " into memory, and whose passes fit into the time of the probe"
    )
    signals["probe.batch_factor"] = Signal(
        largest, "x", f"probe P2: largest factor that fits{fits}"
    )
    return signals


def factors_in_time(pass_s: float, longest_hold_s: float) -> tuple[int, ...]:
    """The factors of P2 for a pass of `pass_s` seconds: 4x only where a first pass at 2x and 4x,
    and MIN_ROUNDS rounds of all, take no longer than `longest_hold_s`."""
    return (1, 2, 4) if pass_s * (2 + 4 + MIN_ROUNDS * (1 + 2 + 4)) <= longest_hold_s else (1, 2)


# --- another implementation of the optimizer (P5) -------------------------------------------------

UPDATES_BUDGET_S = 1.0
MIN_UPDATES = 2
MAX_UPDATES = 30


def swap_optim(
    subject: Timed,
    present: Callable[[], object],
    fused: Callable[[], object],
    longest_hold_s: float = float("inf"),
) -> Signals:
    """Run P5: time optimizer steps on copies of the parameters, in turn: `present` (the
    implementation of the subject) and `fused`."""
    updates = (present, fused)
    times: tuple[list[float], list[float]] = ([], [])
    for update in updates:
        with stopwatch(subject) as first:
            update()
        if (2 + MIN_UPDATES) * first[0] > longest_hold_s:
            raise ProbeError(
                f"an update of copies takes {first[0]:.2g} s: the probe would delay the program"
            )
    for _ in rounds(subject, UPDATES_BUDGET_S, MIN_UPDATES, MAX_UPDATES):
        for update, seconds in zip(updates, times, strict=True):
            with stopwatch(subject) as measured:
                update()
            seconds += measured
    present_s, fused_s = times
    speedups = [before / after for before, after in zip(present_s, fused_s, strict=True)]
    source = f"probe P5: optimizer steps on copies, in turn, median of {len(present_s)}"
    return {
        "probe.optim_present_step_s": Signal(median(present_s), "s", source),
        "probe.optim_fused_step_s": Signal(median(fused_s), "s", source),
        "probe.optim_fused_speedup": Signal(median(speedups), "x", source),
        "probe.optim_fused_spread": Signal(
            half_width(speedups), "x", "probe P5: 2 standard errors of that median"
        ),
    }


# --- the cost of launches (P9) --------------------------------------------------------------------

LAUNCH_BUDGET_S = 1.0
CYCLES_PER_S = 3e9
"""No SM has a higher clock, so a wait of that many cycles a second never ends early."""
MAX_WAIT_S = 0.5


def needs_gpu(subject: Timed) -> None:
    """Raises ProbeError on a CPU."""
    if subject.device.type != "cuda":
        raise ProbeError("no GPU: nothing is launched or copied to one")


def launch(subject: Subject) -> Signals:
    """P9: the host's time to issue a forward and backward pass, the time of the pass, and the GPU's
    time when all work is issued beforehand.

    A full launch queue makes the host wait for the GPU. Then the second and the third figure are
    alike, and no rule fires.
    """
    needs_gpu(subject)
    batch = subject.batch
    issue: list[float] = []
    whole: list[float] = []
    alone: list[float] = []

    def one_pass() -> None:
        with subject.silence():
            subject.run_pass(batch)
        subject.drop_gradients()

    with untouched(subject):
        one_pass()
        for _ in rounds(subject, LAUNCH_BUDGET_S, 3, 30):
            with stopwatch(subject) as times:
                start, runq = now(), subject.breakdown.times.runq_s()
                one_pass()
                issue.append(max(1e-9, now() - start - (subject.breakdown.times.runq_s() - runq)))
            whole += times
        wait_s = min(MAX_WAIT_S, 1.5 * median(issue))
        for _ in rounds(subject, LAUNCH_BUDGET_S, 3, 30):
            alone.append(_behind_a_wait(subject, one_pass, wait_s))
    source = f"probe P9, median of {len(whole)} passes"
    return {
        "probe.issue_s": Signal(
            median(issue), "s", f"{source}: until the host has issued all of it"
        ),
        "probe.pass_s": Signal(median(whole), "s", source),
        "probe.pass_gpu_s": Signal(
            median(alone),
            "s",
            f"probe P9, median of {len(alone)}: on the GPU, all issued beforehand",
        ),
    }


def _behind_a_wait(subject: Timed, run: Callable[[], None], wait_s: float) -> float:
    """GPU seconds of the work that `run` issues while a waiting kernel occupies the stream."""
    import torch

    with torch.cuda.device(subject.device):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        synchronize(subject)
        torch.cuda._sleep(int(wait_s * CYCLES_PER_S))
        begin.record()
        run()
        end.record()
        synchronize(subject)
    return float(begin.elapsed_time(end)) * 1e-3
