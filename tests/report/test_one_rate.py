"""A session with long pauses inside its steps: every output gives the rate that a clock gives."""

from __future__ import annotations

import datetime
from collections.abc import Callable

import pytest

from gpuconsole.experiments.baselines import compare_with
from gpuconsole.experiments.compare import compare
from gpuconsole.experiments.gate import judge
from gpuconsole.experiments.rate_watch import measured
from gpuconsole.experiments.throughput import MeasuredRun, waiting_of
from gpuconsole.mcp.readings import status
from gpuconsole.model.machine import Device
from gpuconsole.model.run import PHASES, Run, Step
from gpuconsole.model.snapshot import Environment, Snapshot
from gpuconsole.report.run.figures import throughput
from gpuconsole.report.trackers.readings import summary_point
from gpuconsole.session.state import SessionState
from gpuconsole.session.view import make_snapshot, make_view
from gpuconsole.wire.events import (
    AnyEvent,
    Devices,
    EnvironmentKnown,
    Hello,
    RunClosed,
    RunOpened,
    Started,
    Steps,
)

ENVIRONMENT = Environment(
    host="here", cpu="a CPU", cores=8, price_per_hour=3.6, devices=[Device("cpu", "a CPU")]
)
SAMPLES = TOKENS = 32
STEP_S, EVERY = 0.01, 200


def session(pause_s: float, began: float = 1e9, count: int = 6) -> tuple[SessionState, float]:
    """Steps of 10 ms, with an evaluation of `pause_s` in every EVERY-th; and the tokens per second
    by the clock, over the steady steps."""
    state = SessionState()
    events: list[AnyEvent] = [
        Hello(0.0, "runtime", 1, "x", began),
        Devices(0.0, ENVIRONMENT.devices),
        EnvironmentKnown(0.0, ENVIRONMENT),
        RunOpened(0.0, "1", "train-gpt", "training.gpt", {"batch_size": 32}, "cpu"),
        Started(0.0, {"batch_size": 32}, {}),
    ]
    t, sent = 0.0, 0.0
    steps: list[Step] = []
    for index in range(EVERY * count + EVERY // 2):
        pause = pause_s if index % EVERY == EVERY - 1 else 0.0
        t += STEP_S + pause
        spent = {"forward": STEP_S, "eval": pause}
        steps.append(
            Step(
                index,
                t,
                STEP_S + pause,
                SAMPLES,
                TOKENS,
                tuple(spent.get(name, 0.0) for name in PHASES),
            )
        )
        if t - sent >= 1.0:
            events.append(Steps(t, steps, 0.0, 0.0, 0.0, 1e9))
            steps, sent = [], t
    events += [Steps(t, steps, 0.0, 0.0, 0.0, 1e9), RunClosed(t, "1", "finished")]
    for event in events:
        state.apply(event)
    record = state.records[0]
    assert record.steady_t is not None
    counted = [step for step in record.steps if step.t >= record.steady_t]
    return state, TOKENS * len(counted) / (t - record.steady_t + STEP_S)


def snapshot(state: SessionState) -> Snapshot:
    return make_snapshot(state, ENVIRONMENT, state.now)


def of_run(read: Callable[[Run], float | None]) -> Callable[[SessionState], float | None]:
    return lambda state: read(snapshot(state).runs[0])


def of_points(state: SessionState) -> float:
    """The mean of the stored points, as `compare` takes it."""
    made = snapshot(state)
    run = MeasuredRun("a", made.runs[0], made)
    rows = compare(run, run).metrics
    return next(row.before for row in rows if row.metric == "workload.tokens_per_s")


def of_gate(state: SessionState) -> float | None:
    other, _ = session(0.0, 1e9 + 3600)
    sides = [
        MeasuredRun(name, snapshot(side).runs[0], snapshot(side))
        for name, side in (("base", state), ("new", other))
    ]
    return next(
        figure.base
        for figure in judge(sides[:1], sides[1:], 0.9).figures
        if figure.name == "throughput"
    )


def of_baseline(state: SessionState) -> float | None:
    run = measured(state, state.records[0])
    return compare_with(run, [run]).rate


def of_cost(state: SessionState) -> float | None:
    cost = snapshot(state).runs[0].summary.cost_per_million_tokens
    return None if cost is None else 1e6 * 3.6 / 3600 / cost


def of_tracker(state: SessionState) -> float:
    return next(
        reading.value
        for reading in summary_point(snapshot(state), 0.0, 0.0).readings
        if reading.metric == "summary.tokens_per_s"
    )


def of_agent(state: SessionState) -> float | None:
    view = make_view(
        state,
        now=state.now,
        environment=ENVIRONMENT,
        device="cpu",
        probing="",
        recording=False,
        recording_to="",
        ended=True,
    )
    shown = status(view, None, None).throughput
    return shown.mean if shown is not None else None


OUTPUTS: dict[str, Callable[[SessionState], float | None]] = {
    "summary": of_run(
        lambda run: run.summary.tokens_per_s.mean if run.summary.tokens_per_s else None
    ),
    "headline": of_run(lambda run: run.throughput[0].mean if run.throughput[0] else None),
    "report": of_run(
        lambda run: float(
            throughput(run).partition(" ± ")[0].replace("\u202f", "").replace(" ", "")
        )
    ),
    "stored points": of_points,
    "gate": of_gate,
    "baseline": of_baseline,
    "cost": of_cost,
    "trackers": of_tracker,
    "coding agent": of_agent,
}


@pytest.mark.parametrize("pause_s", [0.0, 1.0, 4.0])
@pytest.mark.parametrize("output", OUTPUTS)
def test_every_output_agrees_with_the_clock(output: str, pause_s: float) -> None:
    state, by_clock = session(pause_s)
    shown = OUTPUTS[output](state)
    assert shown is not None
    # the first point may lie across the begin of the steady part
    limit = 0.1 if output == "stored points" and pause_s else 0.005
    assert shown == pytest.approx(by_clock, rel=limit)


def gated(before_s: float, after_s: float) -> str:
    """Four runs of each side in turn."""
    sides: list[list[MeasuredRun]] = [[], []]
    for place in range(8):
        arm = (0, 1, 1, 0)[place % 4]
        state, _ = session((before_s, after_s)[arm] * (1 + 0.002 * (place % 3)), 1e9 + 200 * place)
        made = snapshot(state)
        sides[arm].append(MeasuredRun(str(place), made.runs[0], made))
    gate = judge(*sides, 0.97)
    assert gate.ratio.in_turn
    assert datetime.datetime.fromisoformat(sides[0][0].run.started)
    return gate.verdict


def test_an_evaluation_that_takes_twice_as_long_is_a_regression() -> None:
    assert gated(1.0, 2.0) == "regression"
    assert gated(1.0, 1.0) == "no regression"


def test_the_load_of_a_baseline_is_the_mean_of_the_whole_run() -> None:
    """Half of the run waits half of the time. The stored points of the first half stand for several
    samples each."""
    state, _ = session(1.0, count=100)
    record = state.records[0]
    steps = record.steady_steps()
    begun, end = steps[0].t, steps[-1].t
    samples = [begun + n / 4 for n in range(int(4 * (end - begun)) + 1)]
    for t in samples:
        state.add_point(
            "host.run_queue_delay_ratio", "cpu", t, 0.5 if t < begun + (end - begun) / 2 else 0.0
        )
    assert waiting_of(measured(state, record)) == pytest.approx(0.25, abs=0.01)
