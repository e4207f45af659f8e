"""Time that no finding explains: a run with such time is never called without a fault."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import msgspec
import pytest

from gpuconsole.diagnosis.claims import (
    CORE_WAIT,
    LARGE,
    SERVING,
    TRAINING,
    ClaimedPart,
    beside_core_wait,
    claims_time,
    parts_of,
    share_out,
    unexplained,
    unjudged,
)
from gpuconsole.diagnosis.engine import all_rules, evaluate, still_open, why_no_claim
from gpuconsole.diagnosis.families import device
from gpuconsole.diagnosis.probes import NO_CONSENT
from gpuconsole.diagnosis.rule import CantTell, Case, Rule
from gpuconsole.model.experiments import Speedup, Trial, with_trials
from gpuconsole.model.finding import CodePlace, Evidence, Finding, Signal, Suggestion, Tried
from gpuconsole.model.job import JOB
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.run import PHASES, Run, Summary
from gpuconsole.model.stacks import Place
from gpuconsole.report.parts import printed
from gpuconsole.report.run.diagnosis import details_report, firing_report, stake, state_words
from gpuconsole.session.side_work import SIDE_WORK
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
    run = Run(
        "1",
        "job",
        JOB,
        a_case.knobs,
        "cpu",
        "running",
        duration_s=60.0,
        steady_from_s=1.0,
        summary=Summary(steps=500),
    )
    return msgspec.structs.replace(run, signals=a_case.signals, findings=found)


def run_with(a_case: Case, findings: list[Finding], serves: bool) -> Run:
    run = run_of(a_case, findings)
    return msgspec.structs.replace(run, workload="inference.chat") if serves else run


def starved(without: tuple[str, ...] = ("probe.loader_cpu_ratio",)) -> Run:
    """A job that waits for data for 72 % of a step; the loader's CPU time is not known."""
    return run_of(
        case(
            without,
            data_wait_ratio=0.72,
            forward_ratio=0.1,
            backward_ratio=0.14,
            data_wait_typical_ratio=0.7,
        )
    )


def test_a_wait_without_a_cause_is_named_with_what_is_missing() -> None:
    run = starved()
    assert (
        state_words(run)
        == "No conclusion: 72 % of each step waits for data, and no rule names the cause"
    )
    told = printed(firing_report(run))
    assert "no conclusion: 72 % of each step waits for data, and no rule names the cause" in told
    assert "possible causes: too few workers, slow storage, or costly transforms" in told
    assert (
        "probe.loader_cpu_ratio" in told.partition("missing: ")[2]
        and "a longer run may give the numbers" in told
    )


def test_consent_is_no_remedy_where_the_probe_never_runs_in_a_job() -> None:
    told = printed(
        firing_report(
            msgspec.structs.replace(starved(), unavailable={"probe.loader_alone": NO_CONSENT})
        )
    )
    assert "a longer run may give the numbers" in told and "permission" not in told


def test_while_a_probe_is_due_the_cause_is_not_known_yet() -> None:
    run = msgspec.structs.replace(starved(), duration_s=5.0)
    assert (
        state_words(run)
        == "Measuring: 72 % of each step waits for data; the cause is not known yet"
    )
    waiting = {"probe.loader_alone": NO_CONSENT, "probe.script_lines": "the job ends"}
    assert state_words(msgspec.structs.replace(run, unavailable=waiting)).startswith(
        "No conclusion: 72 %"
    ), "no probe is due"


def test_before_the_time_of_a_step_is_divided_nothing_is_claimed() -> None:
    run = run_of(case(tuple(f"{phase}_ratio" for phase in PHASES)))
    assert why_no_claim(run) == "the shares of a step are not measured yet"


def test_what_a_finding_names_is_explained() -> None:
    run = starved(without=())
    run.findings = [
        Finding("input.slow_storage", "fires", "Slow storage", 0.65),
        Finding("input.cpu_transform", "clear", ""),
    ]
    assert unexplained(run) is None


def test_what_the_findings_leave_of_a_part_is_named() -> None:
    run = starved(without=())
    run.findings = [Finding("input.slow_storage", "fires", "Slow storage", 0.5)]
    gap = unexplained(run)
    assert (
        gap is not None
        and gap.words == "22 % of each step waits for data beyond what the findings would free"
    )


