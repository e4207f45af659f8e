"""Bounded time series: recent samples whole, old ones as min/mean/max buckets.

Memory is bounded by construction: `RAW` recent samples and at most `BUCKETS` buckets. When the raw part is
full, its older half is folded into buckets; when the buckets are full, neighbours are merged in pairs, so
the buckets cover twice the time each. A day at 1 Hz therefore costs the same memory as a week.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

RAW = 1024
BUCKETS = 1024
FOLD = 8  # samples in a bucket when it is first made


class Bucket(NamedTuple):
    """`t` is the time of the first sample in it, seconds; `n` how many samples it stands for."""

    t: float
    low: float
    mean: float
    high: float
    n: float


class Series:
    """One metric of one device over time. Times are seconds on the runtime's clock and must not fall."""

    __slots__ = ("_buckets", "_fold", "_t", "_v", "source")

    def __init__(self, source: str = "") -> None:
        self._t = array("d")
        self._v = array("d")
        self._buckets: tuple[array[float], ...] = tuple(array("d") for _ in Bucket._fields)
        self._fold = FOLD
        self.source = source

    def add(self, t: float, value: float) -> None:
        self._t.append(t)
        self._v.append(value)
        if len(self._t) >= RAW:
            self._fold_older_half()

    def __len__(self) -> int:
        """Samples ever added."""
        return len(self._t) + int(sum(self._buckets[4]))

    @property
    def last(self) -> float | None:
        return self._v[-1] if self._v else None

    @property
    def last_t(self) -> float | None:
        return self._t[-1] if self._t else None

    def recent(self, n: int) -> list[float]:
        """The last `n` raw values, oldest first."""
        return list(self._v[-n:])

    def since(self, t: float) -> tuple[list[float], list[float]]:
        """Raw times and values at or after `t`."""
        start = len(self._t)
        while start and self._t[start - 1] >= t:
            start -= 1
        return list(self._t[start:]), list(self._v[start:])

    def buckets(self) -> list[Bucket]:
        return [Bucket(*row) for row in zip(*self._buckets, strict=True)]

    def points(self) -> tuple[list[float], list[float]]:
        """The whole history: bucket means, then raw samples."""
        return list(self._buckets[0]) + list(self._t), list(self._buckets[2]) + list(self._v)

    def _fold_older_half(self) -> None:
        cut = (RAW // 2) // self._fold * self._fold or self._fold
        for start in range(0, cut, self._fold):
            values = self._v[start : start + self._fold]
            row = Bucket(self._t[start], min(values), sum(values) / len(values), max(values), len(values))
            for column, value in zip(self._buckets, row, strict=True):
                column.append(value)
        del self._t[:cut], self._v[:cut]
        if len(self._buckets[0]) > BUCKETS:
            self._merge_pairs()

    def _merge_pairs(self) -> None:
        rows = self.buckets()
        merged = tuple(array("d") for _ in Bucket._fields)
        for start in range(0, len(rows), 2):
            row = _merge(rows[start : start + 2])
            for column, value in zip(merged, row, strict=True):
                column.append(value)
        self._buckets = merged
        self._fold = min(self._fold * 2, RAW // 2)


def _merge(rows: list[Bucket]) -> Bucket:
    n = sum(row.n for row in rows)
    mean = sum(row.mean * row.n for row in rows) / n
    return Bucket(rows[0].t, min(r.low for r in rows), mean, max(r.high for r in rows), n)
