"""Time that no finding explains: a run with such time is never called without a fault."""

from __future__ import annotations

import random

import msgspec
import pytest

from gpuconsole.diagnosis.engine import all_rules, evaluate, why_no_claim
from gpuconsole.diagnosis.probes import NO_CONSENT
from gpuconsole.diagnosis.rule import Case
from gpuconsole.diagnosis.unexplained import unexplained
from gpuconsole.model.finding import Finding, Signal
from gpuconsole.model.job import JOB
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.run import PHASES, Run, Summary
from gpuconsole.report.parts import printed
from gpuconsole.report.run.diagnosis import firing_report, state_words
from tests.diagnosis.cases import HEALTHY, KNOBS, case

NAMES = {
    "data_wait": ("input.", "host.python_overhead"),
    "h2d": ("h2d.", "link."),
    "comm": ("comm.",),
    "logging": ("host.logging_io",),
    "checkpoint": ("host.checkpoint_stall",),
    "eval": ("host.eval_stall",),
    "other": ("host.python_overhead",),
}
"""For each part of a step that is no useful work, the rules that name its cause."""


def run_of(a_case: Case, findings: list[Finding] | None = None) -> Run:
    """A steady job with the signals of the case, and what the rules conclude."""
    found = evaluate(a_case) if findings is None else findings
    run = Run("1", "job", JOB, a_case.knobs, "cpu", "running", duration_s=60.0, steady_from_s=1.0, summary=Summary(steps=500))
    return msgspec.structs.replace(run, signals=a_case.signals, findings=found)


def starved(without: tuple[str, ...] = ("probe.loader_cpu_ratio",)) -> Run:
    """A job that waits for data for 72 % of a step; the loader's CPU time is not known."""
    return run_of(case(without, data_wait_ratio=0.72, forward_ratio=0.1, backward_ratio=0.14, data_wait_typical_ratio=0.7))


def test_a_wait_without_a_cause_is_named_with_what_is_missing() -> None:
    run = starved()
    assert state_words(run) == "No conclusion: 72 % of each step waits for data, and no rule names the cause"
    told = printed(firing_report(run))
    assert "no conclusion: 72 % of each step waits for data, and no rule names the cause" in told
    assert "possible causes: too few workers, slow storage, or costly transforms" in told
    assert "probe.loader_cpu_ratio" in told.partition("missing: ")[2] and "a longer run may give the numbers" in told


def test_consent_is_no_remedy_where_the_probe_never_runs_in_a_job() -> None:
    told = printed(firing_report(msgspec.structs.replace(starved(), unavailable={"probe.loader_alone": NO_CONSENT})))
    assert "a longer run may give the numbers" in told and "permission" not in told


def test_while_a_probe_is_due_the_cause_is_not_known_yet() -> None:
    run = msgspec.structs.replace(starved(), duration_s=5.0)
    assert state_words(run) == "Measuring: 72 % of each step waits for data; the cause is not known yet"
    waiting = {"probe.loader_alone": NO_CONSENT, "probe.script_lines": "the job ends"}
    assert state_words(msgspec.structs.replace(run, unavailable=waiting)).startswith("No conclusion: 72 %"), "no probe is due"


def test_before_the_time_of_a_step_is_divided_nothing_is_claimed() -> None:
    run = run_of(case(tuple(f"{phase}_ratio" for phase in PHASES)))
    assert why_no_claim(run) == "the shares of a step are not measured yet"


def test_what_a_finding_names_is_explained() -> None:
    run = starved(without=())
    run.findings = [Finding("input.slow_storage", "fires", "Slow storage", 0.6), Finding("input.cpu_transform", "clear", "")]
    assert unexplained(run) is None


def test_another_finding_does_not_explain_the_wait() -> None:
    run = starved()
    run.findings = [Finding("gpu.small_batch", "fires", "The batch is too small", 0.1), *run.findings]
    assert "not explained: 72 % of each step waits for data" in printed(firing_report(run))


