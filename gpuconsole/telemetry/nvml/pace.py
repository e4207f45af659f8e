"""Slow calls get turns: a driver that needs 20 ms for an answer must not be asked 128 times a second."""

from __future__ import annotations

import time

from gpuconsole.telemetry.nvml.calls import Call
from gpuconsole.telemetry.nvml.library import Meter

SLOW_CALL_S = 0.004
"""From here on a call is slow. What the driver answers from memory takes microseconds."""
SHARE = 0.2
"""Of a round's period that slow calls may fill."""
LEAST_S = 0.02


class Pace:
    """`may_ask` says whether a question has its turn. A slow one comes round as often as the budget allows, each device as often."""

    def __init__(self, meter: Meter, interval_s: float) -> None:
        self._meter = meter
        self._budget_s = max(LEAST_S, SHARE * interval_s)
        self._interval_s = interval_s
        self._typical: dict[str, float] = {}
        self._asked: dict[tuple[str, str], float] = {}
        self._slow: dict[str, float] = {}
        self._spent_s = 0.0
        self._round = 0.0

    def begin_round(self) -> None:
        self._spent_s, self._round = 0.0, time.monotonic()
        self._typical = self._meter.typical()
        self._slow = {name: self._typical[name] for name in self._slow if self._typical[name] >= SLOW_CALL_S}

    def may_ask(self, device: str, question: Call) -> bool:
        function = question.variants[0].function
        cost_s = self._typical.get(function) or self._meter.typical_s(function)
        if cost_s < SLOW_CALL_S:
            return True
        self._slow[function] = cost_s
        key = (device, question.metrics[0])
        due = self._asked.setdefault(key, float("-inf")) + self.turn_s()
        if self._round < due or (self._spent_s and self._spent_s + cost_s > self._budget_s):
            return False
        self._asked[key] = self._round
        self._spent_s += cost_s
        return True

    def turn_s(self) -> float:
        """How long a slow question waits for its next turn: half a round less than the rounds that all of them take."""
        per_round = max(1, int(self._budget_s / max(tuple(self._slow.values()), default=SLOW_CALL_S)))
        return (-(-len(self._asked) // per_round) - 0.5) * self._interval_s

    def words(self) -> str:
        """What is slow and how often it is read; empty when nothing is."""
        slow = dict(self._slow)  # the thread that asks goes on
        if not slow:
            return ""
        name, cost_s = max(slow.items(), key=lambda item: item[1])
        return f"{name} takes {cost_s * 1e3:.0f} ms: read every {self.turn_s() + 0.5 * self._interval_s:.1f} s"
