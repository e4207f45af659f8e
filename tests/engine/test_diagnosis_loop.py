"""Which probes are made of a steady run, and in which order."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from gpuconsole.diagnosis.probes import ALWAYS, IN_JOB, NO_CONSENT, PASSIVE
from gpuconsole.diagnosis.rule import Case
from gpuconsole.engine import diagnosis_loop
from gpuconsole.engine.catalog import find_scenario
from gpuconsole.engine.diagnosis_loop import DiagnosisLoop
from gpuconsole.engine.run_control import RunLock
from gpuconsole.model.finding import Finding
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.run import PHASES, Step
from gpuconsole.session.state import SessionState
from gpuconsole.session.view import run_now
from gpuconsole.wire.events import AnyEvent, Found, Note, ProbeDone, RunOpened, Steps
from tests.waiting import until

KNOBS: Knobs = find_scenario("train-gpt").knobs_for("cpu")


def steady(workload: str = "training.gpt") -> SessionState:
    state = SessionState()
    state.apply(RunOpened(0.0, "1", "train-gpt", workload, KNOBS, "cpu"))
    shares = tuple(0.05 if phase in ("forward", "backward") else 0.0 for phase in PHASES)
    for n in range(1, 101):
        state.apply(Steps(n / 10, [Step(n, n / 10, 0.1, 8, 1024, shares)], 0.0, 0.0, 0.0, 1e9))
    assert state.record is not None and state.record.steady_t is not None
    return state


class FakeWorker:
    """Notes which probes were run."""

    def __init__(self) -> None:
        self.probed: list[str] = []

    async def probe(self, name: str) -> None:
        self.probed.append(name)


def test_probes_in_a_job_wait_for_consent_and_run_after_it() -> None:
    state, worker = steady("job"), FakeWorker()
    loop = DiagnosisLoop(state, state.apply, lambda: None, RunLock())
    record = state.record
    assert record is not None

    async def evaluate_often() -> None:
        for _ in range(20):
            await loop.evaluate(record, cast("Any", worker))

    asyncio.run(evaluate_often())
    waiting = {
        key.removeprefix("probe.")
        for key, why in record.run.unavailable.items()
        if why == NO_CONSENT
    }
    assert set(worker.probed) <= PASSIVE and waiting & IN_JOB.keys()
    loop.allow_probes()
    assert NO_CONSENT not in record.run.unavailable.values()
    asyncio.run(evaluate_often())
    assert waiting | set(ALWAYS) <= set(worker.probed)
    state.apply(ProbeDone(11.0, 1, min(waiting)))
    assert f"probe.{min(waiting)}" not in record.run.unavailable


def test_the_seconds_of_all_probes_are_a_figure_of_the_run() -> None:
    state = steady("job")
    record = state.record
    assert record is not None and run_now(state, record).summary.probes_s is None
    for request, cost_s in ((1, 0.5), (2, 1.25), (3, 0.0)):
        state.apply(ProbeDone(11.0, request, "launch", error="no GPU", cost_s=cost_s))
    summary = run_now(state, record).summary
    assert summary.probes_s == 1.75 and summary.overhead_s_per_step == 0.0


@pytest.mark.parametrize("tunable", [(), ("num_threads", "precision")])
def test_a_tuner_waits_only_for_probes_that_can_change_its_knobs(tunable: tuple[str, ...]) -> None:
    state, worker = steady(), FakeWorker()
    loop = DiagnosisLoop(state, lambda event: None, lambda: None, RunLock())
    loop.tunable = tunable

    async def evaluate_often() -> None:
        for _ in range(20):
            await loop.evaluate(cast("Any", state.record), cast("Any", worker))

    asyncio.run(evaluate_often())
    if tunable:
        assert set(worker.probed) == {"swap_threads", "swap_precision"}
    else:
        assert set(ALWAYS) < set(worker.probed)


def test_nobody_waits_for_a_probe_that_only_adds_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enter may be pressed as soon as the finding is there."""
    state, lock, asked = steady("job"), RunLock(), asyncio.Event()
    slow = Finding(
        "input.slow_storage", "fires", "Slow storage", 0.6, missing=("loading.first_ratio",)
    )
    monkeypatch.setattr(diagnosis_loop, "evaluate", lambda case: [slow])

    class Slow(FakeWorker):
        async def probe(self, name: str) -> None:
            await super().probe(name)
            asked.set()
            await asyncio.Event().wait()

    worker = Slow()
    loop = DiagnosisLoop(state, state.apply, lambda: None, lock)

    async def play() -> None:
        for _ in range(5):
            await asyncio.wait_for(loop.evaluate(cast("Any", state.record), cast("Any", worker)), 5)
        await asyncio.wait_for(asked.wait(), 5)
        assert not lock.locked() and not lock.activity

    asyncio.run(play())
    assert worker.probed == ["loading_parts"]


def test_an_exception_is_reported_once_and_the_next_evaluations_find_what_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state, events, calls = steady(), list[AnyEvent](), list[int]()
    evaluate = diagnosis_loop.evaluate

    def fails_twice(case: Case) -> list[Finding]:
        calls.append(len(calls))
        if len(calls) < 3:
            raise ZeroDivisionError("float division by zero")
        return evaluate(case)

    monkeypatch.setattr(diagnosis_loop, "evaluate", fails_twice)
    monkeypatch.setattr(diagnosis_loop, "EVERY_S", 0.01)

    async def play() -> None:
        loop = asyncio.create_task(
            DiagnosisLoop(state, events.append, lambda: cast("Any", FakeWorker()), RunLock()).run()
        )
        await until(lambda: any(isinstance(event, Found) for event in events), 5, "a diagnosis")
        assert not loop.done()
        loop.cancel()

    asyncio.run(play())
    (note,) = [event.text for event in events if isinstance(event, Note)]
    assert "ZeroDivisionError('float division by zero')" in note
    assert note.startswith("diagnosis failed in ")
