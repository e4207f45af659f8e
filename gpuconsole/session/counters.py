"""What a training process does beside its steps, from the totals that it sends: signals over the last seconds, and memory since it is steady."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter, deque

from gpuconsole.model.finding import Signal
from gpuconsole.model.run import PROBE
from gpuconsole.session.figures.trend import LEAST_POINTS, steady_growth
from gpuconsole.wire.events import Steps

WINDOW = 150
"""Messages looked at: half a minute of them, or a minute while a run is left alone."""
MEMORY_POINTS = 400
LEAST_STEPS = 50
LOOK_EVERY_S = 3.0
"""All pairs of readings cost some milliseconds."""


def is_ordinary(event: Steps) -> bool:
    """Whether a message tells of the job's own steps, and of no probe's or trial's."""
    return bool(event.steps) and not any(step.arm or step.kind == PROBE for step in event.steps)


class WorkCounts:
    """Fed with the worker's messages; what is asked for is since a moment, that from which the run is steady.

    What counts is gained between two messages of ordinary steps. A message of a probe's or a trial's steps, or of none, ends such a stretch.
    """

    def __init__(self) -> None:
        self._before: Steps | None = None
        self._gained: deque[tuple[float, float, dict[str, float]]] = deque(maxlen=WINDOW)
        self._memory: deque[tuple[float, float, float]] = deque(maxlen=MEMORY_POINTS)
        self._grown: dict[str, Signal] = {}
        self._looked_t = float("-inf")

    def add(self, event: Steps) -> None:
        if "work.steps" not in event.counters:
            return
        if not is_ordinary(event):
            self._before = None
            return
        if self._before is not None:
            gained = {name: value - self._before.counters[name] for name, value in event.counters.items() if name in self._before.counters}
            self._gained.append((self._before.t, event.t - self._before.t, gained))
        self._before = event
        if "host.private_bytes" not in event.counters:  # it is not read for every message
            return
        if len(self._memory) == MEMORY_POINTS:  # every second one will do for what is long ago
            self._memory = deque(itertools.islice(self._memory, 0, None, 2), maxlen=MEMORY_POINTS)
        self._memory.append((event.t, event.counters["work.steps"], event.counters["host.private_bytes"]))

    def signals(self, since: float, steady: float | None = None) -> dict[str, Signal]:
        """Of time since the moment `since`, of memory since `steady`, where that is another."""
        return self._of_time(since) | self._of_memory(since if steady is None else steady)

    def _of_time(self, since: float) -> dict[str, Signal]:
        stretches = [(seconds, gains) for begun, seconds, gains in self._gained if begun >= since]
        gained: Counter[str] = Counter()
        for _, gains in stretches:
            gained.update(gains)
        wall, steps = sum(seconds for seconds, _ in stretches), gained["work.steps"]
        if wall <= 0 or steps <= 0:
            return {}
        over = f"over {wall:.0f} s"
        return {
            "gc.pause_ratio": Signal(
                gained["gc.pause_s"] / wall, "ratio", f"gc.callbacks, {gained['gc.collections']:.0f} collections {over}"
            ),
            "loader.restart_ratio": Signal(
                gained["loader.restart_s"] / wall,
                "ratio",
                f"from an epoch's end to the next one's first batch, {gained['loader.restarts']:.0f} epochs {over}",
            ),
            "loader.restarts": Signal(gained["loader.restarts"], "", f"epochs begun, {over}"),
            "comm.exchanges_per_step": Signal(gained["comm.exchanges"] / steps, "", f"passes in which gradients travelled, {over}"),
        }

    def _of_memory(self, since: float) -> dict[str, Signal]:
        """Growth of the process's own memory."""
        if self._memory and self._memory[-1][0] - self._looked_t < LOOK_EVERY_S:
            return self._grown
        points = [point for point in self._memory if point[0] >= since]
        if len(points) < LEAST_POINTS or points[-1][1] - points[0][1] < LEAST_STEPS:
            return {}
        rises = statistics.fmean(later[2] >= earlier[2] for earlier, later in itertools.pairwise(points))
        growth = steady_growth([t for t, _, _ in points], [value for _, _, value in points])
        grown, seconds = points[-1][2] - points[0][2], points[-1][0] - points[0][0]
        source = f"resident memory that is this process's alone and not free in its heap, {len(points)} readings in {seconds:.0f} s"
        self._looked_t = points[-1][0]
        self._grown = {
            "host.memory_growth_bytes_per_s": Signal(
                growth, "B/s", f"{source}: slope (Theil-Sen) that is sure at 95 %, 0 where it flattens out"
            ),
            "host.memory_rises_ratio": Signal(rises, "ratio", f"{source}: share of them that are not below the one before"),
            "host.memory_grown_bytes": Signal(grown, "B", source),
            "host.memory_steady_ratio": Signal(
                growth * seconds / grown if grown > 0 else 0.0, "ratio", f"{source}: that slope over all growth"
            ),
            "host.private_bytes": Signal(points[-1][2], "B", source),
        }
        return self._grown
