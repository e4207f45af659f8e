"""A suggestion that was measured in a run has its measurement in place of its prediction, wherever
it is shown."""

from __future__ import annotations

import msgspec
import pytest

from gpuconsole.model.experiments import Speedup, Trial, TrialState, Verdict, last_trial
from gpuconsole.model.finding import Finding, Interval, Suggestion
from gpuconsole.model.machine import Device
from gpuconsole.model.run import Run
from gpuconsole.model.snapshot import Environment, decode, encode
from gpuconsole.report.parts import printed
from gpuconsole.report.run.diagnosis import finding_report
from gpuconsole.session.state import SessionState
from gpuconsole.session.view import make_snapshot
from gpuconsole.wire.events import Devices, Found, RunOpened, TrialUpdate


def suggest(value: int) -> Suggestion:
    return Suggestion(
        {"num_workers": value}, Interval(1.08, 1.46), f"num_workers 0 -> {value}: more workers", ""
    )


def finding(rule: str, share: float, *suggestions: Suggestion) -> Finding:
    return Finding(rule, "fires", rule, share, "high", "", suggestions=suggestions, level=2.0)


WORKER = finding("input.too_few_workers", 0.4, suggest(1))
LOGGING = finding(
    "host.logging_io", 0.3, Suggestion({"log_every": 20}, None, "log_every 1 -> 20: less often", "")
)


def trial(
    estimate: float | None,
    state: TrialState = "done",
    verdict: Verdict | None = "worse",
    run: str = "1",
    value: int = 1,
) -> Trial:
    speedup = Speedup(estimate, estimate - 0.17, estimate + 0.23) if estimate else None
    return Trial(
        "t1",
        run,
        {"num_workers": value},
        state,
        speedup,
        predicted=Interval(1.08, 1.46),
        verdict=verdict,
    )


def session(*findings: Finding) -> SessionState:
    state = SessionState()
    state.apply(Devices(0.0, [Device("cpu", "cpu")]))
    state.apply(RunOpened(0.0, "1", "train.py", "job", {"num_workers": 0, "log_every": 1}, "cpu"))
    state.apply(Found(1.0, "1", list(findings), {}))
    return state


def findings(state: SessionState) -> list[Finding]:
    assert state.record is not None
    return state.record.run.findings


def test_a_measurement_takes_the_place_of_the_prediction_and_outlives_the_next_evaluation() -> None:
    state = session(WORKER, LOGGING)
    state.apply(TrialUpdate(2.0, trial(0.76)))
    for _ in range(2):
        first, second = findings(state)
        assert (first.rule, second.rule) == (LOGGING.rule, WORKER.rule), (
            "a fix that does not gain makes the cause less certain"
        )
        (worker,) = second.suggestions
        assert worker.predicted_speedup is None and worker.tried is not None
        assert (worker.tried.estimate, worker.tried.verdict, worker.tried.trial) == (
            0.76,
            "worse",
            "t1",
        )
        state.apply(Found(3.0, "1", [WORKER, LOGGING], {}))
    assert state.record is not None
    shown = printed(finding_report(1, second, state.record.run), 120)
    assert "tried: 0.76x [0.59, 0.99], slower" in shown and "predicted" not in shown


def test_the_snapshot_holds_the_measurement_and_no_prediction() -> None:
    state = session(WORKER)
    state.apply(TrialUpdate(2.0, trial(0.76)))
    written = encode(make_snapshot(state, Environment(), 3.0))
    (suggestion,) = msgspec.json.decode(written)["runs"][0]["findings"][0]["suggestions"]
    assert suggestion["predicted_speedup"] is None and suggestion["tried"]["low"] == pytest.approx(
        0.59
    )
    read = decode(written).runs[0].findings[0].suggestions[0]
    assert read.tried is not None and read.tried.trial == "t1"


def test_a_measured_gain_is_the_weight_of_its_finding() -> None:
    state = session(LOGGING, finding(WORKER.rule, 0.2, suggest(2), suggest(1)))
    state.apply(TrialUpdate(2.0, trial(2.0, verdict="win")))
    first, second = findings(state)
    assert first.rule == WORKER.rule and first.weight == pytest.approx(0.5)
    assert [suggestion.changes["num_workers"] for suggestion in first.suggestions] == [1, 2], (
        "what is proven comes first"
    )
    assert second == LOGGING


