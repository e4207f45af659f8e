"""Work of a training process outside its steps, from the totals that it sends: garbage collection,
epochs, memory, compilation."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter, deque
from weakref import WeakKeyDictionary

from gpuconsole.model.finding import Signal
from gpuconsole.model.run import PROBE
from gpuconsole.model.text import percent
from gpuconsole.session.figures.distributions import MIN_POINTS, steady_growth
from gpuconsole.wire.events import Steps

WINDOW = 150
"""Messages kept: half a minute, or a minute while the worker sends at its low rate."""
MEMORY_POINTS = 400
MIN_STEPS = 50
MIN_LOOKS = 4
"""Looks at the modes of torch that a share needs. There are about two a second."""
MODES = {
    "anomaly": "torch.is_anomaly_enabled",
    "check_nan": "torch.is_anomaly_check_nan_enabled",
    "profiler": "torch.autograd._profiler_enabled",
    "deterministic": "torch.are_deterministic_algorithms_enabled",
    "cudnn_deterministic": "torch.backends.cudnn.deterministic",
}
"""Modes of torch, and where the agent in a job reads each."""
MIN_STREAM_STEPS = 5
"""Sampled steps. With fewer, one step decides too much; there are three to six a second, but no
more than there are steps."""
RUNQ_S, CPU_S = "thread.runq_s", "thread.cpu_s"
"""The cumulative times of the training thread, which each message has as fields, under the names of
counters."""
EVAL_S, EVAL_WITH_GRADIENTS_S = "eval.s", "eval.with_gradients_s"
"""Counters that `session.segments` adds to each message of a job: seconds of evaluation, and those
of its passes that recorded gradients."""
GENERATED, GENERATED_STEPS = "generation.passes", "generation.steps"
"""Two more such counters: the passes of generation, and the steps that have such passes."""
GROWTH_EVERY_S = 3.0
"""Seconds between two computations of the slope: a computation uses all pairs of readings and takes
some milliseconds. Up to MIN_POINTS readings, each new reading starts a computation."""
FAST_BYTES = 250e6
FAST_POINTS = 8
FAST_STEPS = 8
"""From this growth on, this small number of readings and of steps is enough: at 200 MB/s, the
memory grows by 2 GB during MIN_POINTS readings."""
MIN_VALUES = 4
"""The least number of different values. A worker with much memory reads it only every few seconds,
and a jump in each of two workers already makes three values."""
AT_ENDS = 3
"""At each end, the median of this number of readings counts. The last reading alone may come after
the loop of the program, when the memory is free again."""
MEMORY = (
    "host.memory",
    "host.private_bytes",
    "private resident memory of this process without free heap",
)
WORKERS_MEMORY = (
    "loader.memory",
    "loader.private_bytes",
    "private dirty memory of the loader's workers, by /proc/PID/smaps_rollup",
)
"""For each series of readings: the prefix of its signals, its counter, and its source."""
COMPILE_SOURCE = "torch._dynamo's counters, since the first step"


def is_ordinary(event: Steps) -> bool:
    """Whether all steps of a message are ordinary steps, without steps of a probe or a trial."""
    return bool(event.steps) and not any(step.arm or step.kind == PROBE for step in event.steps)


TOTALS = ("work.steps", "compile.graphs", "compile.total_s")
"""Counters that never fall within a process, and that a process which starts again soon has below
their former values."""


def is_another_process(before: Steps, event: Steps) -> bool:
    """Return whether a process has started again between the two messages: its totals begin
    at 0."""
    pairs = ((before.counters.get(name), event.counters.get(name)) for name in TOTALS)
    return any(
        earlier is not None and later is not None and later < earlier for earlier, later in pairs
    )


class MemoryReadings:
    """Keeps the readings of one memory counter, and computes their growth."""

    def __init__(self, name: str, counter: str, source: str) -> None:
        self._name, self._counter, self._source = name, counter, source
        self._points: deque[tuple[float, float, float]] = deque(maxlen=MEMORY_POINTS)
        """Time, steps so far, bytes."""
        self._until = float("-inf")
        """The last point that the growth uses."""

    def add(self, event: Steps) -> None:
        if self._counter not in event.counters:  # memory is not read for every message
            return
        full = len(self._points) == MEMORY_POINTS
        if full:  # every second old reading is enough
            self._points = deque(itertools.islice(self._points, 0, None, 2), maxlen=MEMORY_POINTS)
        self._points.append((event.t, event.counters["work.steps"], event.counters[self._counter]))
        if full or len(self._points) <= MIN_POINTS or event.t - self._until >= GROWTH_EVERY_S:
            self._until = event.t

    def signals(self, since: float) -> dict[str, Signal]:
        """Return the growth of the memory from the time `since` on; empty with too few readings."""
        key = (since, self._until)
        memo = _growth_memo.get(self)
        if memo is None or memo[0] != key:
            memo = _growth_memo[self] = (key, self._growth(since))
        return memo[1]

    def _growth(self, since: float) -> dict[str, Signal]:
        points = [point for point in self._points if since <= point[0] <= self._until]
        if len(points) < FAST_POINTS:
            return {}
        values = [value for _, _, value in points]
        present = statistics.median(values[-AT_ENDS:])
        grown, seconds = present - statistics.median(values[:AT_ENDS]), points[-1][0] - points[0][0]
        fast = grown >= FAST_BYTES and len(set(values)) >= MIN_VALUES
        least_points, least_steps = (FAST_POINTS, FAST_STEPS) if fast else (MIN_POINTS, MIN_STEPS)
        if len(points) < least_points or points[-1][1] - points[0][1] < least_steps:
            return {}
        rises = statistics.fmean(
            later[2] >= earlier[2] for earlier, later in itertools.pairwise(points)
        )
        growth = steady_growth([t for t, _, _ in points], values, FAST_POINTS)
        source = f"{self._source}, {len(points)} readings in {seconds:.0f} s"
        return {
            f"{self._name}_growth_bytes_per_s": Signal(
                growth,
                "B/s",
                (
                    f"{source}: lower end of the 95 % interval of the slope (Theil-Sen), 0 where"
                    " the growth slows down"
                ),
            ),
            f"{self._name}_rises_ratio": Signal(
                rises,
                "ratio",
                f"{source}: share of readings that are not below the previous reading",
            ),
            f"{self._name}_grown_bytes": Signal(grown, "B", source),
            f"{self._name}_steady_ratio": Signal(
                growth * (points[-2][0] - points[1][0]) / grown if grown > 0 else 0.0,
                "ratio",
                f"{source}: that slope times the time, over all growth",
            ),
            self._counter: Signal(present, "B", source),
        }


class WorkCounts:
    """The increase of the totals between two messages of ordinary steps. A message without steps,
    or with steps of a probe or a trial, ends the interval, and so does the end of a probe."""

    def __init__(self) -> None:
        self._last: Steps | None = None
        self._before: Steps | None = None
        """The last message, unless the interval has ended since."""
        self._gained: deque[tuple[float, float, dict[str, float]]] = deque(maxlen=WINDOW)
        self._memory = _readings()

    def add(self, event: Steps) -> None:
        if "work.steps" not in event.counters:
            return
        if not is_ordinary(event):
            self._before = None
            return
        if self._last is not None and is_another_process(self._last, event):
            self._before, self._memory = None, _readings()
        self._last = event
        if self._before is not None:
            before = _totals(self._before)
            gained = {
                name: value - before[name]
                for name, value in _totals(event).items()
                if name in before
            }
            self._gained.append((self._before.t, event.t - self._before.t, gained))
        self._before = event
        for readings in self._memory:
            readings.add(event)

    def probed(self) -> None:
        """A probe has ended: the interval in which it ran does not count. In a user's own job the
        message after a probe has ordinary steps."""
        self._before = None

    def signals(self, since: float, steady: float | None = None) -> dict[str, Signal]:
        """Time signals since the time `since`, and memory signals since the time `steady` (None:
        also since `since`)."""
        signals = self._time_signals(since)
        for readings in self._memory:
            signals |= readings.signals(since if steady is None else steady)
        return signals

    def gained(self, since: float) -> tuple[float, Counter[str]]:
        """The seconds of ordinary steps since the time `since`, and the increase of each total in
        them."""
        stretches = [(seconds, gains) for begun, seconds, gains in self._gained if begun >= since]
        gained: Counter[str] = Counter()
        for _, gains in stretches:
            gained.update(gains)
        return sum(seconds for seconds, _ in stretches), gained

    def _time_signals(self, since: float) -> dict[str, Signal]:
        wall, gained = self.gained(since)
        steps = gained["work.steps"]
        if wall <= 0 or steps <= 0:
            return {}
        over = f"over {wall:.0f} s"
        exchanges = {}
        if "comm.exchanges" in gained:
            exchanges["comm.exchanges_per_step"] = Signal(
                gained["comm.exchanges"] / steps,
                "",
                f"passes in which gradients were exchanged, {over}",
            )
        return (
            exchanges
            | _stream_signals(gained)
            | _mode_signals(gained)
            | {
                "gc.pause_ratio": Signal(
                    gained["gc.pause_s"] / wall,
                    "ratio",
                    f"gc.callbacks, {gained['gc.collections']:.0f} collections {over}",
                ),
                "loader.restart_ratio": Signal(
                    gained["loader.restart_s"] / wall,
                    "ratio",
                    (
                        "from the end of an epoch to the first batch of the next epoch,"
                        f" {gained['loader.restarts']:.0f} epochs {over}"
                    ),
                ),
                "loader.restarts": Signal(gained["loader.restarts"], "", f"epochs begun, {over}"),
                **_epoch_signal(gained, over),
                **_idle_signal(gained, wall, over),
                **_sampler_signal(gained, wall, over),
                **_evaluation_signal(gained, over),
                **_generation_signal(gained, over),
            }
        )

    def runq_ratio(self, since: float) -> Signal | None:
        """The share of time in which the training thread waited for a core, also between and beside
        the sampled steps; None where it is not known."""
        wall, gained = self.gained(since)
        if wall <= 0 or RUNQ_S not in gained:
            return None
        source = (
            f"/proc/thread-self/schedstat at each message, over {wall:.0f} s; CPU time"
            f" {percent(gained[CPU_S] / wall)}"
        )
        return Signal(min(1.0, gained[RUNQ_S] / wall), "ratio", source)


def _readings() -> tuple[MemoryReadings, ...]:
    return MemoryReadings(*MEMORY), MemoryReadings(*WORKERS_MEMORY)


def _totals(event: Steps) -> dict[str, float]:
    """The counters of a message with the times of the training thread. A kernel that does not
    report run-queue time leaves it at 0."""
    times = {RUNQ_S: event.runq_s, CPU_S: event.cpu_s} if event.runq_s else {}
    return event.counters | times


def _idle_signal(gained: Counter[str], wall: float, over: str) -> dict[str, Signal]:
    """The share of time in which the training thread neither ran nor waited for a core; empty where
    its times are not known."""
    if not gained[CPU_S]:
        return {}
    idle = max(0.0, 1 - (gained[CPU_S] + gained[RUNQ_S]) / wall)
    return {
        "host.training_idle_ratio": Signal(
            idle, "ratio", f"time less CPU time and run-queue delay of the training thread, {over}"
        )
    }


def _evaluation_signal(gained: Counter[str], over: str) -> dict[str, Signal]:
    """The share of evaluation in passes that record gradients; empty without an evaluation."""
    if not gained[EVAL_S]:
        return {}
    source = f"passes in eval mode with gradients that no backward pass follows, {over}"
    return {
        "eval.with_gradients_ratio": Signal(
            gained[EVAL_WITH_GRADIENTS_S] / gained[EVAL_S], "ratio", source
        )
    }


def _generation_signal(gained: Counter[str], over: str) -> dict[str, Signal]:
    """Return the mean number of passes of generation, over the steps with generation; empty without
    generation."""
    if not gained[GENERATED_STEPS]:
        return {}
    source = (
        f"passes without gradients of the model that is trained, in {gained[GENERATED_STEPS]:.0f}"
        f" of {gained['work.steps']:.0f} steps, {over}"
    )
    return {
        "generation.passes_per_step": Signal(
            gained[GENERATED] / gained[GENERATED_STEPS], "", source
        )
    }


def _epoch_signal(gained: Counter[str], over: str) -> dict[str, Signal]:
    """`loader.calls_per_epoch`: known in a job of the user's own."""
    if not gained["loader.batches"] or not gained["loader.restarts"]:
        return {}
    calls = gained["loader.batches"] / gained["loader.restarts"]
    return {
        "loader.calls_per_epoch": Signal(
            calls,
            "",
            (
                f"calls of next() for each iterator of the DataLoader, {over}; a loop has one more"
                " than batches"
            ),
        )
    }


