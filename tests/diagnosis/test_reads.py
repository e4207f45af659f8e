"""A rule declares the signals that it reads. conftest.py compares each read in these tests with the
declaration."""

import pytest

from gpuconsole.diagnosis.engine import all_rules
from gpuconsole.diagnosis.rule import Rule
from tests.diagnosis.cases import case
from tests.diagnosis.exploring import explore


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.id)
def test_a_rule_reads_the_signals_that_it_declares(rule: Rule) -> None:
    read, fired = explore(rule)
    assert fired, "its last branch has not run: more cases are needed"
    assert set(read) == set(rule.reads)


def test_a_case_collects_what_was_asked_for() -> None:
    a_case = case()
    a_case.value("step_s")
    a_case.get("ranks.busy_ratio", 0.0)
    a_case.if_known("cores", "gc.pause_ratio")
    a_case.evidence("threads")
    assert list(a_case.read) == ["step_s", "ranks.busy_ratio", "cores", "gc.pause_ratio", "threads"]
