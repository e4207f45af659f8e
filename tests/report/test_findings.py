"""Findings on the main screen, on the details page and in the terminal."""

from __future__ import annotations

import msgspec

from gpuconsole.diagnosis.precedence import FIRST, rank
from gpuconsole.model.finding import Finding
from gpuconsole.report import facts
from gpuconsole.report.run.diagnosis import paint_diagnosis
from gpuconsole.report.run.findings import paint_details
from gpuconsole.session.api import View
from tests.tui.fake_session import FP32, STARVED, gpu_view
from tests.tui.test_paint import text

ERRORS = Finding(FIRST, "fires", "Hardware errors", 0.0, "high", "2 uncorrected ECC errors")


def of(*findings: Finding) -> View:
    view = gpu_view()
    run = msgspec.structs.replace(view.runs[-1], findings=rank(list(findings)))
    return msgspec.structs.replace(view, runs=(view.runs[0], run))


def test_hardware_errors_come_first_on_the_screen() -> None:
    view = of(STARVED, FP32, ERRORS)
    assert [finding.rule for finding in facts.firing(view.run)] == [FIRST, STARVED.rule, FP32.rule]
    painted = text(paint_diagnosis(view, "", 100, 20, True))
    assert painted.index("1 Hardware errors") < painted.index("2 Too few dataloader workers")
    assert text(paint_details(view, 100)).startswith("1 Hardware errors")


def test_the_clear_rules_are_listed_by_their_positive_title() -> None:
    clear = Finding("input.too_few_workers", "clear", "Enough dataloader workers", summary="data wait takes 2 % of a step")
    page = " ".join(text(paint_details(of(clear), 100)).split())
    assert "Clear (1)" in page
    assert "input.too_few_workers Enough dataloader workers: data wait takes 2 % of a step" in page
