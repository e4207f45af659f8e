"""A kept change is watched: a gain that stalls take away later is withdrawn."""

from __future__ import annotations

import asyncio
import random

import pytest

from gpuconsole.experiments import rate_watch
from gpuconsole.experiments.rate_watch import judged, rate_of, watch
from gpuconsole.model.experiments import Speedup, Trial
from gpuconsole.model.run import PHASES, Run, Step
from gpuconsole.report.experiments import verdict
from gpuconsole.session.run import RunRecord
from gpuconsole.wire.events import RunOpened, Steps

RUN = Run("1", "s", "training.gpt", {}, "gpu:0")
KEPT = Trial(
    "1", "1", {"cudnn_benchmark": True}, "done", Speedup(1.11, 1.08, 1.14), verdict="win", kept=True
)


def steps(mean: float, stall: float = 0.0, count: int = 1400) -> list[Step]:
    chance = random.Random(3)
    walls = [mean + (stall if chance.random() < 0.01 else 0.0) for _ in range(count)]
    return [
        Step(n, 1.0 + 0.05 * n, wall, 32, 0, (wall, *[0.0] * (len(PHASES) - 1)))
        for n, wall in enumerate(walls)
    ]


def test_a_gain_that_stalls_take_away_is_withdrawn() -> None:
    before = rate_of(RUN, steps(0.05))
    lost = judged(KEPT, before, rate_of(RUN, steps(0.045, stall=1.5)))
    assert lost.verdict == "undecided" and not lost.worth_keeping
    assert verdict(lost).startswith("withdrawn, 0.8") and verdict(lost).endswith(
        "in the minute after the change was kept: kept"
    )


def test_a_gain_that_stays_is_left_alone() -> None:
    before = rate_of(RUN, steps(0.05))
    for mean in (0.045, 0.047):
        assert judged(KEPT, before, rate_of(RUN, steps(mean))) is KEPT
    assert judged(KEPT, before, None) is KEPT


@pytest.mark.parametrize("ends", [False, True])
def test_the_run_is_watched_for_a_minute_of_its_steps(
    ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = RunRecord(RunOpened(0.0, "2", "s", "training.gpt", {}, "gpu:0"), "")
    made, sleeps = steps(0.045, stall=1.5), 0

    async def sleep(seconds: float) -> None:
        nonlocal sleeps
        sleeps += 1
        record.apply(
            Steps(float(sleeps), made[200 * sleeps : 200 * sleeps + 200], 0.0, 0.0, 0.0, 0.0)
        )

    monkeypatch.setattr(rate_watch.asyncio, "sleep", sleep)
    current = iter([record, *[record] * 3, *[None if ends else record] * 9])
    after = asyncio.run(watch(KEPT, rate_of(RUN, steps(0.05)), lambda: next(current)))
    assert (after is KEPT) is ends and sleeps == (3 if ends else 5)
