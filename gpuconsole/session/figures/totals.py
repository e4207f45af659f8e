"""The sums of work and time over steps. A run has them over all its steady steps, however many
these are; the steps themselves are kept for percentiles only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from gpuconsole.model.run import PHASES, Distribution, Step
from gpuconsole.session.figures.distributions import distribution


class Totals:
    """Work, seconds, and seconds by phase of steps. `sampled_s` and `delays_s`: of the steps for
    which run-queue delay was read, their seconds and the delay by phase."""

    def __init__(self, steps: Sequence[Step] = ()) -> None:
        self.steps = self.samples = self.tokens = 0
        self.wall_s = self.sampled_s = 0.0
        self.phases_s = [0.0] * len(PHASES)
        self.delays_s = [0.0] * len(PHASES)
        self.add(steps)

    def add(self, steps: Sequence[Step]) -> None:
        sampled = [step for step in steps if step.runq is not None]
        self.steps += len(steps)
        self.samples += sum(step.samples for step in steps)
        self.tokens += sum(step.tokens for step in steps)
        self.wall_s += sum(step.wall_s for step in steps)
        self.phases_s = _added(self.phases_s, (step.phases for step in steps))
        self.sampled_s += sum(step.wall_s for step in sampled)
        self.delays_s = _added(self.delays_s, (step.runq or () for step in sampled))

    def join(self, other: Totals) -> None:
        """Add the work and the time of `other`."""
        self.steps += other.steps
        self.samples += other.samples
        self.tokens += other.tokens
        self.wall_s += other.wall_s

    def per_s(self, work: float) -> float:
        """`work` (`samples` or `tokens`) per second of wall time; 0 without steps."""
        return work / self.wall_s if self.wall_s > 0 else 0.0

    def step_time(self, last: Sequence[Step]) -> Distribution | None:
        """The mean step time, with the spread and the percentiles of the `last` steps; None without
        them."""
        spread = distribution([step.wall_s for step in last])
        return spread and replace(spread, mean=self.wall_s / self.steps)

    @property
    def runq_ratio(self) -> float | None:
        """Run-queue delay over wall time; None where the delay was read for no step."""
        return sum(self.delays_s) / self.sampled_s if self.sampled_s > 0 else None

    def shares(self) -> dict[str, float]:
        """The share of each phase in the wall time. The shares sum to 1. Empty without steps."""
        return self._named(self.phases_s, self.wall_s) if self.wall_s > 0 else {}

    def contention_free_shares(self) -> dict[str, float]:
        """Phase shares without run-queue delay: (phase wall - phase delay) / (step wall - step
        delay).

        Wall time comes from all steps. The distribution of the delay over the phases comes from the
        sampled steps. Without sampled steps the result is the same as the result of `shares`.
        """
        shares = self.shares()
        if not shares or self.sampled_s <= 0:
            return shares
        left = [
            max(0.0, share - delay_s / self.sampled_s)
            for share, delay_s in zip(shares.values(), self.delays_s, strict=True)
        ]
        return self._named(left, sum(left)) if sum(left) > 0 else shares

    @staticmethod
    def _named(values: Sequence[float], total: float) -> dict[str, float]:
        return {name: value / total for name, value in zip(PHASES, values, strict=True)}


def _added(sums: Sequence[float], rows: Iterable[Sequence[float]]) -> list[float]:
    # the ticks of a serving run have no phases
    columns = list(zip(*rows, strict=False)) or [()] * len(sums)
    return [total + sum(column) for total, column in zip(sums, columns, strict=True)]
