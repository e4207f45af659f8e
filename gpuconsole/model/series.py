"""Bounded time series: recent samples in full, older samples as means over growing time spans.

Each sample has a weight: 1, or for a rate the seconds over which it was measured. The weight of a
mean is the sum of the weights of its samples.

A series holds `RAW` recent samples and `BUCKETS` means, about 10 KB. When the raw part is full, the
series folds the older half into buckets. When the buckets are full, the series merges neighbouring
buckets in pairs, so that each bucket covers twice the time. A week at 1 Hz therefore needs the same
memory as a day. A series of which nobody reads more keeps the last `RECENT_S` seconds.
"""

from __future__ import annotations

import operator
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

RAW = 256
BUCKETS = 384
FOLD = 8  # samples in a new bucket
RECENT_S = 600.0


class Weighed(NamedTuple):
    """A sample, or the mean of older samples since the time `t`, with its weight."""

    t: float
    value: float
    weight: float


class Series:
    """One metric of one device over time. Times are seconds on the session's clock; they must not
    decrease."""

    __slots__ = (
        "_bucket_t",
        "_bucket_v",
        "_bucket_w",
        "_fold",
        "_older",
        "_t",
        "_v",
        "_w",
        "only_recent",
        "source",
    )

    def __init__(self, source: str = "", only_recent: bool = False) -> None:
        """`only_recent`: forget what is older than RECENT_S, from now on."""
        self.only_recent = only_recent
        self._t = array("d")
        self._v = array("d")
        self._w = array("f")
        self._bucket_t = array("d")  # time of the first sample of each bucket
        self._bucket_v = array("d")
        self._bucket_w = array("d")
        self._older = 0  # samples in the buckets
        self._fold = FOLD
        self.source = source

    def add(self, t: float, value: float, weight: float = 1.0) -> None:
        self._t.append(t)
        self._v.append(value)
        self._w.append(weight)
        if len(self._t) >= RAW:
            self._fold_older_half()

    def __len__(self) -> int:
        """Number of samples added so far."""
        return len(self._t) + self._older

    @property
    def last(self) -> float | None:
        return self._v[-1] if self._v else None

    def since(self, t: float) -> tuple[list[float], list[float]]:
        """Times and values at or after `t`. Old samples are represented by the means of their
        buckets."""
        times, values = self._tail(self._t, self._v, t)
        if self._bucket_t and self._bucket_t[-1] >= t:
            older_t, older_v = self._tail(self._bucket_t, self._bucket_v, t)
            return older_t + times, older_v + values
        return times, values

    def points(self) -> tuple[list[float], list[float]]:
        """The whole history: bucket means, then raw samples."""
        return [*self._bucket_t, *self._t], [*self._bucket_v, *self._v]

    def weighed(self, since: float = float("-inf")) -> Iterator[Weighed]:
        """Yield the samples at or after `since`, each with its weight for a weighted mean."""
        for times, values, weights in (
            (self._bucket_t, self._bucket_v, self._bucket_w),
            (self._t, self._v, self._w),
        ):
            if times and times[-1] >= since:
                start = bisect_left(times, since)
                yield from map(Weighed, times[start:], values[start:], weights[start:])

    @staticmethod
    def _tail(
        times: array[float], values: array[float], t: float
    ) -> tuple[list[float], list[float]]:
        start = len(times)
        while start and times[start - 1] >= t:
            start -= 1
        return list(times[start:]), list(values[start:])

    def _fold_older_half(self) -> None:
        cut = (RAW // 2) // self._fold * self._fold or self._fold
        for start in range(0, cut, self._fold):
            value, weight = _mean(
                self._v[start : start + self._fold], self._w[start : start + self._fold]
            )
            self._bucket_t.append(self._t[start])
            self._bucket_v.append(value)
            self._bucket_w.append(weight)
        self._older += cut
        del self._t[:cut], self._v[:cut], self._w[:cut]
        if self.only_recent:
            old = bisect_left(self._bucket_t, self._t[-1] - RECENT_S)
            del self._bucket_t[:old], self._bucket_v[:old], self._bucket_w[:old]
        if len(self._bucket_t) > BUCKETS:
            self._merge_pairs()

    def _merge_pairs(self) -> None:
        times, values, weights = self._bucket_t, self._bucket_v, self._bucket_w
        self._bucket_t = times[::2]
        self._bucket_v, self._bucket_w = array("d"), array("d")
        for start in range(0, len(times), 2):
            value, weight = _mean(values[start : start + 2], weights[start : start + 2])
            self._bucket_v.append(value)
            self._bucket_w.append(weight)
        self._fold = min(self._fold * 2, RAW // 2)


def _mean(values: array[float], weights: array[float]) -> tuple[float, float]:
    """Return the weighted mean of `values`, and the sum of the weights."""
    weight = sum(weights)
    return sum(map(operator.mul, values, weights)) / weight, weight
