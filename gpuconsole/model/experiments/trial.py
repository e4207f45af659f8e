"""A trial: a change measured against the present settings, in paired blocks."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpuconsole.model.finding import Interval
from gpuconsole.model.knobs.catalogue import Knobs

Verdict = Literal["win", "no_gain", "worse", "undecided"]
MOST_PERPLEXITY_COST = 0.05
"""A change that raises perplexity by more than 5 % is not kept."""
MOST_LOSS_COST = 0.02
"""A change of numerics that raises the held-out loss by more than 2 % is not kept. bf16 instead of fp32 raises the loss by some tenths of a
percent; train-doctor allows 5 %."""
TrialState = Literal["running", "done", "failed", "cancelled"]
Method = Literal["live ABBA", "two workers ABBA", "restarts ABBA"]
"""Both sides in one process, or each side in a separate process."""


class Forecast(msgspec.Struct, frozen=True):
    """What a trial will take and what it can show. `seconds`: from its start to its verdict. `resolution_ratio`: the smallest change of throughput
    that it can tell from noise within its time limit; None while the noise of the run is unknown."""

    seconds: float
    resolution_ratio: float | None = None

    def resolves(self, gain_ratio: float) -> bool:
        """Whether the trial can tell a gain of this size from noise; true where the noise is unknown."""
        return self.resolution_ratio is None or gain_ratio >= self.resolution_ratio


class Speedup(msgspec.Struct, frozen=True):
    """Throughput with the change divided by throughput without the change."""

    estimate: float
    low: float
    high: float

    @property
    def inverse(self) -> Speedup:
        """The gain of the opposite change."""
        return Speedup(1 / self.estimate, 1 / self.high, 1 / self.low)


class Perplexity(msgspec.Struct, frozen=True):
    """Perplexity of the same fixed text, without and with the change."""

    before: float
    after: float

    @property
    def cost_ratio(self) -> float:
        """How much worse the change makes the model, as a share; below 0: better."""
        return self.after / self.before - 1

    @property
    def too_high(self) -> bool:
        return self.cost_ratio > MOST_PERPLEXITY_COST


class HeldOutLoss(msgspec.Struct, frozen=True, omit_defaults=True):
    """Loss of the same held-out batches, without and with the change. `drift`: how much training changed the loss between the two measurements
    without the change. `training`: instead the loss of a user's job on its own training batches, whose noise is the `drift`."""

    before: float
    after: float
    drift: float = 0.0
    training: bool = False

    @property
    def cost_ratio(self) -> float:
        """How much worse the change makes the model, as a share; below 0: better."""
        return self.after / self.before - 1

    @property
    def too_high(self) -> bool:
        return not self.after - self.before <= max(MOST_LOSS_COST * self.before, self.drift)  # true for nan too


class Trial(msgspec.Struct, frozen=True, omit_defaults=True):
    """Paired blocks of baseline and changed steps.

    `log_ratios`: one value per pair of blocks, log(changed rate / baseline rate), on `clock`: `contention_free` subtracts the run-queue delay
    of the training thread, `wall` does not. `wall_speedup`: the same trial on the wall clock. `null_log_ratios`: the log ratios of neighbouring
    blocks of the same side, which show the noise of this machine. `between`: the standard deviation of the log ratio between two sides with the
    same settings; it is part of the intervals. `resolution_ratio`: the smallest effect that this number of pairs can distinguish from noise.
    `perplexity` (model server) and `held_out_loss` (training) are measured where the change alters them; `checked` is false where the loss
    could not be measured. `effect`: what the change does to the numbers of a user's own job (`model.job.facts.EFFECTS`). `forecast`: known before the start of a trial that starts a second model server. `limit_s`: the longest time of the
    measurement, for `elapsed_s`. `begun_s`, `ended_s`: session times of the start and the end of the trial; only in a snapshot.
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
    forecast: Forecast | None = None
    checked: bool = True
    begun_s: float | None = None
    ended_s: float | None = None
    limit_s: float | None = None
    effect: str = ""

    @property
    def worth_keeping(self) -> bool:
        """The trial is a win, and the model is not worse, where that was measured."""
        return (
            self.verdict == "win"
            and self.checked
            and not any(one is not None and one.too_high for one in (self.perplexity, self.held_out_loss))
        )
