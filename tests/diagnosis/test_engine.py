import re

import pytest

from gpuconsole.diagnosis.engine import Hysteresis, all_rules, evaluate
from gpuconsole.diagnosis.rule import Threshold
from gpuconsole.model.finding import Finding
from tests.diagnosis.cases import case


def states(findings: list[Finding]) -> dict[str, str]:
    return {finding.rule: finding.state for finding in findings}


def test_a_finding_opens_on_the_second_window_and_closes_well_below_its_threshold() -> None:
    steadied, rule = Hysteresis(), "host.logging_io"
    loud = {"probe__step_no_side_work_s": 0.09, "mfu_ratio": 0.3}
    seen = [
        states(steadied.update(evaluate(case(logging_ratio=share, **loud))))[rule]
        for share in (0.10, 0.10, 0.04, 0.02, 0.06)
    ]
    assert seen == ["cant_tell", "fires", "fires", "clear", "cant_tell"]


def test_a_finding_seen_once_is_waited_for_and_one_that_is_shown_or_gone_is_not() -> None:
    steadied = Hysteresis()
    loud = {"probe__step_no_side_work_s": 0.09, "mfu_ratio": 0.3}
    waiting, opened = [], []
    for share in (0.01, 0.10, 0.10, 0.02):
        steadied.update(evaluate(case(logging_ratio=share, **loud)))
        waiting.append(steadied.waiting)
        opened.append(bool(steadied.opened))
    assert waiting == [False, True, False, False]
    assert opened == [False, False, True, False]


def test_findings_are_ranked_by_what_they_recover() -> None:
    both = evaluate(
        case(
            logging_ratio=0.1, checkpoint_ratio=0.3, mfu_ratio=0.3, probe__step_no_side_work_s=0.06
        )
    )
    assert [finding.rule for finding in both[:2]] == ["host.checkpoint_stall", "host.logging_io"]


def test_a_rule_that_fails_can_not_tell_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loud = case(logging_ratio=0.3, probe__step_no_side_work_s=0.07, mfu_ratio=0.3)
    before = states(evaluate(loud))
    broken = next(rule for rule in all_rules() if rule.id == "host.eval_stall")
    monkeypatch.setattr(type(broken), "check", lambda self, case: 1 / 0)
    findings = evaluate(loud)
    assert states(findings) == {**before, "host.eval_stall": "cant_tell"}
    failed = next(finding for finding in findings if finding.rule == "host.eval_stall")
    assert re.fullmatch(r"the rule failed at test_engine\.py:\d+: division by zero", failed.summary)


def test_a_threshold_is_a_number_that_evidence_shows_as_the_rule_wrote_it() -> None:
    share, restarts = (
        Threshold("share", 0.05, "ratio", "survey"),
        Threshold("restarts", 2, "", "survey"),
    )
    assert (0.1 / share, share.name, share.source) == (2.0, "share", "survey")
    shown = case(runq_ratio=0.2).evidence(
        ("runq_ratio", share), ("runq_ratio", restarts), "runq_ratio"
    )
    assert [type(entry.threshold) for entry in shown] == [float, int, type(None)]
    assert [entry.threshold for entry in shown] == [0.05, 2, None]


def test_evidence_that_may_be_missing_leaves_out_what_was_not_measured() -> None:
    shown = case().if_known("step_s", ("not.measured", 1.0), ("runq_ratio", 0.15))
    assert [(entry.signal, entry.threshold) for entry in shown] == [
        ("step_s", None),
        ("runq_ratio", 0.15),
    ]
