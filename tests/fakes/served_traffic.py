"""A model server under traffic, in a loop over iterations: what its metrics page would say. For the
statistics of trials, without time."""

from __future__ import annotations

import bisect
import itertools
import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuconsole.experiments.block_order import order
from gpuconsole.experiments.statistics import BASELINE, CHANGED
from gpuconsole.experiments.traffic import Judged, TrafficPair, block_of, judge
from gpuconsole.model.serving import LatencyBound
from gpuconsole.wire.events import ServerState
from tests.fakes.server_pages import SECONDS

READ_S = 0.5


@dataclass
class ServedTraffic:
    """`users`: a closed loop of so many clients; 0: requests come at random, `rate` per second on
    average, in bursts where `bursts` is above 1. An iteration takes `base_s`, and `each_s` for each
    running request beyond `fits`, so a batch can be too large."""

    seed: int
    users: int = 0
    rate: float = 4.0
    bursts: float = 1.0
    tokens: int = 40
    base_s: float = 0.01
    each_s: float = 0.001
    fits: int = 0
    seats: int = 64
    now: float = 0.0
    ended: int = 0
    made: int = 0
    ttft: list[float] = field(default_factory=lambda: [0.0, 0])
    itl: list[float] = field(default_factory=lambda: [0.0, 0])
    first_tokens: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    """TTFT by bucket."""

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self.waiting: deque[float] = deque([0.0] * self.users)
        self.running: list[list[float]] = []
        self._next, self._busy_until, self._burst = 0.0, 0.0, False
        self._read_at = 0.0

    def _arrive(self) -> None:
        while not self.users and self._next <= self.now:
            self.waiting.append(self._next)
            # a burst and a quiet time follow each other, of some seconds each
            if self.bursts > 1 and self._next >= self._busy_until:
                self._burst = not self._burst
                self._busy_until = self._next + self._chance.expovariate(1 / 3.0)
            rate = (
                self.rate
                * (self.bursts if self._burst else 2 - self.bursts if self.bursts < 2 else 0.1)
                if self.bursts > 1
                else self.rate
            )
            self._next += self._chance.expovariate(rate)

    def step(self) -> None:
        """One iteration."""
        self._arrive()
        while self.waiting and len(self.running) < self.seats:
            begun = self.waiting.popleft()
            length = max(4, round(self._chance.expovariate(1 / self.tokens)))
            self.running.append([begun, length, 0.0])
        took = self.base_s + self.each_s * max(0, len(self.running) - self.fits)
        self.now += took
        for request in self.running:
            if not request[2]:
                self.ttft[0] += self.now - request[0]
                self.ttft[1] += 1
                self.first_tokens[bisect.bisect_left(SECONDS, self.now - request[0])] += 1
            else:
                self.itl[0] += took
                self.itl[1] += 1
            request[2] += 1
        self.made += len(self.running)
        over = [request for request in self.running if request[2] >= request[1]]
        self.running = [request for request in self.running if request[2] < request[1]]
        self.ended += len(over)
        self.waiting.extend([self.now] * len(over) if self.users else [])

    def run(self, seconds: float) -> Iterator[ServerState]:
        """The readings of the next `seconds`."""
        end = self.now + seconds
        while self.now < end:
            self.step()
            if self.now >= self._read_at:
                self._read_at = self.now + READ_S
                yield self.state()

    def state(self) -> ServerState:
        totals: Mapping[str, float] = {
            "requests": self.ended,
            "generation_tokens": self.made,
            "ttft_s_sum": self.ttft[0],
            "ttft_s_count": self.ttft[1],
            "itl_s_sum": self.itl[0],
            "itl_s_count": self.itl[1],
        }
        return ServerState(
            self.now,
            {"requests_running": len(self.running), "requests_waiting": len(self.waiting)},
            {k: float(v) for k, v in totals.items()},
            {
                "ttft_s": [
                    (bound, float(count))
                    for bound, count in zip(
                        SECONDS, itertools.accumulate(self.first_tokens), strict=False
                    )
                ]
            },
        )


SETTLE_S, BLOCK_S, CAP_S = 1.0, 4.0, 300.0


def trial(
    before: int, after: int, seed: int, objective: Sequence[LatencyBound] = (), **traffic: Any
) -> Judged:
    """A trial of `max_num_seqs` on such a server, with the blocks of a real one
    (`experiments/traffic_trial.py`)."""
    server = ServedTraffic(seed, seats=before, **traffic)
    list(server.run(10))
    pairs: list[TrafficPair] = []
    begun, block_s = server.now, BLOCK_S
    for planned in itertools.islice(order(seed), 60):
        blocks = {}
        for block in planned:
            server.seats = {BASELINE: before, CHANGED: after}[block.arm]
            list(server.run(SETTLE_S))
            blocks[block.arm] = block_of(list(server.run(block_s * block.stretch)))
        if all(blocks.values()):
            pairs.append(
                TrafficPair(
                    planned[0].arm,
                    {arm: block for arm, block in blocks.items() if block is not None},
                )
            )
        judged = judge(
            pairs, {"max_num_seqs": after}, {"max_num_seqs": before}, objective=objective
        )
        if judged.compared < 0.75 * len(pairs):
            block_s = min(20.0, 1.5 * block_s)
        if judged.verdict is not None or server.now - begun > CAP_S:
            break
    return judged
