"""Probes: short experiments on a training loop that stays as it was. Each probe is one function for workloads of ours and for programs of users.

On a CPU times are wall time less the run-queue delay of the training thread, unless the delay itself is in question.
"""

from __future__ import annotations

import statistics
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .clock import now
from .loop import Signals, Subject, Timed
from .protocol import Knobs, Signal


class ProbeError(RuntimeError):
    """The probe does not apply to this workload. The message says why."""


# --- the parts of which probes are made ---------------------------------------------------------------------


@contextmanager
def untouched(subject: Subject) -> Iterator[None]:
    """After the block, the buffers of the model (batch norm), the random state of torch and the subject's own state are as before.

    Gradients of a loop of ours are dropped, before the block too: beside the activations of a pass there may be no room for those of the last
    step.
    """
    import torch

    subject.drop_gradients()
    buffers = [(buffer, buffer.detach().clone()) for buffer in subject.model.buffers()]
    try:
        with torch.random.fork_rng(devices=[subject.device] if subject.device.type == "cuda" else []), subject.preserved():
            yield
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        subject.release_cached_memory()


def rounds(subject: Timed, budget_s: float, least: int, most: int) -> Iterator[int]:
    """Counts from 0 until the budget is used; all processes of a run end at the same round."""
    deadline = now() + budget_s
    for index in range(most):
        if index >= least and subject.world.agree(now() >= deadline):
            return
        yield index


@contextmanager
def stopwatch(subject: Timed, contention_free: bool = True) -> Iterator[list[float]]:
    """Yields a list, and appends the seconds of the block to it; less the run-queue delay of the training thread where `contention_free`.

    On a GPU nothing is subtracted: while the thread waits for a core, the device continues with the queued work.
    """
    times: list[float] = []
    synchronize(subject)
    start, runq = now(), subject.account.times.runq_s()
    yield times
    synchronize(subject)
    delay = subject.account.times.runq_s() - runq if contention_free and subject.device.type == "cpu" else 0.0
    times.append(max(1e-9, now() - start - delay))


def timed_pass(subject: Subject, batch: Any, contention_free: bool = True) -> float:
    """Seconds of one forward and backward pass (see `stopwatch`), without communication: another probe measures that."""
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
    """Twice the standard error of the median (1.25 sigma / sqrt n for a normal sample); 1.0 for fewer than two values."""
    if len(values) < 2:
        return 1.0
    return 2 * 1.25 * statistics.stdev(values) / len(values) ** 0.5


def refuse_compiled(knobs: Knobs, what: str) -> None:
    """Raises ProbeError where `what` would compile the model again: tens of seconds, on a GPU minutes; and later steps may run on the new kernels."""
    if knobs.get("torch_compile", "off") != "off":
        raise ProbeError(f"the model is compiled, and {what} would compile it again")


# --- passes on the last batch (P1, P2) ----------------------------------------------------------------------

ELASTICITY_BUDGET_S = 1.8
LEAST_ROUNDS = 2


def cached_batch(subject: Subject) -> Signals:
    """P1: forward and backward on a batch that is already on the device: the cost of a step without input."""
    batch = subject.batch
    times: list[float] = []
    with untouched(subject):
        timed_pass(subject, batch)
        for _ in rounds(subject, 0.8, 3, 30):
            times.append(timed_pass(subject, batch))
    seconds = statistics.median(times) * subject.passes_per_step
    return {"probe.cached_pass_s": Signal(seconds, "s", f"probe P1, median of {len(times)}")}


