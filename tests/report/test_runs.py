"""The table of runs and the verdict of the last trial: each belongs to its own run."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import msgspec
import pytest

from gpuconsole.model.experiments import Speedup, Trial
from gpuconsole.model.figures import Figure
from gpuconsole.model.finding import Finding
from gpuconsole.model.job import JOB
from gpuconsole.model.knobs.catalogue import Knobs, describe_changes
from gpuconsole.model.run import Distribution, Run, Summary
from gpuconsole.model.snapshot import Environment, decode, encode, json_schema
from gpuconsole.report.experiments import paint_done, verdict
from gpuconsole.report.parts import printed
from gpuconsole.report.run.diagnosis import firing_report, paint_details
from gpuconsole.report.run.models import models_report
from gpuconsole.report.run.runs import figures, paint_runs, run_head
from gpuconsole.report.session import run_text, session_text
from gpuconsole.session import facts
from gpuconsole.session.api import View
from gpuconsole.session.state import SessionState
from gpuconsole.session.view import make_snapshot, run_now
from gpuconsole.wire.events import AgentOff, AnyEvent, Failed, RunClosed, RunOpened
from tests.report.small_session import small_session
from tests.tui.fake_session import KNOBS, cpu_view, gpu_view
from tests.tui.test_paint import text


def images_after_tokens() -> View:
    """A kept trial on train-gpt, then a run of another scenario, which counts samples."""
    view = gpu_view()
    done = msgspec.structs.replace(view.runs[-1], state="finished")
    summary = Summary(samples_per_s=Distribution(110.0, 5.9, 300, 110.0), steps=300)
    other = Run(
        "3",
        "train-vision",
        "training.vision",
        {"batch_size": 4},
        "gpu:0",
        "running",
        steady_from_s=3.0,
        summary=summary,
    )
    return msgspec.structs.replace(view, runs=(view.runs[0], done, other))


def row_of(view: View, start: str, width: int) -> str:
    return next(
        row
        for row in text(paint_runs(view, width, 10, True)).splitlines()
        if row.lstrip("│ ").startswith(start)
    )


def test_each_run_has_its_own_unit() -> None:
    for width in (60, 80, 100):
        view = images_after_tokens()
        assert "samples/s" in row_of(view, "3 ", width)
        assert "tokens/s" in row_of(view, "2 ", width) and "samples/s" not in row_of(
            view, "2 ", width
        )
        assert "tokens/s" not in row_of(view, "3 ", width)


def test_a_unit_that_all_runs_share_stands_in_the_head_alone() -> None:
    head, first = text(paint_runs(gpu_view(), 100, 10, True)).splitlines()[1:3]
    assert "tokens/s" in head and "tokens/s" not in first


def test_the_verdict_of_another_scenario_is_not_shown() -> None:
    assert facts.shown_trial(gpu_view()) is not None
    assert facts.shown_trial(images_after_tokens()) is None


def test_the_verdict_stays_while_runs_continue_one_another() -> None:
    view = gpu_view()
    kept = msgspec.structs.replace(view, trials=view.trials[:1])  # on run 1, which run 2 continues
    shown = facts.shown_trial(kept)
    assert shown is not None
    assert "last trial  optim adamw_fused  1.21x [1.18, 1.24]  faster: kept" in text(
        paint_done(shown, 100)
    )
    again = msgspec.structs.replace(view.runs[-1], id="3", changes={})
    assert facts.shown_trial(msgspec.structs.replace(kept, runs=(*view.runs, again))) is None


@pytest.mark.parametrize("height", [2, 3, 4])
@pytest.mark.parametrize(
    ("changes", "fate"),
    [
        ({"batch_size": 64, "precision": "bf16"}, {"unseen": ("eval", "checkpoint")}),
        ({"num_workers": 4}, {"unseen": ("eval",)}),
        (
            {"num_workers": 4, "optim": "adamw_fused"},
            {"reason": "1.00x [0.98, 1.03] in the minute after the change was kept", "kept": True},
        ),
    ],
)
def test_the_outcome_of_a_trial_is_whole_at_80_columns(
    changes: Knobs, fate: dict[str, Any], height: int
) -> None:
    trial = Trial("1", "1", changes, "done", Speedup(1.07, 0.75, 1.52), verdict="undecided", **fate)
    shown = " ".join(text(paint_done(trial, 80, height)).split())
    assert verdict(trial) in shown and "1.07x [0.75, 1.52]" in shown
    assert describe_changes(changes) in shown and "…" not in shown


def test_a_failed_run_reads_failed_although_its_change_was_kept() -> None:
    first = Run(
        "1",
        "data-starved",
        "training.gpt",
        KNOBS,
        "cpu",
        "finished",
        summary=cpu_view().runs[0].summary,
    )
    second = Run(
        "2",
        "data-starved",
        "training.gpt",
        {**KNOBS, "batch_size": 32},
        "cpu",
        "failed",
        "out of memory",
        changes={"batch_size": 32},
    )
    trial = Trial(
        "1", "1", {"batch_size": 32}, "done", Speedup(1.3, 1.2, 1.4), verdict="win", kept=True
    )
    view = cpu_view(runs=(first, second), trials=(trial,))
    painted = paint_runs(view, 100, 8, True)
    row = next(row for row in painted if "32" in text([row]))
    assert "failed" in text([row]) and "kept" not in text([row])
    assert ("  failed   ", "alert") in row


def test_models_of_which_nothing_is_known_are_counted_for_a_job_and_listed_for_a_scenario() -> None:
    known = Figure(
        "memory.parameters_bytes",
        "Parameters",
        "bytes",
        predicted=1024.0,
        note="not measured: no probe",
    )
    unknown = Figure("flops.sample", "FLOPs of a sample", "FLOP", note="neither")
    job = Run("1", "train.py", JOB, {}, "cpu", "finished", figures=[known, unknown])
    words = printed(models_report(job))
    assert (
        "Parameters" in words
        and "FLOPs of a sample" not in words
        and "1 further model has neither a prediction nor a measurement" in words
    )
    assert "FLOPs of a sample" in printed(
        models_report(msgspec.structs.replace(job, workload="training.gpt"))
    )
    assert (
        printed(models_report(job, whole=False))
        == "2 further models have no prediction or no measurement (the snapshot has the reasons)"
    )


def test_a_job_that_ended_before_its_steady_state_has_no_healthy_diagnosis() -> None:
    finding = Finding(
        "input.jitter", "cant_tell", "No slow samples stall the DataLoader", missing=["step_s"]
    )
    job = Run(
        "1", "train.py", JOB, {}, "cpu", "finished", summary=Summary(steps=74), findings=[finding]
    )
    words = (
        "diagnosis: no conclusion: the job ended before its step time was steady, after 74 steps"
    )
    assert printed(firing_report(job)) == words
    for other in (
        msgspec.structs.replace(job, state="running"),
        msgspec.structs.replace(job, steady_from_s=2.0),
    ):
        assert "no fault found" in printed(firing_report(other))


def test_a_job_with_one_step_and_without_known_samples() -> None:
    job = Run("1", "train.py", JOB, {}, "cpu", "finished", duration_s=6.0, summary=Summary(steps=1))
    assert "6.0 s, 1 step, never steady)" in printed([run_head(job)])
    steady = msgspec.structs.replace(job, steady_from_s=1.0)
    assert "6.0 s, 1 steady step)" in printed([run_head(steady)])
    assert "n/a: the number of samples in a batch is not known" in printed(figures(job))


@pytest.mark.parametrize(
    ("workload", "agent_s", "said"),
    [(JOB, 1.42e-3, True), (JOB, 0.9e-3, False), ("training.gpt", 1.42e-3, False)],
)
def test_the_time_that_a_rate_leaves_out_is_said_beside_it(
    workload: str, agent_s: float, said: bool
) -> None:
    summary = Summary(
        samples_per_s=Distribution(320.0, 1.0, 40, 320.0),
        step_time_s=Distribution(0.1, 0.0, 200, 0.1),
        steps=200,
        overhead_s_per_step=agent_s,
    )
    run = Run("1", "train.py", workload, {}, "cpu", "finished", summary=summary)
    (rate,) = [row for row in printed(figures(run)).splitlines() if "320" in row]
    assert ("agent's 1.4 %" in rate) == said


DETAIL = (
    "\n".join(f'  File "gpt.py", line {n}, in forward' for n in range(30))
    + "\n\n\tx = y\x1b[2J\nRuntimeError: "
    + "bad " * 200
    + "\n"
)


@pytest.mark.parametrize(
    ("workload", "end", "label"),
    [
        (
            "training.gpt",
            [Failed(2.0, "a bad shape", DETAIL), RunClosed(3.0, "1", "failed", "a bad shape")],
            "error",
        ),
        (JOB, [AgentOff(2.0, 12, 0, "data.next", "KeyError: 'x'", DETAIL)], "agent"),
    ],
    ids=["failed", "agent off"],
)
def test_the_end_of_a_traceback_is_in_the_details_in_the_summary_and_in_the_snapshot(
    workload: str, end: list[AnyEvent], label: str
) -> None:
    state = SessionState()
    for event in [RunOpened(1.0, "1", "x", workload, {}, "cpu"), *end]:
        state.apply(event)
    snapshot = make_snapshot(state, Environment(), 4.0)
    assert state.record is not None
    shown = msgspec.structs.replace(cpu_view(), runs=(run_now(state, state.record),))
    for report in (session_text(snapshot), text(paint_details(shown, 120))):
        lines = report.splitlines()
        first = next(n for n, row in enumerate(lines) if row.lstrip().startswith(label))
        assert "a bad shape" in lines[first] or "KeyError: 'x'" in lines[first]
        assert lines[first + 1].strip() == 'File "gpt.py", line 20, in forward', (
            "the last twelve lines that are not empty"
        )
        assert "x = y\\x1b[2J" in report and "\x1b" not in report
        assert "RuntimeError: bad bad" in report and "bad " * 100 not in report
    raw = json.loads(encode(snapshot))
    jsonschema.validate(raw, json_schema())
    assert len(raw["runs"][0]["traceback"]) == 12
    assert decode(encode(snapshot)) == snapshot


def test_a_run_without_a_traceback_has_no_such_field_in_the_snapshot() -> None:
    state = SessionState()
    for event in (
        RunOpened(1.0, "1", "x", "training.gpt", {}, "cpu"),
        Failed(2.0, "out of memory"),
        RunClosed(3.0, "1", "failed"),
    ):
        state.apply(event)
    assert b"traceback" not in encode(make_snapshot(state, Environment(), 4.0))


def test_the_finding_and_its_advice_stand_before_all_figures() -> None:
    run = small_session().runs[0]
    lines = run_text(run).splitlines()
    finding, figure = (
        run.findings[0],
        next(k for k, line in enumerate(lines) if "throughput" in line),
    )
    assert finding.title in lines[2] and finding.summary.split(". ")[0] in "".join(lines[2:5])
    advice = next(k for k, line in enumerate(lines) if line.strip().startswith("try "))
    evidence = next(k for k, line in enumerate(lines) if line.strip().startswith("evidence"))
    assert advice < evidence < figure
