"""`gpuconsole rules ID` prints the signals that a rule reads. conftest.py compares each read in these tests with the printed list."""

import pytest

from gpuconsole.diagnosis.engine import all_rules
from gpuconsole.diagnosis.reads import explore, signals_read
from gpuconsole.diagnosis.rule import Rule
from tests.diagnosis.cases import case


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.id)
def test_a_rule_fires_within_the_runs_that_find_its_signals(rule: Rule) -> None:
    read, fired = explore(rule)
    assert fired
    assert tuple(read) == signals_read(rule), "always the same"


def test_a_case_collects_what_was_asked_for() -> None:
    a_case = case()
    a_case.value("step_s")
    a_case.get("ranks.busy_ratio", 0.0)
    a_case.if_known("cores", "gc.pause_ratio")
    a_case.evidence("threads")
    assert list(a_case.read) == ["step_s", "ranks.busy_ratio", "cores", "gc.pause_ratio", "threads"]