def test_a_cause_without_a_cure_is_named_all_the_same() -> None:
    """Where the storage gives no more, more workers recover nothing, but the finding names what the
    step waits for."""
    run = starved(without=())
    run.findings = [Finding("input.slow_storage", "fires", "Slow storage", 0.0)]
    gap = unexplained(run)
    assert (
        gap is not None
        and gap.words == "72 % of each step waits for data beyond what the findings would free"
    )


OVERHEAD = {"other_ratio": 0.12, "stack__script_ratio": 0.12, "stack__line_ratio": 0.1}
IDLE = {"is_gpu": 1.0, "gpu__util_ratio": 0.4, "data_wait_ratio": 0.01, "other_ratio": 0.0}


@pytest.mark.parametrize(
    ("signals", "fires", "words"),
    [
        (
            {"data_wait_ratio": 0.4, "forward_ratio": 0.15, "backward_ratio": 0.3, **OVERHEAD},
            "host.python_overhead",
            "40 % of each step waits for data",
        ),
        (
            {**IDLE, "runq_ratio": 0.16},
            "host.cpu_contention",
            "58 % of each step passes without work on the GPU",
        ),
        (
            {**IDLE, "checkpoint_ratio": 0.06},
            "host.checkpoint_stall",
            "52 % of each step passes without work on the GPU",
        ),
    ],
)
def test_a_finding_about_other_time_and_a_note_explain_nothing(
    signals: dict[str, float], fires: str, words: str
) -> None:
    """Any finding whose id began alike, of any size, explained a whole part of the step."""
    source = Signal(0.1, "ratio", "stack samples", CodePlace("train.py:9"))
    a_case = case(("probe.loader_cpu_ratio", "mfu_ratio"), **signals)
    run = run_of(
        dataclasses.replace(a_case, signals={**a_case.signals, "stack.line_ratio": source})
    )
    assert fires in [finding.rule for finding in run.findings if finding.state == "fires"]
    gap = unexplained(run)
    assert gap is not None and gap.time == words


@pytest.mark.parametrize("rule", ["serve.client_bound", "serve.prefill_bound"])
def test_a_finding_about_the_work_of_a_server_does_not_explain_its_queue(rule: str) -> None:
    signals = {"server.queue_s": Signal(0.6, "s", "test"), "server.e2e_s": Signal(1.0, "s", "test")}
    findings = [Finding(rule, "fires", "", 0.3), Finding("serve.over_capacity", "clear", "")]
    run = Run(
        "1",
        "x",
        "inference.chat",
        {},
        "cpu",
        "running",
        steady_from_s=1.0,
        signals=signals,
        findings=findings,
    )
    gap = unexplained(run)
    assert gap is not None and gap.time == "60 % of the time of a request is a wait in the queue"


def test_another_finding_does_not_explain_the_wait() -> None:
    run = starved()
    run.findings = [
        Finding("gpu.small_batch", "fires", "The batch is too small", 0.1),
        *run.findings,
    ]
    assert "not explained: 72 % of each step waits for data" in printed(firing_report(run))


def test_a_rule_about_the_passes_without_data_leaves_the_question_open() -> None:
    run = run_of(case(("probe.batch_cost_ratio", "probe.batch_factor"), mfu_ratio=0.2))
    run.unavailable = {"probe.batch_elasticity": NO_CONSENT}
    assert all(finding.state != "fires" for finding in run.findings)
    assert why_no_claim(run).startswith(
        "1 rule has no data about the passes and the optimizer (98 % of each step)"
    )
    assert why_no_claim(run).endswith("P (or --probe) allows the probe batch_elasticity")
    assert "no fault found" not in printed(firing_report(run))
    ended = msgspec.structs.replace(run, state="finished")
    assert why_no_claim(ended).endswith(": --probe allows the probe batch_elasticity"), (
        "no key helps any more"
    )


def test_a_probe_that_failed_is_the_reason() -> None:
    run = run_of(case(("probe.batch_cost_ratio", "probe.batch_factor"), mfu_ratio=0.2))
    run.unavailable = {"probe.batch_elasticity": "out of memory"}
    assert why_no_claim(run).endswith("the measurement is not possible here: out of memory")