def batch_elasticity(subject: Subject) -> Signals:
    """P2: one forward and backward pass at 1x, 2x and 4x the batch, in turn, until the budget is used. In a program that waits meanwhile 4x is left
    out where its passes take long."""
    import torch

    refuse_compiled(subject.knobs, "other batch sizes")
    batch = subject.batch
    times: dict[int, list[float]] = {1: [], 2: [], 4: []}
    with untouched(subject):
        pass_s = timed_pass(subject, batch)
        batches = {factor: subject.repeated(batch, factor) for factor in factors_in_time(pass_s, subject.longest_hold_s)}
        for index in rounds(subject, ELASTICITY_BUDGET_S, LEAST_ROUNDS + 1, 26):
            if 2 not in batches and subject.world.size == 1:
                break
            for factor in batches if index else [factor for factor in batches if factor > 1]:  # 1x has run already
                try:
                    seconds = timed_pass(subject, batches[factor])
                except torch.OutOfMemoryError:
                    subject.release_cached_memory()
                    batches = {smaller: repeated for smaller, repeated in batches.items() if smaller < factor}
                    break
                if index:  # the first pass of a size allocates
                    times[factor].append(seconds)
    if 2 not in batches:  # only now: other processes may still be in their rounds
        raise ProbeError("twice the batch does not fit into memory")
    largest = max(batches)
    ratios = [many / (largest * single) for single, many in zip(times[1], times[largest], strict=False)]
    signals = {
        f"probe.pass_{factor}x_s": Signal(statistics.median(times[factor]), "s", f"probe P2, median of {len(times[factor])}")
        for factor in batches
    }
    source = f"probe P2: t({largest}b) / {largest} t(b), n={len(ratios)}{subject.pass_note}"
    signals["probe.batch_cost_ratio"] = Signal(statistics.median(ratios), "ratio", source)
    signals["probe.batch_cost_spread"] = Signal(half_width(ratios), "ratio", "probe P2: 2 standard errors of that median")
    fits = "" if subject.longest_hold_s == float("inf") else " into memory, and whose passes fit into the time of the probe"
    signals["probe.batch_factor"] = Signal(largest, "x", f"probe P2: largest factor that fits{fits}")
    return signals


def factors_in_time(pass_s: float, longest_hold_s: float) -> tuple[int, ...]:
    """The factors of P2 for a pass of `pass_s` seconds: 4x only where a first pass at 2x and 4x, and LEAST_ROUNDS rounds of all, take no longer than
    `longest_hold_s`."""
    return (1, 2, 4) if pass_s * (2 + 4 + LEAST_ROUNDS * (1 + 2 + 4)) <= longest_hold_s else (1, 2)


# --- another implementation of the optimizer (P5) -----------------------------------------------------------

UPDATES_BUDGET_S = 1.0
LEAST_UPDATES, MOST_UPDATES = 2, 30


def swap_optim(subject: Timed, present: Callable[[], object], fused: Callable[[], object]) -> Signals:
    """P5: optimizer steps on copies of the parameters, in turn: `present` in the implementation of the subject, and `fused`."""
    updates = (present, fused)
    times: tuple[list[float], list[float]] = ([], [])
    for update in updates:
        update()
    for _ in rounds(subject, UPDATES_BUDGET_S, LEAST_UPDATES, MOST_UPDATES):
        for update, seconds in zip(updates, times, strict=True):
            with stopwatch(subject) as measured:
                update()
            seconds += measured
    present_s, fused_s = times
    speedups = [before / after for before, after in zip(present_s, fused_s, strict=True)]
    source = f"probe P5: optimizer steps on copies, in turn, median of {len(present_s)}"
    return {
        "probe.optim_present_step_s": Signal(statistics.median(present_s), "s", source),
        "probe.optim_fused_step_s": Signal(statistics.median(fused_s), "s", source),
        "probe.optim_fused_speedup": Signal(statistics.median(speedups), "x", source),
        "probe.optim_fused_spread": Signal(half_width(speedups), "x", "probe P5: 2 standard errors of that median"),
    }


# --- the lines in which the training thread spends its time (P15) -------------------------------------------


class StackSamples:
    """A hundred samples a second of the thread that makes this object, taken by another thread until `stop`. `places`: `file:line function` of the
    script's own work in each sample; empty in a named phase."""

    EVERY_S = 0.01

    def __init__(self) -> None:
        self.places: list[str] = []
        self.thread_id = threading.get_ident()
        self.stopping = threading.Event()
        self._sampler = threading.Thread(target=self._run, name="gpuconsole-stacks", daemon=True)
        self._sampler.start()

    def stop(self) -> None:
        self.stopping.set()
        self._sampler.join()

    def sample(self) -> None:
        """Add a sample to `places`."""
        raise NotImplementedError

    def _run(self) -> None:
        while not self.stopping.wait(self.EVERY_S):
            try:
                self.sample()
            except Exception:  # the training thread has just changed what the sample reads: the next sample will do
                continue

    def signals(self) -> tuple[Signals, str]:
        """The shares of the script's own lines, and the line with most samples. Raises ProbeError where no sample was possible."""
        total = len(self.places)
        if not total:
            raise ProbeError("no stack sample was possible: a step never lets another thread run")
        counts = Counter(place for place in self.places if place)
        place, most = counts.most_common(1)[0] if counts else ("nowhere", 0)
        source = f"{total} stack samples of ordinary steps"
        shares = {
            "stack.script_ratio": Signal(counts.total() / total, "ratio", f"{source}: in the script, outside of named phases"),
            "stack.line_ratio": Signal(most / total, "ratio", f"{source}, most of them at {place}"),
        }
        return shares, place
