"""The expected memory and the expected parts of a step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Limit = Literal[
    "arithmetic",
    "memory bandwidth",
    "optimizer",
    "kernel launches",
    "data loading",
    "host to device",
    "logging",
    "checkpoints",
    "communication",
    "the slow process",
]


@dataclass(frozen=True)
class Work:
    """One step of one process, or one decoding iteration of a server.

    `memory_bytes`: the peak on one card. `device_s`: what the card computes, by limit, one after the other. `launch_s`: host time of the
    launches, which runs beside the card. `waits_s`: time in which the card waits for something else, by limit. `figures`: further
    quantities that the verdict reads, in SI units.
    """

    memory_bytes: float
    device_s: dict[Limit, float] = field(default_factory=dict)
    launch_s: float = 0.0
    waits_s: dict[Limit, float] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def busy_s(self) -> float:
        """Seconds in which the card computes."""
        return sum(self.device_s.values())

    @property
    def compute_s(self) -> float:
        """Seconds of computation as the host sees them: of the card, or of the launches where they take longer."""
        return max(self.busy_s, self.launch_s)

    @property
    def step_s(self) -> float:
        return self.compute_s + sum(self.waits_s.values())

    @property
    def parts(self) -> dict[Limit, float]:
        """Seconds of a step by limit; they add up to `step_s`. Launches count as far as the card waits for them."""
        found: dict[Limit, float] = {**self.device_s, **self.waits_s}
        if self.launch_s > self.busy_s:
            found["kernel launches"] = found.get("kernel launches", 0.0) + self.launch_s - self.busy_s
        return found

    @property
    def limit(self) -> Limit:
        """The largest part. Where the launches take longer than the card, they decide about the whole computation."""
        found = self.parts
        if self.launch_s > self.busy_s:
            found = {**self.waits_s, "kernel launches": self.launch_s}
        return max(found, key=lambda name: found[name])

    def share(self, *limits: Limit) -> float:
        """Share of a step that these parts take."""
        return sum(self.parts.get(limit, 0.0) for limit in limits) / self.step_s

    def figure(self, name: str) -> float:
        return self.figures[name]