def test_a_rule_about_the_passes_without_data_leaves_the_question_open() -> None:
    run = run_of(case(("probe.batch_cost_ratio", "probe.batch_factor"), mfu_ratio=0.2))
    run.unavailable = {"probe.batch_elasticity": NO_CONSENT}
    assert all(finding.state != "fires" for finding in run.findings)
    assert why_no_claim(run).startswith("1 rule has no data about the passes and the optimizer (98 % of each step)")
    assert why_no_claim(run).endswith("P (or --probe) allows the probe batch_elasticity")
    assert "no fault found" not in printed(firing_report(run))
    ended = msgspec.structs.replace(run, state="finished")
    assert why_no_claim(ended).endswith(": --probe allows the probe batch_elasticity"), "no key helps any more"


def test_a_probe_that_failed_is_the_reason() -> None:
    run = run_of(case(("probe.batch_cost_ratio", "probe.batch_factor"), mfu_ratio=0.2))
    run.unavailable = {"probe.batch_elasticity": "out of memory"}
    assert why_no_claim(run).endswith("the measurement is not possible here: out of memory")


def test_a_server_whose_requests_wait_is_not_without_a_fault() -> None:
    signals = {"server.queue_s": Signal(0.3, "s", "test"), "server.e2e_s": Signal(1.0, "s", "test")}
    findings = [Finding("serve.over_capacity", "clear", "")]
    run = Run("1", "x", "inference.chat", {}, "cpu", "running", steady_from_s=1.0, signals=signals, findings=findings)
    assert why_no_claim(run) == "30 % of the time of a request is a wait in the queue, and no rule names the cause"
    run.signals = {}
    run.findings = [Finding("serve.over_capacity", "cant_tell", "", missing=("server.queue_s",))]
    assert why_no_claim(run).startswith("1 rule has no data about the server")


def test_the_same_holds_after_a_kept_change() -> None:
    run = msgspec.structs.replace(starved(), changes={"num_workers": 4})
    assert "72 % of each step waits for data" in state_words(run)


def test_a_healthy_run_is_without_a_fault() -> None:
    run = run_of(case(mfu_ratio=0.2))
    assert why_no_claim(run) == "" and state_words(run) == "No fault found so far"


@pytest.mark.parametrize("seed", range(40))
def test_no_state_with_much_time_unexplained_is_called_without_fault(seed: int) -> None:
    """Random shares of a step, random signals that are missing, random settings: 40 cases for each seed."""
    draw = random.Random(seed)
    signals = sorted({name for rule in all_rules() for name in rule.reads} | set(HEALTHY))
    for _ in range(40):
        weights = [draw.random() ** 4 for _ in PHASES]
        shares = {f"{phase}_ratio": weight / sum(weights) for phase, weight in zip(PHASES, weights, strict=True)}
        values = {name: HEALTHY.get(name, draw.choice((0.0, 0.05, 0.5, 1.0, 2.0))) for name in signals if draw.random() < 0.8} | shares
        values["is_gpu"] = float(draw.random() < 0.3)
        knobs: Knobs = {**KNOBS, "num_workers": draw.choice((0, 1, 4))}
        if draw.random() < 0.3:
            del knobs["num_workers"]  # the program makes its batches itself
        run = run_of(Case(knobs, {name: Signal(value, "", "test") for name, value in values.items()}))
        told, findings = printed(firing_report(run)), run.findings
        for phase, rules in NAMES.items():
            named = any(f.rule.startswith(rules) and (f.state == "fires" or "Covered" in f.title) for f in findings)
            if shares[f"{phase}_ratio"] >= 0.1 and not named:
                assert "no fault found" not in told and "no rule names the cause" in told
        passes = sum(shares[f"{phase}_ratio"] for phase in ("forward", "backward", "optimizer"))
        if passes >= 0.1 and any(f.rule.startswith("gpu.") and f.state == "cant_tell" for f in findings):
            assert "no fault found" not in told