def test_a_server_whose_requests_wait_is_not_without_a_fault() -> None:
    signals = {"server.queue_s": Signal(0.3, "s", "test"), "server.e2e_s": Signal(1.0, "s", "test")}
    findings = [Finding("serve.over_capacity", "clear", "")]
    run = Run(
        "1",
        "x",
        "inference.chat",
        {},
        "cpu",
        "running",
        steady_from_s=1.0,
        signals=signals,
        findings=findings,
    )
    assert (
        why_no_claim(run)
        == "30 % of the time of a request is a wait in the queue, and no rule names the cause"
    )
    run.signals = {}
    run.findings = [Finding("serve.over_capacity", "cant_tell", "", missing=("server.queue_s",))]
    assert why_no_claim(run).startswith("1 rule has no data about the server")


def test_the_same_holds_after_a_kept_change() -> None:
    run = msgspec.structs.replace(starved(), changes={"num_workers": 4})
    assert "72 % of each step waits for data" in state_words(run)


def test_a_healthy_run_is_without_a_fault() -> None:
    run = run_of(case(mfu_ratio=0.2))
    assert why_no_claim(run) == "" and state_words(run) == "No fault found so far"


def check_claims(findings: list[Finding], a_case: Case) -> None:
    """What the screen calls recoverable of any parts of a step is no more than these parts; what
    does not fit names the findings that claim the same time."""
    whole = {
        part.name: share
        for part in (SERVING if a_case.serves else TRAINING)
        if (share := measured_share(part, a_case)) is not None
    }
    claims = {
        finding.rule: parts_of(finding.rule, a_case) for finding in findings if claims_time(finding)
    }
    counted = [
        finding for finding in findings if finding.rule in claims and not finding.alternative_to
    ]
    assert all("recoverable" in stake(finding) for finding in counted)
    for parts in [
        *({part} for part in whole),
        *(set(claims[finding.rule]) for finding in counted),
        set(whole),
    ]:
        of_parts = [
            finding.recoverable_ratio for finding in counted if set(claims[finding.rule]) <= parts
        ]
        if parts <= whole.keys():
            assert sum(of_parts) <= sum(whole[part] for part in parts) + 1e-6
    for finding in findings:
        assert (
            set(finding.alternative_to) <= claims.keys()
            and finding.rule not in finding.alternative_to
        )
        if finding.alternative_to:
            assert "recoverable" not in stake(finding)
            assert all(
                set(claims[rule]) & set(claims[finding.rule]) for rule in finding.alternative_to
            )


def measured_share(part: ClaimedPart, a_case: Case) -> float | None:
    try:
        return part.share(a_case) * (1 if part.name == CORE_WAIT else beside_core_wait(a_case))
    except CantTell:
        return None


COMM: Knobs = {"sharding": "ddp", "nproc": 8, "num_workers": 2}


@pytest.mark.parametrize(
    ("findings", "shares", "counted"),
    [
        ({"comm.slow_link": 0.39, "comm.exposed": 0.30}, {"comm_ratio": 0.4}, ["comm.slow_link"]),
        (
            {
                "gpu.fp32_no_tensor_core": 0.63,
                "gpu.small_batch": 0.59,
                "host.launch_bound": 0.55,
                "gpu.attention_math": 0.47,
                "gpu.elementwise_membw": 0.37,
            },
            {"forward_ratio": 0.3, "backward_ratio": 0.62, "optimizer_ratio": 0.03},
            ["gpu.fp32_no_tensor_core"],
        ),
        (
            {"host.launch_bound": 0.55, "host.sync_stall": 0.54},
            {"is_gpu": 1.0, "gpu.util_ratio": 0.39, "backward_ratio": 0.61},
            ["host.launch_bound"],
        ),
        (
            {"input.slow_storage": 0.6, "hw.clocks_low": 0.5, "hw.shared_gpu": 0.5},
            {
                "is_gpu": 1.0,
                "data_wait_ratio": 0.6,
                "forward_ratio": 0.1,
                "backward_ratio": 0.27,
                "optimizer_ratio": 0.03,
            },
            ["input.slow_storage", "hw.clocks_low"],
        ),
        (
            {"input.slow_storage": 0.3, "host.checkpoint_stall": 0.2},
            {"data_wait_ratio": 0.3, "checkpoint_ratio": 0.2},
            ["input.slow_storage", "host.checkpoint_stall"],
        ),
    ],
)
def test_findings_that_claim_the_same_milliseconds_are_alternatives(
    findings: dict[str, float], shares: dict[str, float], counted: list[str]
) -> None:
    """Their shares of one step were .69, 2.62, 1.09, 1.6 and .5."""
    a_case = case(knobs=COMM, **{name.replace(".", "__"): share for name, share in shares.items()})
    firing = [Finding(rule, "fires", rule, share, "high") for rule, share in findings.items()]
    shown = share_out(firing, a_case)
    assert [finding.rule for finding in shown if not finding.alternative_to] == counted
    assert sum(finding.recoverable_ratio for finding in shown if not finding.alternative_to) <= 1
    check_claims(shown, a_case)
    told = printed(firing_report(run_of(a_case, shown)))
    assert ("One of these: " in told) == (len(counted) < len(findings)) == (" instead" in told)


