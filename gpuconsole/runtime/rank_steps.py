"""The steps of every process of a run that has several."""

from __future__ import annotations

import itertools
from collections import deque

from gpuconsole.diagnosis.account import distribution, wall_shares
from gpuconsole.model.run import Rank, Step
from gpuconsole.wire.events import RankJoined, Steps

KEPT_STEPS = 2000
COUNTS = 0


class Ranks:
    """Empty for a run in one process, which leads itself."""

    def __init__(self) -> None:
        self._joined: dict[int, RankJoined] = {}
        self._steps: dict[int, deque[Step]] = {}
        self._memory: dict[int, float] = {}

    def join(self, event: RankJoined) -> None:
        self._joined[event.rank] = event
        self._steps[event.rank] = deque(maxlen=KEPT_STEPS)

    def carry_on(self, before: Ranks) -> None:
        """The same processes go on, counting anew."""
        for event in before._joined.values():
            self.join(event)

    def leads(self, rank: int) -> bool:
        """Whether the steps of `rank` stand for the run's."""
        return rank not in self._joined or self._joined[rank].leads

    def add(self, event: Steps) -> None:
        if event.rank in self._joined:
            self._steps[event.rank].extend(step for step in event.steps if step.kind == COUNTS and step.arm == 0)
            self._memory[event.rank] = event.memory_bytes

    def summaries(self, limit: int | None = None) -> list[Rank]:
        """Each process by rank, over its last `limit` steps."""
        return [self._summary(event, limit or KEPT_STEPS) for _, event in sorted(self._joined.items())]

    def _summary(self, event: RankJoined, limit: int) -> Rank:
        steps = list(itertools.islice(reversed(self._steps[event.rank]), limit))
        return Rank(
            rank=event.rank,
            host=event.host,
            pid=event.pid,
            steps=len(steps),
            step_time_s=distribution([step.wall_s for step in steps]),
            phases_ratio=wall_shares(steps) if steps else {},
            memory_peak_bytes=self._memory.get(event.rank),
        )
