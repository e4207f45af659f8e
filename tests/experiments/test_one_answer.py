"""Is it slower? `compare`, the gate and the check against a kept run give the same ratio, interval
and verdict for the same two sessions."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import NamedTuple

import pytest

from gpuconsole.engine.reader import read_snapshot, write_snapshot
from gpuconsole.experiments.baselines import baselines_folder, keep_run
from gpuconsole.experiments.compare import FREE, compare
from gpuconsole.experiments.gate import judge
from gpuconsole.experiments.rate_watch import BaselineWatch
from gpuconsole.experiments.throughput import MeasuredRun
from gpuconsole.model.finding import Signal
from gpuconsole.model.machine import Device
from gpuconsole.model.run import PHASES, Step
from gpuconsole.model.snapshot import Environment, Snapshot
from gpuconsole.session.state import SessionState
from gpuconsole.session.view import make_snapshot
from gpuconsole.wire.events import (
    AnyEvent,
    Devices,
    EnvironmentKnown,
    Found,
    Hello,
    RunClosed,
    RunOpened,
    Started,
    Steps,
)

ENVIRONMENT = Environment(
    host="here",
    cpu="a CPU",
    cores=8,
    torch="2.13.0",
    driver="580.1",
    devices=[Device("cpu", "a CPU"), Device("gpu:0", "a GPU")],
)
DAY_S = 86_400.0


class Case(NamedTuple):
    """Two sessions of steps of 20 ms with noise: every 200th step takes `pauses` seconds more, and
    the steps `slower` times as long in the second session."""

    device: str
    pauses: tuple[float, float] = (0.0, 0.0)
    slower: float = 1.0
    runq: tuple[float, float] | None = None
    others: tuple[float, float] | None = None
    verdict: str = "undecided"


CASES = {
    "the same again": Case("gpu:0"),
    "slower steps": Case("gpu:0", slower=1.4, verdict="slower"),
    "faster steps": Case("cpu", slower=0.7, verdict="faster"),
    "longer evaluations": Case("gpu:0", pauses=(1.0, 4.0), verdict="slower"),
    "blocks of unequal length": Case("gpu:0", pauses=(2.0, 2.3)),
    "a thread that waits for a core": Case("cpu", slower=1.4, runq=(0.0, 0.25)),
    "a slower job whose thread waits for a core": Case(
        "cpu", slower=2.0, runq=(0.0, 0.2), verdict="slower"
    ),
    "other programs": Case("cpu", slower=1.4, others=(0.1, 0.6)),
}


def events(case: Case, place: int) -> list[AnyEvent]:
    """The events of the session `place`."""
    chance, began = random.Random(place), 1.7e9 + DAY_S * place
    sent: list[AnyEvent] = [
        Hello(0.0, "runtime", 1, "x", began),
        Devices(0.0, ENVIRONMENT.devices),
        EnvironmentKnown(0.0, ENVIRONMENT),
        RunOpened(0.0, "1", "train-gpt", "training.gpt", {"batch_size": 32}, case.device),
        Started(0.0, {"batch_size": 32}, {}),
    ]
    t, steps = 0.0, list[Step]()
    for index in range(1500):
        forward = 0.02 * (case.slower if place else 1.0) * chance.gauss(1, 0.02)
        spent = {
            "forward": forward,
            "eval": case.pauses[place] * chance.uniform(0.5, 1.5) if index % 200 == 199 else 0.0,
        }
        delays = {"forward": case.runq[place] * forward} if case.runq else {}
        t += sum(spent.values())
        phases, runq = (tuple(parts.get(name, 0.0) for name in PHASES) for parts in (spent, delays))
        steps.append(
            Step(index, t, sum(spent.values()), 32, 32, phases, runq if case.runq else None)
        )
        if t - (steps[0].t - steps[0].wall_s) >= 0.5:
            sent.append(Steps(t, steps, 0.0, 0.0, 0.0, 1e9))
            steps = []
    if case.others:
        sent.append(
            Found(
                t, "1", [], {"host.others_cpu_ratio": Signal(case.others[place], "ratio", "/proc")}
            )
        )
    return [*sent, RunClosed(t, "1", "finished")]


def session(case: Case, place: int) -> Snapshot:
    state = SessionState()
    for event in events(case, place):
        state.apply(event)
    return make_snapshot(state, ENVIRONMENT, state.now)


class Answer(NamedTuple):
    estimate: float
    low: float
    high: float
    free: bool
    verdict: str


def of_compare(before: MeasuredRun, after: MeasuredRun) -> Answer:
    rows = {row.metric: row for row in compare(before, after).metrics}
    free = f"workload.tokens_per_s {FREE}" in rows
    row = rows[f"workload.tokens_per_s {FREE}" if free else "workload.tokens_per_s"]
    assert row.change is not None
    words = {"worse": "slower", "better": "faster"}
    return Answer(
        row.change.estimate,
        row.change.low,
        row.change.high,
        free,
        words.get(row.verdict, row.verdict),
    )


def of_gate(before: MeasuredRun, after: MeasuredRun) -> Answer:
    """The gate knows a limit on one side only: a faster run is one whose base is slower."""
    gate, turned = judge([before], [after], 0.98), judge([after], [before], 0.98)
    verdict = (
        "slower"
        if gate.verdict == "regression"
        else "faster"
        if turned.verdict == "regression"
        else "undecided"
    )
    ratio = gate.ratio
    return Answer(
        ratio.estimate - 1, ratio.low - 1, ratio.high - 1, gate.clock == "contention_free", verdict
    )


def of_baseline(case: Case, kept: Snapshot) -> Answer:
    """A session in which the run is compared with the kept session."""
    keep_run(baselines_folder(), MeasuredRun("run 1", kept.runs[0], kept))
    state = SessionState()
    watch = BaselineWatch(
        state, state.apply, "chosen", lambda: make_snapshot(state, ENVIRONMENT, state.now)
    )

    async def follow() -> None:
        for event in events(case, 1):
            state.apply(event)
            if isinstance(event, RunOpened):
                watch.begin(state.records[0])
                await watch.settled()
        watch.ended(state.records[0])

    asyncio.run(follow())
    found = state.records[0].run.baseline
    assert found is not None and found.change is not None and found.verdict is not None
    return Answer(
        found.change.estimate,
        found.change.low,
        found.change.high,
        found.clock == "contention_free",
        found.verdict,
    )


@pytest.mark.parametrize("name", CASES)
def test_compare_gate_and_baselines_give_the_same_answer(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    case = CASES[name]
    files = [write_snapshot(session(case, place), tmp_path / f"{place}.json") for place in (0, 1)]
    before, after = (
        MeasuredRun(path.name, read_snapshot(path).runs[0], read_snapshot(path)) for path in files
    )
    answers = (
        of_compare(before, after),
        of_gate(before, after),
        of_baseline(case, read_snapshot(files[0])),
    )
    assert answers[0] == answers[1] == answers[2]
    assert answers[0].verdict == case.verdict and answers[0].free == (case.runq is not None)