def test_the_last_steps_and_an_evaluation_that_is_not_among_them_share_one_step() -> None:
    """The shares were 80 and 47 % of one step."""
    a_case = case(
        data_wait_ratio=0.8,
        forward_ratio=0.1,
        backward_ratio=0.1,
        eval_ratio=0.5,
        recent__eval_ratio=0.0,
    )
    firing = [
        Finding("input.slow_storage", "fires", "", 0.8, "high"),
        Finding("host.eval_stall", "fires", "", 0.475, "high"),
    ]
    shown = {
        finding.rule: finding.recoverable_ratio
        for finding in share_out(firing, a_case)
        if not finding.alternative_to
    }
    assert shown == {"input.slow_storage": pytest.approx(0.4, abs=0.005), "host.eval_stall": 0.475}
    gap = unexplained(run_of(a_case, firing[1:]))
    assert (
        gap is not None
        and gap.words == "40 % of each step waits for data, and no rule names the cause"
    )


def test_a_wait_for_a_core_and_the_parts_beside_it_share_one_step() -> None:
    """The shares were 80 and 45 % of one step: the first of a step without the wait."""
    a_case = case(data_wait_ratio=0.8, forward_ratio=0.1, backward_ratio=0.1, runq_ratio=0.45)
    firing = [
        Finding("input.cpu_transform", "fires", "", 0.8, "high"),
        Finding("host.cpu_contention", "fires", "", 0.45, "high"),
    ]
    shown = {finding.rule: finding for finding in share_out(firing, a_case)}
    assert not any(finding.alternative_to for finding in shown.values())
    assert [shown[finding.rule].recoverable_ratio for finding in firing] == [
        pytest.approx(0.44),
        0.45,
    ]
    gap = unexplained(run_of(a_case, firing[1:]))
    assert gap is not None and gap.share == pytest.approx(0.44)


def test_what_rules_conclude_is_a_share_of_the_whole_step() -> None:
    """Only the time of a step without its wait for a core is halved by this wait."""
    parts = {"logging_ratio": 0.4, "forward_ratio": 0.2, "backward_ratio": 0.2}
    alone, beside = (
        {
            finding.rule: finding
            for finding in evaluate(case(runq_ratio=delay, threads=9.0, **parts))
            if claims_time(finding)
        }
        for delay in (0.0, 0.5)
    )
    logging = alone["host.logging_io"], beside["host.logging_io"]
    assert logging[1].recoverable_ratio == pytest.approx(logging[0].recoverable_ratio / 2)
    assert [one.suggestions[0].predicted_speedup for one in logging[:1]] == [
        one.suggestions[0].predicted_speedup for one in logging[1:]
    ], "a trial compares rates without the wait"
    assert beside["host.cpu_contention"].recoverable_ratio == 0.5


def test_a_step_that_only_waits_for_a_core_ends_no_diagnosis() -> None:
    """Without its wait for a core such a step takes no time."""
    a_case = case(knobs=COMM, step_s=0.0, comm__exposed_s=0.1, comm_ratio=0.3)
    assert share_out([Finding("comm.exposed", "fires", "", 0.5, "high")], a_case)[
        0
    ].recoverable_ratio == pytest.approx(0.3)


