"""Which change is tried next, and what the snapshot of `tune` may claim."""

from __future__ import annotations

import math
from typing import Any

import jsonschema
import msgspec
import pytest

from gpuconsole.experiments.block_order import MEAN_STRETCH
from gpuconsole.experiments.certificate import mistakes
from gpuconsole.experiments.statistics import speedup
from gpuconsole.experiments.tune import LIVE_S, Allowed, candidates, left_alone, trial_s
from gpuconsole.model.certificate import Attempt, Certificate
from gpuconsole.model.experiments import Trial, Verdict
from gpuconsole.model.finding import Confidence, Finding, Interval, Signal, Suggestion
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.run import Run
from gpuconsole.model.snapshot import Environment, Snapshot, decode, encode, json_schema

KNOBS: Knobs = {
    "num_workers": 0,
    "optim": "adamw",
    "batch_size": 8,
    "precision": "fp32",
    "max_num_seqs": 8,
    "concurrency": 8,
}


def finding(
    rule: str,
    changes: Knobs,
    predicted: Interval | None,
    *,
    recoverable: float = 0.5,
    confidence: Confidence = "high",
    **more: Any,
) -> Finding:
    return Finding(
        rule,
        "fires",
        rule,
        recoverable,
        confidence,
        suggestions=(Suggestion(changes, predicted, "", f"code of {rule}"),),
        **more,
    )


def run_with(*findings: Finding, knobs: Knobs = KNOBS, **more: Any) -> Run:
    return Run("1", "train-gpt", "training.gpt", knobs, "cpu", findings=list(findings), **more)


def chosen(
    *findings: Finding, tried: list[tuple[Knobs, Knobs]] | None = None, allow: bool = False
) -> list[Knobs]:
    return [one.changes for one in candidates(run_with(*findings), tried or [], Allowed(allow))]


def test_the_gain_per_second_of_trial_decides() -> None:
    quick = finding("a", {"optim": "adamw_fused"}, Interval(1.1, 1.3))
    slow = finding("b", {"num_workers": 1}, Interval(1.2, 1.5))
    unsure = finding("c", {"precision": "bf16"}, Interval(1.1, 1.3), confidence="low")
    assert chosen(unsure, slow, quick) == [
        {"optim": "adamw_fused"},
        {"num_workers": 1},
        {"precision": "bf16"},
    ]


def test_a_trial_with_many_steps_per_block_takes_longer_and_comes_later() -> None:
    """Forty steps of 60 ms are a block of 2.4 s at least, ten steps of the other side one of 0.6 s;
    the mean block is longer."""
    rarer, fused = (
        finding("a", {"save_every": 40}, Interval(1.3, 1.5)),
        finding("b", {"optim": "adamw_fused"}, Interval(1.25, 1.45)),
    )
    now: dict[str, Any] = {
        "knobs": {**KNOBS, "save_every": 5},
        "signals": {"step_s": Signal(0.06, "s", "account")},
    }
    run = run_with(rarer, fused, **now)
    expected = pytest.approx(4 * (2.4 + 0.6) * MEAN_STRETCH)
    assert (
        trial_s({"optim": "adamw_fused"}, run)
        == LIVE_S
        < trial_s({"save_every": 40}, run)
        == expected
    )
    assert [one.rule for one in candidates(run, [])] == ["b", "a"]


def test_without_a_prediction_half_of_the_time_at_stake_is_expected() -> None:
    (one,) = candidates(run_with(finding("a", {"optim": "adamw_fused"}, None, recoverable=0.5)), [])
    assert one.gain == pytest.approx(0.5)


def test_only_the_named_knobs_change() -> None:
    found = [
        finding("a", {"optim": "adamw_fused"}, Interval(1.1, 1.3)),
        finding("b", {"num_workers": 1}, Interval(1.2, 1.5)),
    ]
    assert [
        one.changes for one in candidates(run_with(*found), [], Allowed(only=["num_workers"]))
    ] == [{"num_workers": 1}]