def _sampler_signal(gained: Counter[str], wall: float, over: str) -> dict[str, Signal]:
    """`loader.sampler_ratio`: known in a job of the user's own."""
    if "loader.sampler_s" not in gained:
        return {}
    return {
        "loader.sampler_ratio": Signal(
            gained["loader.sampler_s"] / wall,
            "ratio",
            f"the sampler's first indices of each epoch, {over}",
        )
    }


def _mode_signals(gained: Counter[str]) -> dict[str, Signal]:
    """How often each mode of torch was on; empty where there were too few looks."""
    looks = gained["mode.looks"]
    if looks < MIN_LOOKS:
        return {}
    return {
        f"mode.{name}_ratio": Signal(
            gained[f"mode.{name}"] / looks,
            "ratio",
            f"{read}, on in {gained[f'mode.{name}']:.0f} of {looks:.0f} looks",
        )
        for name, read in MODES.items()
    }


def _stream_signals(gained: Counter[str]) -> dict[str, Signal]:
    """`host.caught_up_ratio`: whether the host or the GPU is the limit; empty where too few steps
    were looked at. `host.ahead_ratio`: how far the host was ahead within the steps at whose end the
    GPU had caught up, as a share of these steps; the host has then waited for the GPU."""
    steps = gained["stream.steps"]
    if steps < MIN_STREAM_STEPS:
        return {}
    source = (
        f"CUDA events of {steps:.0f} sampled steps: at the end of the step, the GPU had done all"
        " work before the last part"
    )
    signals = {
        "host.caught_up_ratio": Signal(
            min(1.0, gained["stream.caught_up"] / steps), "ratio", source
        )
    }
    # the times of a step become known after the answer whether the GPU had caught up
    if gained["stream.caught_up_s"] and gained["stream.ahead_steps"]:
        ahead = (
            f"CUDA events of {gained['stream.ahead_steps']:.0f} sampled steps: the host was ahead"
            " of the GPU within the step, and then waited for the GPU"
        )
        signals["host.ahead_ratio"] = Signal(
            min(1.0, gained["stream.ahead_s"] / gained["stream.caught_up_s"]), "ratio", ahead
        )
    return signals


