"""The comparison of a run with its baseline: the sessions that the user kept, by scenario, hardware and software."""

from __future__ import annotations

from typing import Literal

import msgspec

BaselineVerdict = Literal["faster", "same", "slower", "undecided"]
"""`same` is in files of earlier versions only: one run cannot show that it is the same within a few percent."""


class RateChange(msgspec.Struct, frozen=True):
    """Throughput divided by the throughput of the baseline, minus 1, with its 95 % interval: -0.083 is 8.3 % slower."""

    estimate: float
    low: float
    high: float


class BaselineComparison(msgspec.Struct, frozen=True, omit_defaults=True):
    """The comparison of a run with the kept runs of the same work on the same hardware and software, or the reason why there is no comparison (`verdict` None).

    `words`: the result as a sentence; `short`: the result for a title. `rate`: the mean rate of the baseline's `runs` on the wall clock, in
    `unit`; `since` and `until`: the dates of the oldest and the newest run. `live`: the run is still going on, and the interval is valid at
    every moment.
    """

    key: str
    words: str
    short: str = ""
    verdict: BaselineVerdict | None = None
    change: RateChange | None = None
    rate: float | None = None
    unit: str = ""
    runs: int = 0
    since: str = ""
    until: str = ""
    clock: Literal["wall", "contention_free"] = "wall"
    blocks: int = 0
    live: bool = False
