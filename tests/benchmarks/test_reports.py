"""The programs of public reports, and the verdict about a finding."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.own_job.reports.__main__ import PROGRAMS, Row, diagnosis_in, named
from benchmarks.own_job.reports.cases import CASES
from gpuconsole.diagnosis.engine import all_rules

MARK = "# slow"


def test_each_report_has_its_program_and_each_program_marks_its_cause() -> None:
    assert {path.stem for path in PROGRAMS.glob("*.py")} == {*CASES, "pace"}
    unmarked = {
        name
        for name, case in CASES.items()
        if case.line and MARK not in (PROGRAMS / f"{name}.py").read_text(encoding="utf-8")
    }
    assert not unmarked


def test_the_rules_of_a_case_exist() -> None:
    known = {rule.id for rule in all_rules()}
    assert {rule for case in CASES.values() for rule in (*case.truth, *case.also)} <= known


def test_a_line_counts_if_it_is_marked() -> None:
    lines = (PROGRAMS / "matcher.py").read_text(encoding="utf-8").splitlines()
    slow = next(number for number, line in enumerate(lines, 1) if MARK in line)
    assert named("matcher", f"most of it at matcher.py:{slow} Matcher.forward")
    assert not named("matcher", "most of it at matcher.py:1 <module>")


def test_an_open_diagnosis_is_read_with_its_line() -> None:
    summary = "run 1\n\n  diagnosis: no conclusion: 49 % is in root at a.py:16\n\n  more a.py:3"
    assert diagnosis_in(summary) == "49 % is in root at a.py:16"
    assert not Row("a", is_open=True, line=True).right


@pytest.mark.parametrize(
    ("row", "right"),
    [
        (Row("a", cause=1, line=True), True),
        (Row("a", cause=1, line=None), True),
        (Row("a", cause=1, line=False), False),
        (Row("a", cause=2, line=True), False),
        (Row("a"), False),
        (Row("a", cause=1, line=True, accused=("input.jitter",)), False),
    ],
)
def test_a_row_is_right_with_the_cause_on_top_its_line_and_nothing_else_accused(
    row: Row, right: bool
) -> None:
    assert row.right is right


def test_a_program_tells_its_rate_at_its_end() -> None:
    code = "import pace\nwhile pace.goes_on():\n    with pace.part():\n        sum(range(1000))"
    environment = {"SECONDS": "0.2", "WARM_S": "0.1", "PYTHONPATH": str(PROGRAMS)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert '"rate": ' in done.stderr and not done.stdout