def test_what_was_not_tried_comes_before_what_does_not_gain() -> None:
    state = session(finding(WORKER.rule, 0.4, suggest(1), suggest(2)))
    state.apply(TrialUpdate(2.0, trial(0.76)))
    (tried,) = findings(state)
    assert [suggestion.changes["num_workers"] for suggestion in tried.suggestions] == [2, 1]
    assert tried.weight == pytest.approx(0.4), "the other suggestion may still gain"


@pytest.mark.parametrize(
    "other",
    [
        trial(0.76, "running"),
        trial(None, "failed", None),
        trial(0.76, run="2"),
        trial(0.76, value=4),
    ],
    ids=["runs", "failed without a figure", "another run", "other values"],
)
def test_other_trials_change_no_suggestion(other: Trial) -> None:
    state = session(WORKER, LOGGING)
    state.apply(TrialUpdate(2.0, other))
    assert findings(state) == [WORKER, LOGGING]


def test_a_trial_that_the_end_of_the_job_has_cut_off_counts_with_what_it_measured() -> None:
    state = session(WORKER)
    state.apply(TrialUpdate(2.0, trial(0.88, "cancelled", None)))
    tried = findings(state)[0].suggestions[0].tried
    assert tried is not None and tried.verdict == "undecided"


def test_the_last_trial_of_a_change_counts() -> None:
    first, second = trial(0.76), msgspec.structs.replace(trial(1.2), id="t2")
    assert last_trial([first, second], "1", {"num_workers": 1}) is second
    assert last_trial([first, second], "1", {"num_workers": 2}) is None


def test_a_memory_finding_is_not_judged_by_its_rate() -> None:
    memory = msgspec.structs.replace(WORKER, resource="memory")
    state = session(memory)
    state.apply(TrialUpdate(2.0, trial(0.76)))
    assert findings(state)[0].weight == memory.weight


def test_a_finding_whose_fix_lost_promises_nothing_and_is_less_certain() -> None:
    state = session(WORKER, LOGGING)
    before = printed(finding_report(1, WORKER, Run("1", "train.py", "job", {}, "cpu")), 120)
    assert "40 % recoverable" in before and "confidence high" in before
    state.apply(TrialUpdate(2.0, trial(0.76)))
    for _ in range(2):  # the conclusion is the same when the next trial is told
        (worker,) = (one for one in findings(state) if one.rule == WORKER.rule)
        assert worker.failed and worker.confidence == "low" and worker.weight == pytest.approx(0.2)
        assert state.record is not None
        shown = printed(finding_report(1, worker, state.record.run), 120)
        assert (
            "recoverable" not in shown.lower()
            and "no gain measured" in shown
            and "did not gain, so the confidence is low" in shown
        )
        state.apply(TrialUpdate(3.0, msgspec.structs.replace(trial(1.0, value=9), id="t2")))


def test_a_change_that_lost_twice_in_runs_of_the_same_job_is_less_certain_at_other_values_too() -> (
    None
):
    state = session(finding(WORKER.rule, 0.4, suggest(1), suggest(2)))
    state.apply(TrialUpdate(2.0, trial(0.76)))
    (first,) = findings(state)
    assert (first.confidence, first.lost_trials, first.failed) == ("high", 0, False)
    for n, scenario in enumerate(("other.py", "train.py")):
        state.apply(RunOpened(3.0 + n, f"{n + 2}", scenario, "job", {"num_workers": 0}, "cpu"))
        state.apply(Found(4.0 + n, f"{n + 2}", [finding(WORKER.rule, 0.4, suggest(4))], {}))
        assert findings(state)[0].confidence == "high"
    state.apply(TrialUpdate(6.0, msgspec.structs.replace(trial(0.9, run="3", value=2), id="t2")))
    (last,) = findings(state)
    assert (last.confidence, last.lost_trials) == ("low", 2)
    assert state.record is not None
    assert "2 trials of this change in this job did not gain" in printed(
        finding_report(1, last, state.record.run), 120
    )
    state.apply(
        TrialUpdate(
            7.0, msgspec.structs.replace(trial(1.5, run="3", value=4, verdict="win"), id="t3")
        )
    )
    state.apply(Found(8.0, "3", [finding(WORKER.rule, 0.4, suggest(4))], {}))
    assert (findings(state)[0].confidence, findings(state)[0].lost_trials) == ("high", 0), (
        "one of them gained"
    )
