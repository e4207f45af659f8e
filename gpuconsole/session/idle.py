"""Since when each GPU does no work: the only place that knows it, fed by the samples and by the
lists of processes."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import NamedTuple

UTILIZATION = ("gpu.sm_active_ratio", "gpu.utilization_ratio")
"""The two measures of work. GPU-Util counts a GPU as working while one of its SMs works; SM
activity says how many do. Either of them proves work."""
BUSY_RATIO = 0.02
"""A GPU works above this share of either measure. An idle desktop GPU stays below it."""
MAX_GAP_S = 30.0
"""A longer time without a sample proves nothing: the quiet time begins again after it. A slow
driver answers every few seconds."""


class QuietTime(NamedTuple):
    """How long a GPU has done no work. `at_least`: nothing is known of the time before."""

    seconds: float
    at_least: bool


class QuietTimes:
    """One sample with work ends the quiet time of a GPU, and so does a process that comes: it may
    load its data first. A GPU whose samples end has no quiet time."""

    def __init__(self, interval_s: float) -> None:
        """`interval_s`: seconds between two samples."""
        self._max_gap_s = max(MAX_GAP_S, 3 * interval_s)
        self._since: dict[str, tuple[float, bool]] = {}
        self._sampled: dict[str, float] = {}
        self._users: dict[str, frozenset[int]] = {}

    def add_sample(self, device: str, values: Mapping[str, float], at: float) -> None:
        shares = [values[name] for name in UTILIZATION if name in values]
        if not shares:
            return
        unseen = at - self._sampled.get(device, -math.inf) > self._max_gap_s
        self._sampled[device] = at
        if max(shares) > BUSY_RATIO:
            self._since.pop(device, None)
        elif unseen or device not in self._since:
            self._since[device] = (at, unseen)

    def add_users(self, users: Mapping[str, Collection[int]], at: float) -> None:
        """Note the process ids of each GPU and slice whose list is known."""
        for device, pids in users.items():
            here, before = frozenset(pids), self._users.get(device)
            if before is not None and here - before and device in self._since:
                self._since[device] = (at, False)
            self._users[device] = here

    def forget(self, device: str) -> None:
        """Drop what is known of a name that now belongs to another GPU."""
        for known in (self._since, self._sampled, self._users):
            known.pop(device, None)

    def at(self, now: float) -> dict[str, QuietTime]:
        """Return the quiet times of the devices that do no work, and whose samples still come."""
        return {
            device: QuietTime(now - since, at_least)
            for device, (since, at_least) in self._since.items()
            if now - self._sampled[device] <= self._max_gap_s
        }
