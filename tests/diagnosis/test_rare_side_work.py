"""Side work that is rare and large: its share is that of all steady steps, the same in each look,
with or without a period."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpuconsole.diagnosis.engine import evaluate
from gpuconsole.diagnosis.rule import Case
from gpuconsole.diagnosis.signals.run import run_signals
from gpuconsole.engine.diagnosis_loop import WINDOW_S
from gpuconsole.model.finding import Finding, Signal
from gpuconsole.model.machine import Device
from gpuconsole.model.run import PHASES, Step, Summary
from gpuconsole.session.run import RunRecord
from gpuconsole.session.side_work import SideWork
from gpuconsole.session.state import SessionState
from gpuconsole.wire.events import Devices, RunOpened, Started, Steps

STEP_S, EVERY, EVENT_S = 0.1, 300, 10.0
RULES = {
    "checkpoint": "host.checkpoint_stall",
    "eval": "host.eval_stall",
    "logging": "host.logging_io",
}


def step(index: int, t: float, **phases: float) -> Step:
    parts = {"forward": STEP_S, **phases}
    return Step(
        index, t, sum(parts.values()), 16, 0, tuple(parts.get(name, 0.0) for name in PHASES)
    )


def looks(phase: str, seconds: float) -> Iterator[tuple[int, float, RunRecord]]:
    """A job with an event of EVENT_S in each step number EVERY. Yields the number of events, the
    time and the record about once a second."""
    state = SessionState()
    state.apply(Devices(0.0, [Device("cpu", "cpu")]))
    state.apply(RunOpened(0.0, "1", "train.py", "job", {}, "cpu"))
    state.apply(Started(0.0, {"batch_size": 16}, {"threads": 1.0}, {}))
    record = state.record
    assert record is not None
    t, last, events = 0.0, 0.0, 0
    steps: list[Step] = []
    for index in range(1, 100_000):
        rare = {phase: EVENT_S} if index % EVERY == 0 else {}
        events += bool(rare)
        t += STEP_S + sum(rare.values())
        steps.append(step(index, t, **rare))
        if t - last < 1.0:
            continue
        last = t
        state.apply(Steps(t, steps, 0.0, 0.0, 0.0, 1e6, 0, 0, {"work.steps": float(index)}))
        steps = []
        yield events, t, record
        if t > seconds:
            return


def found(
    record: RunRecord, phase: str, window_s: float = WINDOW_S
) -> tuple[Finding, dict[str, Signal]]:
    signals = run_signals(record, Summary(), 4, None, window_s)
    return next(
        one for one in evaluate(Case.of(record.run, signals)) if one.rule == RULES[phase]
    ), signals


@pytest.mark.parametrize("phase", RULES)
def test_rare_side_work_fires_with_the_same_share_in_each_look(phase: str) -> None:
    shares, summaries = set(), set()
    for events, t, record in looks(phase, 240):
        if events < 1 or int(t) % 4:
            continue
        finding, signals = found(record, phase)
        assert "failed" not in finding.summary
        if events > 1:
            assert finding.state == "fires", f"{finding.summary} at {t:.0f} s"
            assert finding.suggestions
            name = "save" if phase == "checkpoint" else "log" if phase == "logging" else "eval"
            assert signals[f"job.{name}_every"].value == EVERY
            shares.add(round(signals[f"{phase}_ratio"].value, 3))
            summaries.add(finding.summary)
    assert shares == {0.25}
    assert len(summaries) == 1


@pytest.mark.parametrize("phase", ["checkpoint", "eval"])
def test_after_one_event_no_share_is_claimed(phase: str) -> None:
    """One evaluation in 60 steps, "once every n/a steps": its share falls as the job goes on."""
    finding = next(
        found(record, phase)[0] for events, t, record in looks(phase, 60) if events == 1 and t > 45
    )
    assert finding.state == "cant_tell"


def test_the_predicted_gain_is_that_of_the_share_where_the_window_has_no_event() -> None:
    finding, signals = next(
        found(record, "checkpoint", 20.0)
        for events, t, record in looks("checkpoint", 120)
        if events == 2 and t > 105
    )
    assert signals["recent.checkpoint_ratio"].value == 0.0
    assert signals["step_with_side_work_s"].value == pytest.approx(STEP_S + EVENT_S / EVERY)
    predicted = finding.suggestions[0].predicted_speedup
    assert predicted is not None and predicted.low < 1 / (1 - 0.25 * 0.95) < predicted.high
    assert predicted.low > 1.15


def test_side_work_that_has_ended_takes_a_smaller_and_smaller_share() -> None:
    side_work = SideWork()
    shares = []
    for index in range(1, 1201):
        rare = {"checkpoint": 5.0} if index in (100, 200, 300) else {}
        side_work.add([step(index, index * STEP_S, **rare)])
        shares.append(side_work.ratios(False)["checkpoint"])
    assert shares[299] == pytest.approx(shares[398]) == pytest.approx(5 / 15)
    assert shares[398] > shares[599] > shares[1199]
    assert shares[1199] == pytest.approx(10 / (30 + 0.1 * 900 - 15), rel=0.01)


def test_run_queue_delay_is_taken_off_the_share() -> None:
    side_work = SideWork()
    runq = tuple(STEP_S / 2 if name == "forward" else 0.0 for name in PHASES)
    for index in range(100):
        parts = tuple({"forward": STEP_S, "logging": STEP_S}.get(name, 0.0) for name in PHASES)
        side_work.add([Step(index, index * 0.2, 0.2, 16, 0, parts, runq)])
    assert side_work.ratios(False)["logging"] == pytest.approx(1 / 2)
    assert side_work.ratios(True)["logging"] == pytest.approx(2 / 3)


def test_a_process_that_starts_again_keeps_the_distance_between_events() -> None:
    side_work = SideWork()
    for first in (5000, 0):
        side_work.add(
            [
                step(first + index, index * STEP_S, eval=1.0 if index % 50 == 49 else 0.0)
                for index in range(100)
            ]
        )
    assert side_work.every() == {"eval": 50}
    again = SideWork()
    again.add([step(5000, 0.0, eval=1.0), step(10, 1.0, eval=1.0)])
    assert again.every() == {}


def test_two_events_soon_after_each_other_are_no_period() -> None:
    """An evaluation on two sets, after 100 s: its share of the time was 99.5 %."""
    side_work = SideWork()
    side_work.add(
        [step(index, index * STEP_S, eval=10.0 if index > 997 else 0.0) for index in range(1, 1000)]
    )
    assert side_work.ratios(False)["eval"] == pytest.approx(1.5 * 20 / 120, rel=0.01)
    side_work.add(
        [
            step(index, index * STEP_S, eval=10.0 if index % 1000 > 997 else 0.0)
            for index in range(1000, 10_000)
        ]
    )
    assert side_work.ratios(False)["eval"] == pytest.approx(20 / 120, rel=0.1)
