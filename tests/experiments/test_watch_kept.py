"""A kept change is watched: a gain that is gone a minute later is withdrawn, and a loss is taken
back."""

from __future__ import annotations

import asyncio
import math
import random

import msgspec
import pytest

from gpuconsole.experiments import watch_kept
from gpuconsole.experiments.certificate import mistakes
from gpuconsole.experiments.statistics import speedup
from gpuconsole.experiments.watch_kept import judged, watch
from gpuconsole.model.certificate import Attempt, Certificate
from gpuconsole.model.experiments import Speedup, Trial
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.run import PHASES, Step
from gpuconsole.report.experiments import certificate_report, verdict
from gpuconsole.report.parts import printed
from gpuconsole.session.run import RunRecord
from gpuconsole.wire.events import RunOpened, Steps

KEPT = Trial(
    "1", "1", {"cudnn_benchmark": True}, "done", Speedup(1.11, 1.08, 1.14), verdict="win", kept=True
)


def steps(mean: float, stall: float = 0.0, count: int = 1400, wait: float = 0.0) -> list[Step]:
    """Steps with a stall in one of a hundred; `wait`: the share of the time in which they wait for
    a core."""
    chance = random.Random(3)
    walls = [
        mean * math.exp(chance.gauss(0.0, 0.03)) + (stall if chance.random() < 0.01 else 0.0)
        for _ in range(count)
    ]
    others = [0.0] * (len(PHASES) - 1)
    return [
        Step(n, 1.0 + 0.05 * n, wall, 32, 0, (wall, *others), (wait * wall, *others))
        for n, wall in enumerate(walls)
    ]


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (steps(0.045), "win"),
        (steps(0.046), "win"),
        (steps(0.05), "undecided"),  # the gain is gone
        (steps(0.045, stall=0.5), "undecided"),
        (steps(0.055), "worse"),
        (steps(0.045, stall=1.5), "worse"),
        (steps(0.045) + steps(0.05), "undecided"),  # it gets hot, or its memory is in pieces
        (steps(0.06, wait=0.25), "win"),  # other programs take the cores since then
        ([], "win"),
    ],
)
def test_a_gain_that_is_gone_is_withdrawn(after: list[Step], expected: str) -> None:
    seen = judged(KEPT, steps(0.05), after)
    assert seen.verdict == expected
    assert (seen is KEPT) == (expected == "win")
    if expected == "undecided":
        assert verdict(seen).startswith("withdrawn: kept, ")


@pytest.mark.parametrize("gain", [1.05, 1.1, 1.3])
def test_a_small_gain_that_is_gone_is_seen_too(gain: float) -> None:
    """The rates are of one process: no noise between equal processes belongs here."""
    interval = Speedup(gain, gain - 0.02, gain + 0.02)
    trial = Trial("1", "1", {"optim": "adamw_fused"}, "done", interval, verdict="win", kept=True)
    assert judged(trial, steps(0.05), steps(0.05 / gain)).verdict == "win"
    assert judged(trial, steps(0.05), steps(0.05 * 1.01)).verdict == "undecided"
    assert judged(trial, steps(0.05), steps(0.05 / 0.95)).verdict == "worse"


@pytest.mark.parametrize(
    ("left", "ends_at", "judged_after"), [(20, 99, 6), (3, 4, 4), (1, 1, 1), (0, 1, None)]
)
def test_the_run_is_watched_for_a_minute_of_its_steps_or_until_its_end(
    left: int, ends_at: int, judged_after: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = RunRecord(RunOpened(0.0, "2", "s", "training.gpt", {}, "gpu:0"), "")
    made, sleeps = steps(0.055), 0

    async def sleep(seconds: float) -> None:
        nonlocal sleeps
        sleeps += 1
        if sleeps <= left:
            batch = made[200 * sleeps : 200 * sleeps + 200]
            record.apply(Steps(float(sleeps), batch, 0.0, 0.0, 0.0, 0.0))
        if sleeps == ends_at:
            record.closed_t = float(sleeps)

    monkeypatch.setattr(watch_kept.asyncio, "sleep", sleep)
    after = asyncio.run(watch(KEPT, steps(0.05), lambda: record))
    assert sleeps == (judged_after or ends_at)
    assert (after is KEPT) is (judged_after is None)


LATER = "0.91x [0.89, 0.93] in the minute after the change was kept"


def certificate() -> Certificate:
    """Two changes, both kept, and the trial of both together."""
    ratios = (0.10, 0.11, 0.09, 0.10, 0.105, 0.095, 0.10, 0.10)

    def won(number: str, run: str, name: str, sign: int = 1) -> Trial:
        pairs = tuple(sign * ratio for ratio in ratios)
        changes: Knobs = {name: True} if name else {"cudnn_benchmark": False, "tf32": False}
        return Trial(
            number,
            run,
            changes,
            "done",
            speedup(list(pairs), 0.0, 0.0),
            log_ratios=pairs,
            verdict="win" if sign > 0 else "worse",
            kept=sign > 0,
        )

    start: Knobs = {"cudnn_benchmark": False, "tf32": False}
    return Certificate(
        scenario="s",
        device="gpu:0",
        start=start,
        end={"cudnn_benchmark": True, "tf32": True},
        attempts=[
            Attempt("r", start, won("1", "1", "tf32")),
            Attempt("r", {**start, "tf32": True}, won("2", "2", "cudnn_benchmark")),
        ],
        proof=won("3", "3", "", -1),
    )


def test_a_certificate_says_what_came_after_its_trials() -> None:
    made = certificate()
    assert mistakes(made) == [] and made.gain is not None
    trials = [*(attempt.trial for attempt in made.attempts), made.proof]
    assert made.with_later(filter(None, trials)) == made
    gone = msgspec.structs.replace(
        made.attempts[1].trial, verdict="worse", kept=False, taken_back=True, reason=LATER
    )
    after = made.with_later([gone])
    assert after.attempts[1].trial == gone
    assert after.end == {"cudnn_benchmark": False, "tf32": True}
    assert after.proof is None and after.gain == after.attempts[0].trial.speedup
    assert mistakes(after) == []
    assert f"worse: taken back, {LATER}" in printed(certificate_report(after)).replace("\n", " ")
    assert after.with_later([gone]) == after


def test_a_withdrawn_gain_stays_in_force_and_is_no_proof() -> None:
    made = certificate()
    single = msgspec.structs.replace(
        made, attempts=made.attempts[:1], end=made.attempts[1].knobs, proof=None
    )
    doubtful = msgspec.structs.replace(
        single.attempts[0].trial, verdict="undecided", reason=LATER.replace("0.91", "1.00")
    )
    after = single.with_later([doubtful])
    assert after.end == single.end and single.gain is not None and after.gain is None
    assert mistakes(after) == []
    assert "withdrawn: kept, 1.00x" in printed(certificate_report(after)).replace("\n", " ")