@pytest.mark.parametrize(
    "left_out",
    [
        finding("less than 5 %", {"optim": "adamw_fused"}, Interval(1.0, 1.04)),
        finding("changes what is learnt", {"batch_size": 64}, Interval(2.0, 3.0)),
        finding("the users' load", {"concurrency": 64}, Interval(2.0, 3.0)),
        finding("about memory", {"optim": "adamw_fused"}, Interval(1.1, 1.2), resource="memory"),
        msgspec.structs.replace(
            finding("clear", {"optim": "adamw_fused"}, Interval(1.1, 1.2)), state="clear"
        ),
    ],
    ids=lambda one: one.rule,
)
def test_changes_that_are_never_tried(left_out: Finding) -> None:
    assert chosen(left_out) == []


@pytest.mark.parametrize(
    ("left", "only", "why"),
    [
        (
            finding("a", {"batch_size": 64}, Interval(2.0, 3.0)),
            (),
            "--allow-training-changes allows it",
        ),
        (
            finding("a", {"concurrency": 64}, Interval(2.0, 3.0)),
            (),
            "--set concurrency=64 starts with it",
        ),
        (
            finding("a", {"optim": "adamw_fused"}, Interval(1.2, 1.3)),
            ("num_workers",),
            "--only num_workers,optim allows it",
        ),
    ],
)
def test_a_promising_change_that_may_not_be_tried_is_named_with_the_option_that_allows_it(
    left: Finding, only: tuple[str, ...], why: str
) -> None:
    (found,) = left_alone(run_with(left), [], Allowed(only=only))
    assert found.changes == left.suggestions[0].changes and found.why.endswith(why)
    assert left_alone(run_with(left), [], Allowed(True)) == [] or "concurrency" in found.changes


def test_a_change_that_promises_little_is_not_named() -> None:
    assert left_alone(run_with(finding("a", {"batch_size": 64}, Interval(1.0, 1.04))), []) == []


# at most 1.07 without the error of a trial
SEATS = finding("serve.sequence_cap", {"max_num_seqs": 16}, Interval(1.04, 1.13))
LIVE = {"live_limit.max_num_seqs": 16.0}


def test_a_change_that_applies_live_is_judged_by_what_a_trial_in_one_process_can_prove() -> None:
    """Two processes differ anyway, so their trial proves nothing below 8 %; one process with a live
    limit has no such noise."""
    assert [one.changes for one in candidates(run_with(SEATS, facts=LIVE), [])] == [
        {"max_num_seqs": 16}
    ]
    assert candidates(run_with(SEATS, facts={"live_limit.max_num_seqs": 15.0}), []) == [], (
        "above the limit: another server"
    )
    assert candidates(run_with(SEATS), []) == [], "the server reports no live limit"


def test_a_live_change_of_a_server_takes_no_second_server() -> None:
    assert trial_s({"max_num_seqs": 16}, run_with(facts=LIVE)) < trial_s(
        {"max_num_seqs": 16}, run_with()
    )


def test_a_change_of_training_is_tried_where_the_user_allows_it() -> None:
    assert chosen(finding("a", {"batch_size": 64}, Interval(2.0, 3.0)), allow=True) == [
        {"batch_size": 64}
    ]


def test_a_change_is_tried_again_only_under_other_knobs() -> None:
    one = finding("a", {"optim": "adamw_fused"}, Interval(1.1, 1.3))
    assert chosen(one, tried=[(KNOBS, {"optim": "adamw_fused"})]) == []
    assert chosen(one, tried=[({**KNOBS, "num_workers": 2}, {"optim": "adamw_fused"})]) == [
        {"optim": "adamw_fused"}
    ]