def test_the_share_of_the_queue_is_at_most_all_of_a_request() -> None:
    """The queue grows: what leaves it now has waited longer than the requests took that end now."""
    signals = {
        "server.queue_s": Signal(12.0, "s", "test"),
        "server.e2e_s": Signal(10.0, "s", "test"),
    }
    a_case = dataclasses.replace(case(), signals=signals, serves=True)
    gap = unexplained(run_with(a_case, [], True))
    assert gap is not None and gap.time == "100 % of the time of a request is a wait in the queue"


def test_a_finding_whose_changes_gained_nothing_claims_nothing() -> None:
    """The next finding about the same time is then no alternative, and what it leaves is named."""
    change = Suggestion({"num_workers": 4}, None, "", "", Tried(0.9, 0.85, 0.95, "worse", "1"))
    lost = Finding("input.too_few_workers", "fires", "Too few", 0.6, "low", suggestions=(change,))
    other = Finding("input.jitter", "fires", "Jitter", 0.4, "low")
    run = starved(without=())
    run.findings = share_out([lost, other], Case.of(run, run.signals))
    assert [finding.alternative_to for finding in run.findings] == [(), ()] and lost.failed
    gap = unexplained(run)
    assert gap is not None and gap.words.startswith("32 % of each step waits for data")
    gained = with_gain(lost, 1.5)
    assert share_out([gained, other], Case.of(run, run.signals))[1].alternative_to == (
        "input.too_few_workers",
    )


def test_a_trial_without_a_gain_leaves_no_alternative_to_its_finding_after_the_diagnosis() -> None:
    change = Suggestion({"num_workers": 4}, None, "", "")
    first = Finding("input.too_few_workers", "fires", "Too few", 0.6, "high", suggestions=(change,))
    other = Finding("input.jitter", "fires", "Jitter", 0.4, "high")
    a_case = Case.of(run := starved(without=()), run.signals)
    shown = share_out([first, other], a_case)
    assert [finding.alternative_to for finding in shown] == [(), ("input.too_few_workers",)]
    trial = Trial("1", run.id, change.changes, "done", Speedup(0.9, 0.85, 0.95), verdict="worse")
    measured = with_trials(shown, [trial], run.id)
    assert [finding.alternative_to for finding in measured] == [(), ()]
    assert measured == share_out(measured, a_case)


def with_gain(finding: Finding, speedup: float) -> Finding:
    """The finding, whose change gains in its trial."""
    (change,) = finding.suggestions
    tried = Tried(speedup, speedup - 0.1, speedup + 0.1, "win", "1")
    return msgspec.structs.replace(
        finding, suggestions=(msgspec.structs.replace(change, tried=tried),)
    )


@pytest.mark.parametrize(
    "rule", [rule for rule in all_rules() if rule.resource == "time"], ids=lambda rule: rule.id
)
def test_every_rule_that_can_recover_time_claims_parts(rule: Rule) -> None:
    serves = rule.subject in ("serving", "load")
    parts = parts_of(rule.id, dataclasses.replace(case(), serves=serves))
    assert parts or rule.id in ("meta.not_steady", "mem.near_capacity"), (
        "its findings would recover nothing, and are no notes"
    )
    assert set(parts) <= {part.name for part in (SERVING if serves else TRAINING)}


README_SAYS = (
    (
        'Findings that claim the same time are shown as alternatives ("one of these"), so'
        " recoverable shares never add up to more than a part."
    ),
    "Time that no finding explains is named as such.",
)


def test_the_readme_says_what_these_tests_hold() -> None:
    readme = " ".join((Path(__file__).parents[2] / "README.md").read_text().split())
    assert all(sentence in readme for sentence in README_SAYS)


