"""A suggestion put to the test."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpuconsole.model.finding import Interval
from gpuconsole.model.knobs.catalogue import Knobs

Verdict = Literal["win", "no_gain", "worse", "undecided"]
MOST_PERPLEXITY_COST = 0.05
"""A change that costs more than 5 % perplexity is not kept, whatever it gains."""
MOST_LOSS_COST = 0.02
"""A change of numerics that costs more than 2 % of held-out loss is not kept. bf16 beside fp32 costs some tenths of a percent; train-doctor
allows 5 %."""
TrialState = Literal["running", "done", "failed"]
Method = Literal["live ABBA", "two workers ABBA"]
"""Both sides in one process, or each in one of its own."""


class Speedup(msgspec.Struct, frozen=True):
    """Throughput with the change over throughput without it."""

    estimate: float
    low: float
    high: float


class Perplexity(msgspec.Struct, frozen=True):
    """Of the same fixed text, without the change and with it."""

    before: float
    after: float

    @property
    def cost_ratio(self) -> float:
        """How much worse it is with the change; below 0: better."""
        return self.after / self.before - 1

    @property
    def too_high(self) -> bool:
        return self.cost_ratio > MOST_PERPLEXITY_COST


class HeldOutLoss(msgspec.Struct, frozen=True):
    """Of the same held-out batches, without the change, with it. `drift`: what the job's own training moved it by between two looks without."""

    before: float
    after: float
    drift: float = 0.0

    @property
    def cost_ratio(self) -> float:
        """How much worse it is with the change; below 0: better."""
        return self.after / self.before - 1

    @property
    def too_high(self) -> bool:
        return not self.after - self.before <= max(MOST_LOSS_COST * self.before, self.drift)  # also where it is no number any more


class Trial(msgspec.Struct, frozen=True, omit_defaults=True):
    """Paired blocks of baseline and changed steps.

    `log_ratios` holds one value per pair of blocks, log(rate changed / rate baseline), on `clock`:
    `contention_free` subtracts the training thread's run-queue delay, `wall` does not. `wall_speedup` is the same trial
    on the wall clock. `null_log_ratios` compares neighbouring blocks of one and the same side: what this machine makes of no change at all.
    `between`: what the two sides differ by anyway, part of the intervals (standard deviation of the log ratio). `resolution_ratio`: the
    smallest effect that can be told from all that, after as many pairs. `perplexity`: of a model server's answers,
    and `held_out_loss` of a training job's model, where the change alters them; not `checked`: that loss could not be had.
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
    method: Method = "live ABBA"
    between: float = 0.0
    log_ratios: tuple[float, ...] = ()
    null_log_ratios: tuple[float, ...] = ()
    resolution_ratio: float | None = None
    elapsed_s: float = 0.0
    error: str | None = None
    changes_training: bool = False
    perplexity: Perplexity | None = None
    held_out_loss: HeldOutLoss | None = None
    checked: bool = True

    @property
    def worth_keeping(self) -> bool:
        """A win, and no worse in what it computes where that was looked at."""
        return (
            self.verdict == "win"
            and self.checked
            and not any(one is not None and one.too_high for one in (self.perplexity, self.held_out_loss))
        )
