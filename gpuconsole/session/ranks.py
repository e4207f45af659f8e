"""The steps of every process of a run with several processes."""

from __future__ import annotations

import itertools
import statistics
from collections import deque

from gpuconsole.model.finding import Signal
from gpuconsole.model.run import COUNTS, PHASES, Rank, Step
from gpuconsole.session.figures.account import wall_shares
from gpuconsole.session.figures.distributions import distribution
from gpuconsole.wire.events import RankJoined, Steps

KEPT_STEPS = 2000
LEAST_STEPS = 3
SAMPLED_STEPS = 30
RECENT_STEPS = 200
COMM = PHASES.index("comm")


class Ranks:
    """The steps of each process, by rank; empty for a run in one process."""

    def __init__(self) -> None:
        self._joined: dict[int, RankJoined] = {}
        self._steps: dict[int, deque[Step]] = {}
        self._memory: dict[int, float] = {}

    def join(self, event: RankJoined) -> None:
        self._joined[event.rank] = event
        self._steps[event.rank] = deque(maxlen=KEPT_STEPS)

    def carry_on(self, before: Ranks) -> None:
        """The same processes continue with a new run. Earlier steps do not count."""
        for event in before.joined:
            self.join(event)

    def clear(self) -> None:
        """Delete the steps, but keep the list of processes."""
        for steps in self._steps.values():
            steps.clear()

    @property
    def joined(self) -> list[RankJoined]:
        """The first message of each process, by rank."""
        return [event for _, event in sorted(self._joined.items())]

    def leads(self, rank: int) -> bool:
        """Whether the steps of `rank` represent the run."""
        return rank not in self._joined or self._joined[rank].leads

    def add(self, event: Steps) -> None:
        if event.rank in self._joined:
            self._steps[event.rank].extend(step for step in event.steps if step.kind == COUNTS and step.arm == 0)
            self._memory[event.rank] = event.memory_bytes

    def summaries(self, limit: int | None = None) -> list[Rank]:
        """A summary of each process over its last `limit` steps, by rank."""
        return [self._summary(event, limit or KEPT_STEPS) for event in self.joined]

    def signals(self) -> dict[str, Signal]:
        """The process with the longest time outside communication, and this time over the median of the other processes.

        Empty until every process has made some steps.
        """
        busy = {rank: statistics.median(_busy_s(step) for step in steps) for rank in self._joined if (steps := self._sampled(rank))}
        if len(busy) < max(2, len(self._joined)):
            return {}
        if not any(step.phases[COMM] for rank in busy for step in self._sampled(rank)):
            return {}  # with sharding or split matrices, processes wait inside their passes, so their times cannot be compared
        busiest = max(busy, key=lambda rank: busy[rank])
        others = statistics.median(seconds for rank, seconds in busy.items() if rank != busiest)
        source = f"step account of {len(busy)} processes: median time without communication and run-queue delay, over the median of the other processes"
        return self._least_communication() | {
            "ranks.busy_ratio": Signal(busy[busiest] / others, "x", source),
            "ranks.busiest": Signal(float(busiest), "", "step account"),
            "world_size": Signal(float(len(busy)), "", "processes that have joined"),
        }

    def _least_communication(self) -> dict[str, Signal]:
        """Communication time without waiting. In each step, the process that communicates least has arrived last, so it waited for no other process."""
        recent = [{step.index: step for step in itertools.islice(reversed(self._steps[rank]), RECENT_STEPS)} for rank in self._joined]
        common = set.intersection(*(set(steps) for steps in recent))
        if len(common) < LEAST_STEPS:
            return {}
        least = sum(min(steps[index].phases[COMM] for steps in recent) for index in common)
        wall = sum(statistics.fmean(steps[index].wall_s for steps in recent) for index in common)
        source = f"step account of {len(recent)} processes, n={len(common)}: in each step, the process that communicated least"
        return {"ranks.least_comm_ratio": Signal(least / wall, "ratio", source)}

    def _sampled(self, rank: int) -> list[Step]:
        """The last steps for which run-queue delay was read; empty while there are fewer than LEAST_STEPS."""
        sampled = [step for step in self._steps[rank] if step.runq is not None][-SAMPLED_STEPS:]
        return sampled if len(sampled) >= LEAST_STEPS else []

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
            leads=event.leads,
        )


def _busy_s(step: Step) -> float:
    """Seconds of a step without communication and without run-queue delay. Communication includes the wait for other processes."""
    runq = step.runq or (0.0,) * len(PHASES)
    return step.wall_s - sum(runq) - (step.phases[COMM] - runq[COMM])
