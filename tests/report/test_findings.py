"""Findings on the main screen, on the details page and in the terminal."""

from __future__ import annotations

import msgspec

from gpuconsole.diagnosis.precedence import FIRST, rank
from gpuconsole.diagnosis.rule import NOT_ON_GPU
from gpuconsole.mcp.readings import conclusion
from gpuconsole.model.finding import Finding, Signal, Suggestion
from gpuconsole.model.run import Run, Summary
from gpuconsole.notebook.page import _finding
from gpuconsole.report.parts import printed
from gpuconsole.report.run.diagnosis import (
    finding_report,
    firing_report,
    paint_details,
    paint_diagnosis,
    recoverable,
    rule_counts,
    stake,
    state_words,
)
from gpuconsole.session import facts
from gpuconsole.session.api import View
from gpuconsole.session.figures.distributions import distribution
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


def test_a_finding_that_claims_the_same_time_is_an_alternative_everywhere() -> None:
    """What is called recoverable twice would be time that is there once."""
    starved = msgspec.structs.replace(STARVED, recoverable_ratio=0.6)
    other = msgspec.structs.replace(
        FP32, note=False, recoverable_ratio=0.5, alternative_to=(STARVED.rule,)
    )
    view = of(starved, other)
    run = view.runs[-1]
    screen = text(paint_diagnosis(view, "", 100, 30, True))
    assert (
        "60% recoverable" in screen.replace(" %", "%")
        and "50% instead" in screen.replace(" %", "%")
        and "One of these: 1, 2" in screen
    )
    page = printed(firing_report(run))
    assert (
        page.count("recoverable") == 1
        and page.count("One of these: 1, 2. They claim the same time") == 2
    )
    assert msgspec.json.decode(msgspec.json.encode(run))["findings"][1]["alternative_to"] == [
        STARVED.rule
    ]
    answer = conclusion(other, run)
    assert (
        answer.alternative_to == [STARVED.rule]
        and "50 % instead" in _finding(answer)
        and "60 % recoverable" in _finding(conclusion(starved, run))
    )


def test_the_clear_rules_are_listed_by_their_positive_title() -> None:
    clear = Finding(
        "input.too_few_workers",
        "clear",
        "Enough dataloader workers",
        summary="data wait takes 2 % of a step",
    )
    page = " ".join(text(paint_details(of(clear), 100)).split())
    assert "Clear (1)" in page
    assert "input.too_few_workers Enough dataloader workers: data wait takes 2 % of a step" in page


def test_a_note_with_a_predicted_gain_does_not_say_that_nothing_can_be_recovered() -> None:
    note = Finding("gpu.compute_bound_healthy", "fires", "No bottleneck found", note=True)
    assert stake(note) == "nothing to recover"
    optional = msgspec.structs.replace(note, suggestions=FP32.suggestions)
    assert stake(optional) == "optional: changes numerics, 1.10-1.25x"
    unpredicted = Suggestion({"num_workers": 2}, None, "", "")
    assert stake(msgspec.structs.replace(note, suggestions=(unpredicted,))) == "optional"


def test_code_to_copy_stands_under_the_place_where_it_goes() -> None:
    """A flag of a model server is no code of the user's own."""
    places = {
        "num_workers": "in your own code:",
        "num_gpu_blocks_override": "server flags:",
        "concurrency": "in your client:",
    }
    for knob, words in places.items():
        change = Suggestion({knob: 4}, None, "", "the code")
        page = printed(
            finding_report(
                1, msgspec.structs.replace(STARVED, suggestions=(change,)), of(STARVED).runs[-1]
            )
        )
        assert f"{words}\n" in page, page


def test_the_recoverable_time_is_a_part_of_the_whole_step() -> None:
    starved = msgspec.structs.replace(STARVED, recoverable_ratio=0.6)
    run = Run(
        "1",
        "x",
        "training.gpt",
        {},
        "cpu",
        summary=Summary(steps=9, step_time_s=distribution([0.2] * 9)),
    )
    words = "120 of the 200 ms of each step"
    run.signals = {"runq_ratio": Signal(0.25, "ratio", "")}
    assert recoverable(starved, run) == words
    page = " ".join(printed(finding_report(1, starved, run)).split())
    assert "60 % recoverable" in page and f"Recoverable: {words}." in page
    assert recoverable(msgspec.structs.replace(starved, note=True), run) == ""


def test_the_rules_without_a_fault_are_counted_in_plain_words() -> None:
    clear, unsure = (
        Finding("a", "clear", "A"),
        Finding("b", "cant_tell", "B", missing=("comm_ratio",)),
    )
    assert rule_counts([clear, clear, unsure]) == "2 rules are clear, 1 has no data"
    not_on_gpu = msgspec.structs.replace(clear, summary=NOT_ON_GPU)
    assert rule_counts([clear, not_on_gpu, unsure]) == "1 rule is clear, 1 has no data"
    assert rule_counts([clear]) == "1 rule is clear"
    assert rule_counts([unsure, unsure]) == "2 rules have no data"
    assert rule_counts([]) == ""
    run = Run(
        "1", "x", "training.gpt", {}, "cpu", "finished", findings=[clear, unsure], steady_from_s=1.0
    )
    assert (
        printed(firing_report(run))
        == "diagnosis: no fault found: 1 rule is clear, 1 has no data (missing: comm_ratio)"
    )


def test_a_run_that_measures_says_what_it_waits_for() -> None:
    run = Run("1", "x", "training.gpt", {}, "cpu", "running")
    assert state_words(run) == "Measuring: waiting for the first step to end"
    assert (
        state_words(msgspec.structs.replace(run, summary=Summary(steps=9)))
        == "Measuring: the rate is not steady yet"
    )