@pytest.mark.parametrize("serves", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_no_two_findings_claim_the_same_time_and_what_no_finding_explains_is_named(
    seed: int, serves: bool
) -> None:
    """README_SAYS, on findings of any rules and sizes: 20 cases for each seed."""
    draw = random.Random(seed)
    rules = [
        rule
        for rule in all_rules()
        if rule.resource == "time"
        and (rule.subject == "hardware" or (rule.subject in ("serving", "load")) == serves)
    ]
    for _ in range(20):
        weights = {f"{phase}_ratio": draw.random() ** 4 for phase in PHASES}
        values = {name: weight / sum(weights.values()) for name, weight in weights.items()} | {
            "is_gpu": 1.0,
            "gpu.util_ratio": draw.random(),
        }
        values |= {
            "server.queue_s": draw.random(),
            "server.e2e_s": 1.0,
            "runq_ratio": draw.random() / 2,
        }
        a_case = dataclasses.replace(
            case(),
            signals={name: Signal(value, "", "test") for name, value in values.items()},
            serves=serves,
        )
        chosen = draw.sample(rules, 8)
        firing = [
            Finding(rule.id, "fires", rule.id, draw.random(), "high", note=draw.random() < 0.2)
            for rule in chosen
        ]
        shown = share_out(firing, a_case)
        check_claims(shown, a_case)
        assert share_out(shown, a_case) == shown
        gap = unexplained(run_with(a_case, shown, serves))
        for part in SERVING if serves else TRAINING:
            about = [
                f.recoverable_ratio
                for f in shown
                if part.name in parts_of(f.rule, a_case) and claims_time(f) and not f.alternative_to
            ]
            if part.words and (rest := part.share(a_case) - sum(about)) >= LARGE:
                assert gap is not None and gap.share >= rest - 1e-6


@pytest.mark.parametrize("seed", range(40))
def test_no_state_with_much_time_unexplained_is_called_without_fault(seed: int) -> None:
    """Random shares of a step, random signals that are missing, random settings: 40 cases for each
    seed."""
    draw = random.Random(seed)
    signals = sorted({name for rule in all_rules() for name in rule.reads} | set(HEALTHY))
    for _ in range(40):
        weights = [draw.random() ** 4 for _ in PHASES]
        shares = {
            f"{phase}_ratio": weight / sum(weights)
            for phase, weight in zip(PHASES, weights, strict=True)
        }
        values = {
            name: HEALTHY.get(name, draw.choice((0.0, 0.05, 0.5, 1.0, 2.0)))
            for name in signals
            if draw.random() < 0.8
        } | shares
        # the last steps are as all steps
        values |= {f"recent.{phase}_ratio": shares[f"{phase}_ratio"] for phase in SIDE_WORK}
        values["is_gpu"] = float(draw.random() < 0.3)
        values["runq_ratio"] = draw.random() * draw.choice((0.0, 0.8))
        knobs: Knobs = {**KNOBS, "num_workers": draw.choice((0, 1, 4))}
        if draw.random() < 0.3:
            del knobs["num_workers"]  # the program makes its batches itself
        run = run_of(
            Case(knobs, {name: Signal(value, "", "test") for name, value in values.items()})
        )
        told, findings = printed(firing_report(run)), run.findings
        a_case = Case.of(run, run.signals)
        # what a GPU works on is explained
        unspent = {
            phase: beside_core_wait(a_case)
            * (
                device.with_core_ratio(a_case) * device.lost(a_case, shares[f"{phase}_ratio"])
                if phase in ("data_wait", "h2d", "other")
                else shares[f"{phase}_ratio"]
            )
            for phase in NAMES
        }
        for phase, rules in NAMES.items():
            recovered = sum(
                f.recoverable_ratio
                for f in findings
                if f.rule.startswith(rules) and claims_time(f) and not f.alternative_to
            )
            if unspent[phase] - recovered >= 0.1:
                assert "no fault found" not in told and (
                    "no rule names the cause" in told
                    or "beyond what the findings would free" in told
                )
        check_claims(findings, a_case)
        if not values["is_gpu"]:
            counted = [f for f in findings if claims_time(f) and not f.alternative_to]
            assert sum(f.recoverable_ratio for f in counted) <= 1 + 1e-6
        passes = beside_core_wait(a_case) * sum(
            shares[f"{phase}_ratio"] for phase in ("forward", "backward", "optimizer")
        )
        if passes >= 0.1 and any(
            f.rule.startswith("gpu.") and f.state == "cant_tell" for f in findings
        ):
            assert "no fault found" not in told


# --- what no rule judges, and what a finding is about ---------------------------------------------

BUSY_MACHINE = Finding("host.cpu_contention", "fires", "The training thread waits", note=True)
WELL = Finding("gpu.compute_bound_healthy", "fires", "Healthy", note=True)
LACKS_DATA = Finding("gpu.small_batch", "cant_tell", "", missing=("probe.batch_cost_ratio",))
SLOW = Finding(
    "host.slow_function",
    "fires",
    "",
    0.4,
    evidence=(
        Evidence(
            "stack.function_ratio", 0.5, "ratio", 0.25, "samples", CodePlace("own.py:1", "step")
        ),
    ),
)
SPARE = Finding(
    "host.avoidable_work", "fires", "", 0.1, place=CodePlace("gan.py:28", "<module>", "forward")
)
OPTIMIZER = Place("optimizer", "Triple.step", "a b.py:38", 0.55, caller="a b.py:52 <module>")
CLIP = Place("clip", "clip", "clip.py:12", 0.28, callee="torch.Tensor.norm")
MODEL = Place("forward", "Net.forward", "net.py:12", 0.4, callee="torch.nn.Linear")
ADAM = Place("optimizer", "main", "main.py:30", 0.8, callee="torch.Adam.step")
JACOBIAN = [
    Place("backward", "<module>", "rows.py:34", 0.35, callee="torch.Tensor.backward"),
    Place("backward", "jacobian", "rows.py:17", 0.25, callee="torch.grad"),
    Place("clip", "jacobian", "rows.py:17", 0.16),
    Place("loss", "jacobian", "rows.py:16", 0.02),
    Place("optimizer", "<module>", "rows.py:35", 0.05, callee="torch.Adam.step"),
]
BACKWARD = [
    Place("backward", "<module>", "gan.py:30", 0.5, callee="torch.Tensor.backward"),
    Place("forward", "<module>", "gan.py:28", 0.2, callee="torch.Sequential.forward"),
    Place("optimizer", "<module>", "gan.py:31", 0.05, callee="torch.Adam.step"),
]
WHOLE = [Place("backward", "main", "main.py:29", 0.1, callee="torch.Tensor.backward"), ADAM]


def passes_of(places: list[Place], *findings: Finding) -> Run:
    """A job without time that is unexplained, with these functions."""
    run = run_of(case(data_wait_ratio=0.01, other_ratio=0.01), list(findings))
    return msgspec.structs.replace(run, places=places)


@pytest.mark.parametrize(
    ("places", "findings", "words"),
    [
        ([OPTIMIZER], (), "55 % of the step is in Triple.step at a b.py:38, in the optimizer"),
        ([CLIP], (BUSY_MACHINE,), "28 % of the step is in clip at clip.py:12, after the backward"),
        ([MODEL], (LACKS_DATA,), "40 % of the step is in Net.forward at net.py:12, in the forward"),
        ([MODEL], (), ""),  # rules about the passes have judged the operators of the model
        (WHOLE, (LACKS_DATA,), "80 % of the step is in torch.Adam.step, called at main.py:30 main"),
        (WHOLE, (), ""),
        (
            [msgspec.structs.replace(ADAM, part="backward", share_ratio=0.1), ADAM],
            (LACKS_DATA,),
            "80 % of the step is in torch.Adam.step, in the optimizer: no rule",
        ),
        ([msgspec.structs.replace(OPTIMIZER, share_ratio=0.1)], (LACKS_DATA,), ""),
        ([CLIP, msgspec.structs.replace(CLIP, function="other", share_ratio=0.3)], (), "30 %"),
        ([msgspec.structs.replace(OPTIMIZER, function="step", line="own.py:9")], (SLOW,), ""),
        ([CLIP], (Finding("gpu.optimizer_unfused", "fires", "", 0.2),), ""),
        # the loop over the rows, with its time in three parts, before the line of the whole pass
        (JACOBIAN, (LACKS_DATA,), "43 % of the step is in jacobian at rows.py:17, in the backward"),
        (JACOBIAN, (), ""),
        (
            BACKWARD,
            (LACKS_DATA,),
            "50 % of the step is in torch.Tensor.backward, called at gan.py:30",
        ),
        (BACKWARD, (), ""),
        (BACKWARD, (LACKS_DATA, SPARE), ""),
        ([*BACKWARD, MODEL], (LACKS_DATA,), "40 % of the step is in Net.forward at net.py:12"),
    ],
)
def test_a_function_with_most_of_a_part_that_no_rule_judges_is_said(
    places: list[Place], findings: tuple[Finding, ...], words: str
) -> None:
    run = passes_of(places, Finding("input.slow_storage", "clear", ""), *findings)
    one = unjudged(run)
    assert (one.words if one is not None else "").startswith(words) and (one is None) == (not words)
    if one is not None:
        assert one.words in why_no_claim(run) and one.words in printed(firing_report(run))
        assert one.words in printed(details_report(run))
        assert one.words in still_open(run)


@pytest.mark.parametrize(
    ("findings", "open_question"),
    [
        ((BUSY_MACHINE, LACKS_DATA), True),
        ((BUSY_MACHINE,), False),  # all rules have judged the passes
        ((WELL, LACKS_DATA), False),
        ((SLOW, LACKS_DATA), False),
        ((LACKS_DATA,), True),
    ],
)
def test_a_note_never_takes_the_place_of_the_open_question(
    findings: tuple[Finding, ...], open_question: bool
) -> None:
    """A busy machine was all that was said of a job whose optimizer took 86 % of a step."""
    run = passes_of([], *findings)
    assert bool(still_open(run)) == open_question
    asked = "1 rule has no data about the passes and the optimizer"
    told = [printed(report(run)) for report in (firing_report, details_report)]
    assert [asked in text for text in told] == [open_question] * 2
    assert (stake(BUSY_MACHINE), stake(WELL)) == ("a note", "nothing to recover")


def test_a_finding_has_the_function_with_most_of_the_time_that_it_claims() -> None:
    a_case = dataclasses.replace(
        case(data_wait_ratio=0.6),
        places=(
            Place("data_wait", "rebuild", "lists.py:30", 0.5),
            Place("data_wait", "other", "lists.py:9", 0.1),
            Place("forward", "main", "lists.py:40", 0.4),
        ),
    )
    finding = Finding("input.ipc_collate", "fires", "", 0.4, summary="tiny tensors")
    (found,) = share_out([finding], a_case)
    assert found.place == CodePlace("lists.py:30", "rebuild", "data_wait")
    assert found.summary.endswith("Most of this time is in rebuild at lists.py:30, in loading")
    (again,) = share_out([found], a_case)
    assert again == found
    spread = dataclasses.replace(
        a_case, places=tuple(Place("data_wait", f"f{n}", f"a.py:{n}", 0.1) for n in range(6))
    )
    assert share_out([finding], spread)[0] == finding
    fit = Place("data_wait", "main", "fit.py:48", 0.6, callee="lightning.Trainer.fit")
    by_trainer = dataclasses.replace(
        a_case, places=(fit, msgspec.structs.replace(fit, part="backward", share_ratio=0.2))
    )
    assert share_out([finding], by_trainer)[0] == finding, "trainer.fit() is no cause"
    exchange = Place("comm", "main", "ddp.py:28", 0.43, callee="torch.DistributedDataParallel")
    exchanges = dataclasses.replace(
        case(comm_ratio=0.6),
        places=(exchange, msgspec.structs.replace(exchange, part="forward", share_ratio=0.03)),
    )
    (waits,) = share_out([Finding("comm.exposed", "fires", "", 0.4)], exchanges)
    assert waits.place == exchange.code, "the line of one pass runs no loop"
    (named,) = share_out([SLOW], a_case)
    assert named.place == CodePlace("own.py:1", "step") and "own.py:1" in named.summary


def test_time_at_the_line_that_a_finding_names_is_explained_in_each_part() -> None:
    """An iterator for each batch: a part of its time is outside of the phases."""
    place = CodePlace("next.py:33", "main")
    evidence = Evidence("loader.calls_per_epoch", 1.0, "", None, "calls", place)
    finding = Finding("input.epoch_restart", "fires", "", 0.4, evidence=(evidence,))
    run = run_of(case(data_wait_ratio=0.42, other_ratio=0.5, forward_ratio=0.05), [finding])
    gap = unexplained(run)
    assert gap is not None and "outside of all phases" in gap.words
    explained = msgspec.structs.replace(
        run,
        places=[Place("feed", "main", "next.py:33", 0.45), Place("forward", "f", "a.py:1", 0.1)],
    )
    assert unexplained(explained) is None


def test_causes_that_a_finding_excludes_are_not_called_possible_below_it() -> None:
    run = starved(without=())
    run.findings = [Finding("input.shared_lock", "fires", "One lock", 0.3)]
    gap = unexplained(run)
    told = printed(firing_report(run))
    assert gap is not None and gap.named and "beyond the findings: " in told
    assert "possible causes" not in told and "not explained" not in told
