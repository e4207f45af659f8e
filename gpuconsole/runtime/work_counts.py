"""What a training process does beside its steps, from the totals that it sends: signals over the last seconds, and memory since it is steady."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter, deque

from gpuconsole.model.finding import Signal
from gpuconsole.wire.events import Steps

PROBE = 2
WINDOW = 150
"""Messages looked at: half a minute of them."""
MEMORY_POINTS = 400
LEAST_POINTS = 20
LEAST_STEPS = 50
SLOPES = 60
"""Points that a slope is made of: their pairs number some thousand."""


class WorkCounts:
    """Fed with the worker's messages; what is asked for is since a moment, that from which the run is steady.

    What counts is gained between two messages of ordinary steps. A message of a probe's or a trial's steps, or of none, ends such a stretch.
    """

    def __init__(self) -> None:
        self._before: Steps | None = None
        self._gained: deque[tuple[float, float, dict[str, float]]] = deque(maxlen=WINDOW)
        self._memory: deque[tuple[float, float, float]] = deque(maxlen=MEMORY_POINTS)

    def add(self, event: Steps) -> None:
        if "work.steps" not in event.counters:
            return
        if not event.steps or any(step.arm or step.kind == PROBE for step in event.steps):
            self._before = None
            return
        if self._before is not None:
            gained = {name: value - self._before.counters[name] for name, value in event.counters.items() if name in self._before.counters}
            self._gained.append((self._before.t, event.t - self._before.t, gained))
        self._before = event
        self._memory.append((event.t, event.counters["work.steps"], event.counters["host.private_bytes"]))

    def signals(self, since: float) -> dict[str, Signal]:
        return self._of_time(since) | self._of_memory(since)

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
            "comm.exchanges_per_step": Signal(gained["comm.exchanges"] / steps, "", f"passes in which gradients travelled, {over}"),
        }

    def _of_memory(self, since: float) -> dict[str, Signal]:
        """Growth of the process's own memory by Theil and Sen: the median of the slopes between all pairs of points."""
        points = [point for point in self._memory if point[0] >= since]
        if len(points) < LEAST_POINTS or points[-1][1] - points[0][1] < LEAST_STEPS:
            return {}
        points = points[:: max(1, len(points) // SLOPES)]
        slopes = sorted(
            (later[2] - earlier[2]) / (later[0] - earlier[0])
            for index, earlier in enumerate(points)
            for later in points[index + 1 :]
            if later[0] > earlier[0]
        )
        rises = statistics.fmean(later[2] >= earlier[2] for earlier, later in itertools.pairwise(points))
        source = f"resident memory that is this process's alone, {len(points)} points in {points[-1][0] - points[0][0]:.0f} s"
        return {
            "host.memory_slope_bytes_per_s": Signal(statistics.median(slopes), "B/s", f"{source}: median of all slopes (Theil-Sen)"),
            "host.memory_slope_low_bytes_per_s": Signal(slopes[len(slopes) // 10], "B/s", f"{source}: a tenth of the slopes is below"),
            "host.memory_rises_ratio": Signal(rises, "ratio", f"{source}: share of points that are not below the one before"),
            "host.memory_grown_bytes": Signal(points[-1][2] - points[0][2], "B", source),
            "host.private_bytes": Signal(points[-1][2], "B", source),
        }
