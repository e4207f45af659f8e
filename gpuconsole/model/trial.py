"""A suggestion put to the test."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpuconsole.model.finding import Interval
from gpuconsole.model.knobs import Knobs

Verdict = Literal["win", "no_gain", "worse", "undecided"]
TrialState = Literal["running", "done", "failed"]


class Speedup(msgspec.Struct, frozen=True):
    """Throughput with the change over throughput without it."""

    estimate: float
    low: float
    high: float


class Trial(msgspec.Struct, frozen=True, omit_defaults=True):
    """Paired blocks of baseline and changed steps.

    `log_ratios` holds one value per pair of blocks, log(rate changed / rate baseline), on `clock`:
    `contention_free` subtracts the training thread's run-queue delay, `wall` does not. `wall_speedup` is the same trial
    on the wall clock.
    """

    id: str
    baseline_run: str
    changes: Knobs
    state: TrialState = "running"
    speedup: Speedup | None = None
    wall_speedup: Speedup | None = None
    blocks: int = 0
    predicted: Interval | None = None
    verdict: Verdict | None = None
    kept: bool = False
    clock: Literal["wall", "contention_free"] = "wall"
    method: Literal["live ABBA", "two workers ABBA"] = "live ABBA"
    log_ratios: tuple[float, ...] = ()
    elapsed_s: float = 0.0
    error: str | None = None
    changes_training: bool = False
