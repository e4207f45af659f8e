"""Probes of what surrounds the passes: the data loader (P6), and the lines in which the training
thread spends its time (P15)."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from gpuconsole.agent.clock import ThreadTimes, now, process_cpu_s
from gpuconsole.agent.loop import Signals
from gpuconsole.agent.probes import ProbeError, rounds
from gpuconsole.agent.protocol import CodePlace, Signal
from gpuconsole.model.knobs.catalogue import Knobs, describe_changes
from gpuconsole.model.run import PROBE
from gpuconsole.workloads.training import loop as loop_module
from gpuconsole.workloads.training.loader import LoaderStream, waits_for_messages
from gpuconsole.workloads.training.loop import TrainingLoop

# --- the probe of the data loader (P6) ------------------------------------------------------------

SLEEPS = 0.5
"""Loading processes that use a core for a smaller share of their time wait for storage (as in rule
input.slow_storage)."""
MAX_BUDGETS = 4
"""A drain may take this many times its budget, and as much before, where batches come slowly and in
bursts."""


def loader_alone(loop: TrainingLoop) -> Signals:
    """P6: the rate of the loader alone at the present number of workers, and whether its processes
    compute or wait for storage.

    Then the rate with one more worker; with four more where the processes wait for storage, so that
    the limit of the storage shows. Where the training process receives individual samples, also the
    rate with batches made in the workers.
    """
    if "num_workers" not in loop.knobs:
        raise ProbeError("this run has no DataLoader")
    present = int(loop.knobs["num_workers"])
    first = _drain(loop, loop.knobs)
    more = 4 if first.cpu_ratio < SLEEPS else 1
    ways: dict[str, Knobs] = {f"loader_plus_{more}": {"num_workers": present + more}}
    if present and loop.knobs["collate_fn"] == "list":
        ways["loader_stacked"] = {"collate_fn": "stack"}
    drained, failed = {"loader": first}, ""
    for label, way in ways.items():
        try:
            drained[label] = _drain(loop, {**loop.knobs, **way})
        except (OSError, RuntimeError) as error:
            # shared memory or descriptors do not suffice: report what is known so far
            failed = f"; {describe_changes(way, loop.knobs)} failed: {error}"
            break
    signals: Signals = {}
    for label, rate in drained.items():
        source = f"probe P6, {rate.batches} batches, {rate.workers} workers{failed}"
        signals[f"probe.{label}_samples_per_s"] = Signal(rate.samples_per_s, "samples/s", source)
        signals[f"probe.{label}_cpu_ratio"] = Signal(
            rate.cpu_ratio, "ratio", source + ": CPU time of the loading processes over their time"
        )
    if present:
        source = (
            f"probe P6, {first.batches} batches: time that the receiving process does not wait for"
            " a message, but unpacks one"
        )
        signals["probe.loader_receive_ratio"] = Signal(first.receive_ratio, "ratio", source)
    return signals


class Drained(NamedTuple):
    """A loader's rate when nothing else runs. `cpu_ratio`: CPU time of the loading processes over
    their time outside of run queues.

    `receive_ratio`: share of the time in which the receiving process does not wait for a message.
    """

    workers: int
    samples_per_s: float
    cpu_ratio: float
    receive_ratio: float
    batches: int


def _drain(loop: TrainingLoop, knobs: Knobs, budget_s: float = 0.8) -> Drained:
    """Measure a new loader with `knobs`, after emptying its queue."""
    workers = int(knobs["num_workers"])
    with waits_for_messages() as waits:
        try:
            stream = loop.task.open_stream(knobs)
        except ValueError as error:
            raise ProbeError(str(error)) from None
        assert isinstance(stream, LoaderStream)
        try:
            batch = stream.next()
            start = now()
            for _ in range(workers * int(knobs["prefetch_factor"])):
                if now() - start < MAX_BUDGETS * budget_s:
                    stream.next()
            usage = LoaderUsage(stream, workers, loop.breakdown.times)
            start, batches = now(), 0
            waits.clear()
            least = 3 * max(1, workers)  # several workers deliver their batches in bursts
            while (
                batches < 2
                or now() - start < budget_s
                or (batches < least and now() - start < MAX_BUDGETS * budget_s)
            ):
                stream.next()
                batches += 1
                usage.read()
            wall, waited = now() - start, sum(waits)
        finally:
            stream.close()
    busy, queued = usage.seconds()
    present = max(1e-9, wall * max(1, workers) - queued)
    return Drained(
        workers,
        batches * len(batch[0]) / wall,
        min(1.0, busy / present),
        max(0.0, 1 - waited / wall),
        batches,
    )


class LoaderUsage:
    """CPU and run-queue seconds of a loader's processes from now on; of this thread where the
    loader has no processes.

    The end of an epoch may replace the processes. So they are read after each batch, and the last
    reading of a process that has ended counts.
    """

    def __init__(self, stream: LoaderStream, workers: int, times: ThreadTimes) -> None:
        self._stream, self._workers, self._times = stream, workers, times
        self._last: dict[int, tuple[float, float]] = {}
        self.read()
        self._first = dict(self._last)

    def read(self) -> None:
        if not self._workers:
            self._last[0] = (self._times.cpu_s(), self._times.runq_s())
            return
        for pid in self._stream.worker_pids():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
                self._last[pid] = process_cpu_s(pid)

    def seconds(self) -> tuple[float, float]:
        """CPU and run-queue seconds between the construction and the last reading."""
        # a process that began later began at 0
        first = [self._first.get(pid, (0.0, 0.0)) for pid in self._last]
        return (
            sum(cpu for cpu, _ in self._last.values()) - sum(cpu for cpu, _ in first),
            sum(queued for _, queued in self._last.values()) - sum(queued for _, queued in first),
        )


# --- probe P15: the lines in which the training thread spends its time outside of all named phases
# ---

LINES_BUDGET_S = 1.0
STEP = TrainingLoop.step.__code__
BETWEEN_PHASES = TrainingLoop.script_work.__code__


SWITCH_S = 1e-5
SWITCH_OF_SEVERAL_S = 2e-4


def short_switch_s(threads: int = 2) -> float:
    """The switch interval of the interpreter, in seconds, while a sample is waited for. With the
    usual 5 ms a sample would come with the next function of torch, which releases the interpreter
    lock, and never find the script's own lines before it.

    `threads`: those that are there where no further thread of the program computes. Several that
    compute share the interval, and it must not be as short.
    """
    return SWITCH_S if threading.active_count() <= threads else SWITCH_OF_SEVERAL_S


class StackSamples:
    """A hundred samples a second of the thread that makes this object, taken by another thread
    until `stop`. `places`: `file:line function` of the script's own work in each sample; empty in a
    named phase."""

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

    def _run(self) -> None:
        usual_s = sys.getswitchinterval()
        try:
            while not self._is_over(usual_s):
                try:
                    self.places.append(_place(sys._current_frames().get(self.thread_id)))
                except Exception:
                    # the training thread has just changed what the sample reads: the next sample
                    # will do
                    continue
        finally:
            sys.setswitchinterval(usual_s)

    def _is_over(self, usual_s: float) -> bool:
        """Wait for the next sample."""
        sys.setswitchinterval(short_switch_s())
        over = self.stopping.wait(self.EVERY_S)
        sys.setswitchinterval(usual_s)  # the stack must not change while it is read
        return over

    def signals(self) -> tuple[Signals, str]:
        """The shares of the script's own lines, and the line with most samples. Raises ProbeError
        where no sample was possible."""
        total = len(self.places)
        if not total:
            raise ProbeError("no stack sample was possible: a step never lets another thread run")
        counts = Counter(place for place in self.places if place)
        place, most = counts.most_common(1)[0] if counts else ("", 0)
        source = f"{total} stack samples of ordinary steps"
        shares = {
            "stack.script_ratio": Signal(
                counts.total() / total, "ratio", f"{source}: in the script, outside of named phases"
            ),
            "stack.line_ratio": Signal(
                most / total,
                "ratio",
                f"{source}: in the line with most of them",
                CodePlace.of(place) if place else None,
            ),
        }
        return shares, place


def script_lines(loop: TrainingLoop) -> Signals:
    """Ordinary steps with a hundred stack samples a second: the share of time in the script's own
    work, and the line with most of it."""
    loop.breakdown.restart()
    samples = StackSamples()
    kind, loop.kind = loop.kind, PROBE
    try:
        for _ in rounds(loop, LINES_BUDGET_S, 4, 200):
            loop.step()
    finally:
        loop.kind = kind
        samples.stop()
    return samples.signals()[0]


def _place(frame: FrameType | None) -> str:
    """`file:line function` of the script's own work in which `frame` runs; empty in a named phase
    and between steps."""
    inner: list[FrameType] = []
    while frame is not None:
        if frame.f_code is BETWEEN_PHASES:
            called = inner[-1] if inner else frame
            own = called if called.f_code.co_filename.startswith(str(_SOURCES)) else frame
            name = Path(own.f_code.co_filename).relative_to(_SOURCES)
            return f"{name}:{own.f_lineno} {own.f_code.co_name}"
        if frame.f_code is STEP:
            return ""
        inner.append(frame)
        frame = frame.f_back
    return ""


_SOURCES = Path(loop_module.__file__).parents[2]
