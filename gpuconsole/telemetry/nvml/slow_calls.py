"""Spaces slow calls: a driver that needs 20 ms per answer must not get 128 calls per second."""

from __future__ import annotations

import time

from gpuconsole.telemetry.nvml.calls import Call
from gpuconsole.telemetry.nvml.library import Meter

SLOW_CALL_S = 0.004
"""Calls above this duration are slow. Answers from the driver's memory take microseconds."""
SHARE = 0.2
"""Maximum share of a round's period for slow calls."""
LEAST_S = 0.02


class SlowCalls:
    """`may_ask` decides whether a call is due. Slow calls take turns within the budget, equally often for each device."""

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
        """Seconds until the next turn of a slow call: half a round less than the rounds that all slow calls need."""
        per_round = max(1, int(self._budget_s / max(tuple(self._slow.values()), default=SLOW_CALL_S)))
        return (-(-len(self._asked) // per_round) - 0.5) * self._interval_s

    def words(self) -> str:
        """A description of the slow calls and their interval; empty when no call is slow."""
        slow = dict(self._slow)  # the calling thread continues meanwhile
        if not slow:
            return ""
        name, cost_s = max(slow.items(), key=lambda item: item[1])
        return f"{name} takes {cost_s * 1e3:.0f} ms: read every {self.turn_s() + 0.5 * self._interval_s:.1f} s"
