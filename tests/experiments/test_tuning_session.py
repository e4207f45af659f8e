"""A tuning session beside a user: it waits while another trial runs, refuses other changes while it
runs, and ends before its run."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import pytest

from gpuconsole.diagnosis import engine
from gpuconsole.experiments import tune as tuner
from gpuconsole.experiments import tune as waiting
from gpuconsole.experiments.tune import TuningSession
from gpuconsole.model.experiments import Speedup, Trial
from gpuconsole.model.finding import Finding, Interval, Signal, Suggestion
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.run import Run
from gpuconsole.model.snapshot import Environment
from gpuconsole.session.api import Busy, SessionError, View
from gpuconsole.wire.events import AnyEvent, TuningUpdate
from tests.tui.fake_session import view
from tests.waiting import until

SLOW = Finding(
    "host.logging_io",
    "fires",
    "Training waits for logging",
    0.4,
    "high",
    suggestions=(
        Suggestion({"log_every": 20}, Interval(1.4, 1.6), "rarer", "if step % 20 == 0: log()"),
    ),
)


JUDGED: dict[str, Any] = {
    "steady_from_s": 0.5,
    "duration_s": 60.0,
    "signals": {"step_s": Signal(0.01, "s", "")},
}


class Engine:
    """Another trial is running at the first call; after that every change wins."""

    job = None

    def __init__(self, findings: list[Finding]) -> None:
        self.run = Run(
            "1",
            "chatty-logging",
            "training.gpt",
            {"log_every": 1},
            "cpu",
            "running",
            findings=findings,
            **JUDGED,
        )
        self.calls = 0

    def view(self) -> View:
        return view(runs=(self.run,))

    def environment(self) -> Environment:
        return Environment()

    def probe_only_for(self, knobs: Collection[str]) -> None:
        pass

    async def try_change(self, changes: Knobs, predicted: Interval | None = None) -> Trial:
        self.calls += 1
        if self.calls == 1:
            raise Busy("a trial is under way")
        self.run = Run(
            "2",
            "chatty-logging",
            "training.gpt",
            {**self.run.knobs, **changes},
            "cpu",
            "running",
            findings=[FINE],
            **JUDGED,
        )
        return Trial(
            "1",
            "1",
            changes,
            "done",
            Speedup(1.5, 1.4, 1.6),
            predicted=predicted,
            verdict="win",
            kept=True,
        )


FINE = Finding("host.logging_io", "clear", "Logging takes little time")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "READ_EVERY_S", 0.01)
    monkeypatch.setattr(engine, "SETTLED_S", 0.02)
    monkeypatch.setattr(tuner, "BUSY_S", 0.01)


def test_a_busy_engine_is_waited_for_and_the_candidate_is_tried_again() -> None:
    events: list[AnyEvent] = []
    certificate = asyncio.run(
        TuningSession(Engine([SLOW]), events.append).run("chatty-logging", {"batch_size": 2}, 60.0)
    )
    assert [one.trial.kept for one in certificate.attempts] == [True]
    assert certificate.stopped == "no further change is predicted to gain 5 %"
    assert certificate.flags == "--set batch_size=2 --set log_every=20"
    last = events[-1]
    assert isinstance(last, TuningUpdate) and not last.tuning.under_way


def test_a_session_ends_before_its_run_and_refuses_other_changes_until_then() -> None:
    async def scenario() -> str:
        # no findings: the session waits for ever
        session = TuningSession(Engine([]), lambda event: None)
        work = asyncio.create_task(session.run("chatty-logging", {}, 60.0))
        await until(lambda: session._task is not None)
        with pytest.raises(SessionError, match="a tuning session is running"):
            session.check_free()
        await session.finish()
        session.check_free()
        return (await work).stopped

    assert asyncio.run(scenario()) == "ended by hand"
