"""The labelled GPU jobs: how a run is compared with its label, and the table of common faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import machine
from benchmarks.own_job import gpu_cases
from benchmarks.own_job.gpu_cases import (
    CASES,
    COLUMNS,
    COMMON,
    Case,
    Row,
    common_faults,
    judged,
    keep_rows,
    kept_today,
    summed_up,
)

FAULTY, HEALTHY, FULL = (
    Case("a fault", ("host.launch_bound",)),
    Case("none", ()),
    Case("full", ("mem.near_capacity",)),
)


def run(*fired: str, notes: tuple[str, ...] = (), mfu: float = 0.3) -> dict[str, Any]:
    findings = [
        {
            "rule": rule,
            "state": "fires",
            "note": rule in notes,
            "confidence": "high",
            "recoverable_ratio": 0.4,
        }
        for rule in (*fired, *notes)
    ]
    return {"findings": findings, "summary": {"step_time_s": {"p50": 0.01}, "mfu_ratio": mfu}}


@pytest.mark.parametrize(
    ("case", "said", "right", "harmful"),
    [
        (FAULTY, run("host.launch_bound"), True, False),
        (FAULTY, run("host.sync_stall", "host.launch_bound"), False, False),
        (FAULTY, run(), False, True),
        (FAULTY, run(notes=("gpu.compute_bound_healthy",)), False, True),
        (HEALTHY, run(), True, False),
        (HEALTHY, run("host.launch_bound"), False, True),
        (HEALTHY, run(notes=("hw.power",)), True, False),
        (FULL, run(notes=("mem.near_capacity",)), True, False),
        (FULL, run("host.launch_bound", notes=("mem.near_capacity",)), False, False),
    ],
)
def test_a_run_is_compared_with_its_label(
    case: Case, said: dict[str, Any], right: bool, harmful: bool
) -> None:
    row = judged(case, said)
    assert (row.right, row.harmful) == (right, harmful)


def test_each_common_fault_has_one_case_on_each_card() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names) >= 44
    cells = [(case.common, case.card) for case in CASES if case.common]
    assert sorted(cells) == sorted((fault, card) for fault in COMMON for card in COLUMNS)


def test_the_table_has_what_is_on_top_of_each_cell_and_what_was_not_run() -> None:
    right = Row(
        "x",
        "l4",
        COMMON[1],
        ("a",),
        "a",
        right=True,
        harmful=False,
        recoverable=0.41,
        confidence="low",
    )
    wrong = Row("y", "h100", COMMON[1], ("a",), "-", right=False, harmful=True)
    line = common_faults([right, wrong]).splitlines()[3]
    assert line == f"| {COMMON[1]} | - **(wrong)** | not run | a, 41%, low | not run |"


def test_a_case_that_runs_again_replaces_its_result_of_the_day(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in (machine, gpu_cases):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    monkeypatch.setattr(machine, "commit", lambda: "0123456789")
    first, second = (
        Row(case.name, case.card, case.common, case.truth, "-", right=False, harmful=False)
        for case in CASES[:2]
    )
    keep_rows([first, second])
    keep_rows([first._replace(right=True)])
    assert [row.right for row in kept_today().values()] == [True, False]


@pytest.mark.parametrize(
    ("right", "mfu", "harmful", "code"),
    [(19, 0.4, 0, 0), (18, 0.4, 0, 1), (20, 1.01, 0, 1), (20, 0.4, 1, 1)],
)
def test_the_exit_code(right: int, mfu: float, harmful: int, code: int) -> None:
    rows = [Row(str(n), "l4", "", (), "-", n < right, n < harmful, mfu=mfu) for n in range(20)]
    assert summed_up(rows) == code