def trial(
    changes: Knobs, factor: float, verdict: Verdict, *, kept: bool, number: str = "1"
) -> Trial:
    ratios = tuple(math.log(factor) + 0.001 * n for n in (-2, -1, 0, 1, 2))
    return Trial(
        number,
        "1",
        changes,
        "done",
        speedup(list(ratios)),
        verdict=verdict,
        kept=kept,
        log_ratios=ratios,
    )


def certificate() -> Certificate:
    start = {"num_workers": 0, "optim": "adamw"}
    first = trial({"num_workers": 1}, 1.5, "win", kept=True)
    second = trial({"optim": "adamw_fused"}, 1.001, "no_gain", kept=False, number="2")
    return Certificate(
        scenario="data-starved",
        device="cpu",
        start=start,
        end={"num_workers": 1, "optim": "adamw"},
        attempts=[
            Attempt("input.too_few_workers", start, first),
            Attempt("gpu.optimizer_unfused", {**start, "num_workers": 1}, second),
        ],
        proof=trial({"num_workers": 0}, 1 / 1.5, "worse", kept=False, number="3"),
    )


def tuned() -> Snapshot:
    """The snapshot of a tuning session."""
    environment = Environment(host="box")
    return Snapshot(
        created="2026-01-01T00:00:00Z",
        gpuconsole="1",
        environment=environment,
        runs=[],
        trials=[],
        tuning=certificate(),
    )


def test_a_written_snapshot_is_read_and_holds() -> None:
    data = encode(tuned())
    made = decode(data).tuning
    jsonschema.validate(msgspec.json.decode(data), json_schema())
    assert (
        made is not None
        and made == certificate()
        and mistakes(made) == []
        and made.changed == {"num_workers": 1}
    )


def test_alterations_by_hand_are_found() -> None:
    made = certificate()
    better = msgspec.structs.replace(
        made.attempts[0].trial,
        speedup=msgspec.structs.replace(made.attempts[0].trial.speedup, estimate=1.9),
    )
    assert "does not follow from the 5 pairs" in mistakes(_with(made, 0, better))[0]
    claimed = msgspec.structs.replace(made.attempts[1].trial, verdict="win", kept=True)
    found = mistakes(_with(made, 1, claimed))
    assert any("the verdict is win, but the pairs give no_gain" in one for one in found)
    assert any("settings at the end" in one for one in found)
    assert (
        "the settings at the end"
        in mistakes(msgspec.structs.replace(made, end={"num_workers": 2, "optim": "adamw"}))[0]
    )
    assert (
        "does not compare with the start"
        in mistakes(
            msgspec.structs.replace(made, proof=trial({"num_workers": 3}, 0.5, "worse", kept=False))
        )[0]
    )


def _with(made: Certificate, index: int, trial: Trial) -> Certificate:
    attempts = list(made.attempts)
    attempts[index] = msgspec.structs.replace(attempts[index], trial=trial)
    return msgspec.structs.replace(made, attempts=attempts)


def test_a_change_of_the_numbers_of_a_job_needs_permission() -> None:
    run = run_with(
        finding("a", {"precision": "tf32"}, Interval(1.2, 1.5)),
        effects={"precision": "changes numerics"},
    )
    run.workload = "job"
    (found,) = left_alone(run, [])
    assert (
        candidates(run, []) == []
        and "it changes numerics" in found.why
        and "--allow-numerics allows it (on the screen: N)" in found.why
    )
    assert [one.changes for one in candidates(run, [], Allowed(numerics=True))] == [
        {"precision": "tf32"}
    ]


def test_new_workers_of_a_job_need_permission() -> None:
    run = run_with(
        finding("a", {"num_workers": 2}, Interval(1.2, 1.5)),
        effects={"num_workers": "samples may differ"},
    )
    run.workload = "job"
    (found,) = left_alone(run, [])
    assert candidates(run, []) == [] and "--allow-loader allows it (on the screen: N)" in found.why
    assert candidates(run, [], Allowed(numerics=True)) == []
    assert [one.changes for one in candidates(run, [], Allowed(loader=True))] == [
        {"num_workers": 2}
    ]
