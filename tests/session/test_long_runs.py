"""A run with more steps than are kept: its figures are those of all its steady steps, in the
summary, at the gate and against a baseline."""

from __future__ import annotations

import math
import random
from typing import NamedTuple

import pytest

from gpuconsole.experiments.baselines import compare_with
from gpuconsole.experiments.gate import judge
from gpuconsole.experiments.throughput import MeasuredRun
from gpuconsole.model.run import PHASES, Step
from gpuconsole.model.serving import WATCHED
from gpuconsole.model.snapshot import Environment
from gpuconsole.session import run as session_run
from gpuconsole.session.state import SessionState
from gpuconsole.session.view import make_snapshot
from gpuconsole.wire.events import RankJoined, RunClosed, RunOpened, ServerState, Steps

STEP_S, BATCH, KEPT, PRICE = 0.05, 32, 300, 2.0
FORWARD, EVAL = PHASES.index("forward"), PHASES.index("eval")


class Done(NamedTuple):
    """A run, and its samples per second by the clock."""

    side: MeasuredRun
    per_s: float


@pytest.fixture(autouse=True)
def few_steps_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_run, "MAX_STEPS", KEPT)
    monkeypatch.setattr(session_run, "KEPT_STEPS", KEPT)


def run(number: int, steps: int, eval_every: int = 0, slow_until: int = 0) -> Done:
    """A run of `steps`; its first `slow_until` steps take 1.25 times as long."""
    state, chance, begun = SessionState(), random.Random(number), 1000.0
    state.wall0 = 1.7e9 + 600.0 * number
    state.environment = Environment(host="h", price_per_hour=PRICE)
    state.apply(RunOpened(begun, "1", "train.py", "job", {}, "gpu:0"))
    state.apply(RankJoined(begun, 0, "here", 10, leads=True))
    t, last, buffer = begun, begun, list[Step]()
    for index in range(steps):
        phases = [0.0] * len(PHASES)
        phases[FORWARD] = STEP_S * math.exp(chance.gauss(0, 0.02))
        phases[FORWARD] *= 1.25 if index < slow_until else 1
        phases[EVAL] = 8.0 if eval_every and index % eval_every == eval_every - 1 else 0.0
        t += sum(phases)
        loss = 5.0 - 4.0 * index / steps
        buffer.append(Step(index + 1, t, sum(phases), BATCH, 3200, tuple(phases), loss=loss))
        if t - last >= 0.5 or index == steps - 1:
            state.apply(Steps(t, buffer, 0.0, 0.0, 0.0, 1e6))
            buffer, last = [], t
    state.apply(RunClosed(t, "1", "finished"))
    session = make_snapshot(state, state.environment, t)
    return Done(MeasuredRun(f"run {number}", session.runs[0], session), BATCH * steps / (t - begun))


def test_the_figures_are_those_of_all_steady_steps() -> None:
    side, per_s = run(1, 1990, eval_every=500)
    summary, (process,) = side.run.summary, side.run.ranks
    assert summary.samples_per_s is not None and summary.step_time_s is not None
    assert summary.samples_per_s.mean == pytest.approx(per_s, rel=0.005)
    assert summary.step_time_s.mean == pytest.approx(BATCH / per_s, rel=0.005)
    assert summary.phases_ratio["eval"] == pytest.approx(24 / (1990 * STEP_S + 24), rel=0.01)
    assert summary.cost_per_million_tokens == pytest.approx(
        PRICE / (per_s * 100 * 3600) * 1e6, rel=0.005
    )
    assert summary.loss_first == pytest.approx(5.0, abs=0.01)
    assert summary.loss_last == pytest.approx(1.0, abs=0.03)
    assert summary.steps == process.steps > 1900
    assert process.step_time_s is not None
    assert process.step_time_s.mean == pytest.approx(summary.step_time_s.mean)
    assert process.phases_ratio == pytest.approx(summary.phases_ratio)


def test_the_gate_and_a_baseline_judge_all_steps() -> None:
    """All but the last steps of the new runs are slow: the steps that are kept are equal."""
    base, new = (
        [run(number, 2000, slow_until=slow) for number in numbers]
        for numbers, slow in (((0, 3, 4), 0), ((1, 2, 5), 1600))
    )
    ratio = sum(done.per_s for done in new) / sum(done.per_s for done in base)
    sides = [[done.side for done in side] for side in (base, new)]
    gate = judge(*sides, fail_below=0.97)
    assert gate.verdict == "regression" and gate.ratio.estimate == pytest.approx(ratio, rel=0.01)
    compared = compare_with(new[0].side, sides[0])
    assert compared.verdict == "slower" and compared.change is not None
    assert compared.change.estimate == pytest.approx(ratio - 1, abs=0.01)


def test_a_run_that_is_never_steady_has_the_rate_of_all_its_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_run, "steady_from", lambda steps: None)
    side, per_s = run(1, 2000, slow_until=1600)
    assert side.run.steady_from_s is None and side.run.summary.samples_per_s is not None
    assert side.run.summary.samples_per_s.mean == pytest.approx(per_s)


@pytest.mark.parametrize("workload", ["inference.chat", WATCHED])
def test_the_rates_of_a_server_are_those_of_all_steady_ticks(workload: str) -> None:
    """The first ticks have twice the work of the last ones, which alone are kept."""
    state, begun, ticks = SessionState(), 1000.0, 5 * KEPT
    state.apply(RunOpened(begun, "1", "serve", workload, {}, "gpu:0"))
    for index in range(ticks):
        t = begun + 0.5 * (index + 1)
        work = 2 if index < 4 * KEPT else 1
        tick = Step(index + 1, t, 0.5, work, 100 * work, (), loss=None)
        state.apply(Steps(t, [tick], 0.0, 0.0, 0.0, 0.0))
        if workload == WATCHED:
            totals = {"generation_tokens": 100.0 * index, "requests": 1.0 * index}
            state.apply(ServerState(t, {}, totals))
    state.apply(RunClosed(t, "1", "finished"))
    (done,) = make_snapshot(state, state.environment, t).runs
    assert done.summary.requests_per_s is not None and done.summary.tokens_per_s is not None
    right = (4 * 2 + 1) / (5 * 0.5)
    assert done.summary.requests_per_s.mean == pytest.approx(right, rel=0.01)
    assert done.summary.tokens_per_s.mean == pytest.approx(100 * right, rel=0.01)
    assert done.summary.steps == pytest.approx(ticks, rel=0.05)