_growth_memo: WeakKeyDictionary[MemoryReadings, tuple[tuple[float, float], dict[str, Signal]]] = (
    WeakKeyDictionary()
)
"""The last computed growth of each series, with the times of the computation."""


class CompileCounts:
    """The work of torch.compile during a run. The first message is the base; signals exist from the
    second message on.

    Only compilations between two messages of ordinary steps count. Compilations of a probe or a
    trial, for example for a larger batch, do not count. A user's own job holds its first steps
    back; its first message is the base although it has no steps.
    """

    def __init__(self) -> None:
        self._before: Steps | None = None
        self._gained: Counter[str] = Counter()
        self._passed_s = 0.0
        self._steps = 0
        self._breaks = 0.0
        self._given_up: float | None = None
        self._not_ours = 0.0
        """The number of given-up frames that do not count: frames of the first step, of probes and
        of trials."""
        self._probed = False
        """Whether a probe has ended since the last message."""

    def add(self, event: Steps) -> None:
        if "compile.graphs" not in event.counters:
            return
        if self._before is not None and not (self._before.steps or event.steps):
            return  # the steps since the base are still held back
        given_up = event.counters["compile.given_up"]
        if self._before is not None and is_another_process(self._before, event):
            self._before = self._given_up = None
        ordinary, probed, self._probed = is_ordinary(event), self._probed, False
        held = (
            self._given_up is None and not event.steps and event.counters.get("work.steps", 0.0) > 0
        )
        if self._given_up is None:
            self._not_ours = given_up
        elif probed or not ordinary:
            self._not_ours += given_up - self._given_up
        if ordinary and not probed and self._before is not None:
            before = self._before.counters
            self._gained.update(
                {
                    name: value - before[name]
                    for name, value in event.counters.items()
                    if name in before
                }
            )
            self._passed_s += event.t - self._before.t
            self._steps += sum(step.t > self._before.t for step in event.steps)
        self._given_up = given_up
        self._before = event if ordinary or held else None
        self._breaks = event.counters["compile.graph_breaks"]

    def probed(self) -> None:
        """A probe has ended: what was compiled since the last message does not count."""
        self._probed = True

    def carry_on(self, before: CompileCounts) -> None:
        """The same process continues with other knobs. Frames that torch.compile gave up remain
        uncompiled."""
        self._given_up, self._not_ours = before._given_up, before._not_ours

    def signals(self) -> dict[str, Signal]:
        if not self._steps:
            return {}
        gained = self._gained
        return {
            "compile.recompiles": Signal(gained["compile.graphs"], "", COMPILE_SOURCE),
            "compile.steps": Signal(
                float(self._steps), "steps", "step breakdown, since the first step"
            ),
            "compile.time_ratio": Signal(
                min(1.0, gained["compile.total_s"] / max(self._passed_s, 1e-9)),
                "ratio",
                f"{COMPILE_SOURCE}, over wall time",
            ),
            "compile.given_up": Signal(
                (self._given_up or 0.0) - self._not_ours,
                "",
                f"{COMPILE_SOURCE}: frames left uncompiled",
            ),
            "compile.graph_breaks": Signal(self._breaks, "", "torch._dynamo's counters"),
        }
