"""Figures that stand twice: in the header, the answer, the bar, the panels, the terminal and the
report they are equal, or a sentence says why not."""

from __future__ import annotations

import re

import msgspec
import pytest

from gpuconsole.model.experiments import Speedup, Trial
from gpuconsole.model.figures import Attainable, Figure, RatePair, TimePart
from gpuconsole.model.finding import Evidence, Finding, Interval, Signal, Suggestion
from gpuconsole.model.run import Distribution, Run, Summary
from gpuconsole.model.snapshot import Snapshot
from gpuconsole.report.run.breakdown import paint_steps
from gpuconsole.report.run.diagnosis import paint_details, paint_diagnosis
from gpuconsole.report.run.runs import paint_runs
from gpuconsole.report.screen.answer import paint_answer
from gpuconsole.report.screen.chart import paint_throughput
from gpuconsole.report.session import session_text
from gpuconsole.report.share.markdown import markdown_page
from gpuconsole.report.share.session import session_document
from gpuconsole.session import facts
from gpuconsole.session.api import View
from gpuconsole.tui.widgets.header import paint_header
from tests.tui.fake_session import FakeSession, cpu_view
from tests.tui.test_paint import text

AFTER = {"data_wait": 0.34, "forward": 0.22, "backward": 0.42, "optimizer": 0.02}
WAITS = Finding(
    "input.too_few_workers",
    "fires",
    "Too few DataLoader workers",
    0.26,
    "high",
    "a step waits 30 % of its time for data",
    (
        Evidence(
            "data_wait_ratio", 0.30, "ratio", 0.1, "step breakdown, run-queue delay taken off, n=80"
        ),
    ),
    (
        Suggestion(
            {"num_workers": 4},
            Interval(1.21, 1.49),
            "more batches are made while the model computes",
            "DataLoader(num_workers=4)",
        ),
    ),
)
BUSY = Finding(
    "gpu.compute_bound_healthy",
    "fires",
    "Compute-bound and healthy",
    0.0,
    "high",
    "MFU 29 %; no bottleneck found",
    (Evidence("mfu_ratio", 0.29, "ratio", 0.4, "step breakdown"),),
    (
        Suggestion(
            {"precision": "bf16"},
            Interval(1.41, 1.88),
            "autocast",
            "with torch.autocast('cpu', torch.bfloat16):",
        ),
    ),
    note=True,
)


def run(number: str, rate: float, **more: object) -> Run:
    step = 8000 / rate
    summary = Summary(
        tokens_per_s=Distribution(rate, 21.0, 60, rate),
        step_time_s=Distribution(step, 0.1, 80, step, step, step, step), phases_ratio=AFTER,
        flops_per_s=41.3e9, mfu_ratio=0.27, mfu_peak_source="fp32 matrix product, calibrated",
        steps=80, overhead_s_per_step=236e-6,
    )  # fmt: skip
    base = Run(
        number,
        "data-starved",
        "training.gpt",
        {"num_workers": 0, "precision": "fp32"},
        "cpu",
        "finished",
        summary=summary,
        steady_from_s=2.0,
    )
    base.signals = {"runq_ratio": Signal(0.09, "ratio", "/proc/thread-self/schedstat")}
    base.attainable = Attainable(
        (RatePair("tokens", "tokens", "tokens/s", rate, 3640.0),), "compute"
    )
    return msgspec.structs.replace(base, **more)


def session(*findings: Finding, after: float = 1490.0) -> View:
    """A trial measured 1.80x. The mean rates before and after differ by another factor, and the
    thread waits for a core."""
    second = run(
        "2",
        after,
        knobs={"num_workers": 2, "precision": "fp32"},
        changes={"num_workers": 2},
        state="running",
        findings=list(findings),
    )
    kept = Trial(
        "1",
        "1",
        {"num_workers": 2},
        "done",
        Speedup(1.80, 1.62, 2.01),
        None,
        12,
        Interval(1.45, 1.69),
        "win",
        True,
    )
    kept = msgspec.structs.replace(kept, clock="contention_free")
    before = run("1", 1000.0, findings=[WAITS])
    latest = {**cpu_view().latest, "workload.tokens_per_s{device=cpu}": 1512.0}
    return cpu_view(
        now=97.0,
        latest=latest,
        runs=(before, second),
        trials=(kept,),
        run_times=(10.0, 61.0),
        trial_times={"1": (40.0, 60.0)},
        running_s=35.0,
    )


def snapshot(view: View) -> Snapshot:
    return Snapshot(
        created="",
        gpuconsole="",
        environment=view.environment,
        runs=list(view.runs),
        trials=list(view.trials),
    )


def pages(view: View) -> dict[str, str]:
    """Each place with its words; blanks and frames are one blank."""
    made = {
        "header": text(paint_header(view, 200, 3)),
        "answer": text(paint_answer(view, next(iter(facts.suggestions(view)), ""), (), 200, 2)),
        "bar": text(paint_steps(view, 200, 12)),
        "chart": text(paint_throughput(view, FakeSession(view).history, 140, 14)),
        "findings": text(paint_diagnosis(view, "", 120, 40, True)),
        "tried": text(paint_runs(view, 120, 12, True)),
        "details": text(paint_details(view, 140)),
        "terminal": session_text(snapshot(view)),
        "report": markdown_page(session_document(snapshot(view))).replace("\\", ""),
    }
    return {
        place: " ".join(re.sub(r"[│╭╮╰╯─*|]", " ", page).split()) for place, page in made.items()
    }


TWICE = (
    ("speedup of the kept change", "1.80x", ("header", "chart", "tried", "terminal", "report")),
    ("its interval", "[1.62, 2.01]", ("tried", "terminal", "report")),
    ("rate after the change", "1 490 ± 21", ("tried", "details", "terminal", "report")),
    ("rate before the change", "1 000 ± 21", ("tried", "terminal", "report")),
    ("wait for data in the bar", "data[_ ]wait 34 %", ("bar", "details", "terminal", "report")),
    ("time of a step", "5.37 s", ("bar", "details", "terminal", "report")),
    ("MFU of the run", "MFU 27 % of fp32", ("chart", "details", "terminal", "report")),
    (
        "part of the hardware limit",
        "41 % of hardware limit",
        ("header", "details", "terminal", "report"),
    ),
    (
        "share of the finding",
        "26 % recoverable",
        ("answer", "findings", "details", "terminal", "report"),
    ),
    ("predicted speedup", "1.21-1.49x", ("answer", "findings", "details", "terminal", "report")),
    (
        "cost of the agent",
        "236 µs per step, measured by the agent",
        ("details", "terminal", "report"),
    ),
)
"""Figures that stand in several places: what it is, its text in every place, and these places."""


@pytest.mark.parametrize(
    ("figure", "words", "places"), TWICE, ids=[figure for figure, _, _ in TWICE]
)
def test_a_figure_is_the_same_wherever_it_stands(
    figure: str, words: str, places: tuple[str, ...]
) -> None:
    shown = pages(session(WAITS))
    pattern = words if "[_ ]" in words else re.escape(words)
    missing = [place for place in places if not re.search(pattern, shown[place])]
    assert not missing, {place: shown[place] for place in missing}


APART = (
    "1.80x in alternating blocks, without waits for a CPU core; the rates before and after differ"
    " by 1.49x"
)


def test_rates_that_do_not_have_the_ratio_of_the_trial_stand_beside_it_without_a_cause() -> None:
    shown = pages(session(WAITS))
    assert all(APART in shown[place] for place in ("tried", "terminal", "report")), shown
    equal = pages(session(WAITS, after=1790.0))
    assert not any("alternating blocks" in page for page in equal.values()), "the same within 2 %"
    assert not any(
        "alternating blocks" in page for page in pages(session_before_it_is_steady()).values()
    )


def session_before_it_is_steady() -> View:
    view = session(WAITS)
    return msgspec.structs.replace(
        view, runs=(view.runs[0], msgspec.structs.replace(view.runs[1], steady_from_s=None))
    )


def test_shares_of_findings_that_leave_out_the_wait_for_a_core_say_so() -> None:
    """The bar has 34 % of waiting for data and the run an MFU of 27 %; the evidence of a finding
    has 30 % and 29 %."""
    words = (
        "evidence and the predictions of findings leave out the wait for a CPU core (9 % of a"
        " step); recoverable shares, the bar and the MFU of the run include it"
    )
    for finding in (WAITS, BUSY):
        shown = pages(session(finding))
        assert all(words in shown[place] for place in ("findings", "details", "terminal")), shown
    assert words in pages(session(WAITS))["report"]
    quiet = session(WAITS)
    for one in quiet.runs:
        one.signals.clear()
    assert not any(words in page for page in pages(quiet).values())


def test_times_of_a_step_that_differ_say_which_time_they_are() -> None:
    """The waterfall ends at the mean rate, and the models leave out the wait for a core."""
    view = session(WAITS)
    last = view.runs[-1]
    parts = (
        TimePart("attainable", "at the hardware limit", 2.20),
        TimePart("data_wait", "data wait", 3.15, 2150.0),
    )
    attainable = msgspec.structs.replace(last.attainable, parts=parts, per="step")
    signals = {**last.signals, "step_s": Signal(4.89, "s", "step breakdown")}
    models = [
        Figure(
            "flops.step_s",
            "Time of a step if arithmetic were the limit",
            "s",
            predicted=2.2,
            measured=4.89,
        )
    ]
    apart = msgspec.structs.replace(last, attainable=attainable, signals=signals, figures=models)
    shown = session_text(snapshot(msgspec.structs.replace(view, runs=(apart,))))
    assert "5.35 s is the time at the mean rate; the mean step takes 5.37 s" in shown
    assert "measured step times leave out the wait for a CPU core: 4.89 of 5.37 s" in shown
    slower = msgspec.structs.replace(
        apart, signals={**signals, "step_s": Signal(6.02, "s", "step breakdown")}
    )
    shown = session_text(snapshot(msgspec.structs.replace(view, runs=(slower,))))
    assert "leave out the wait for a CPU core: 9 % of a step" in shown, (
        "the last steps were slower than those before"
    )
    mean = last.summary.step_time_s.mean if last.summary.step_time_s else 0.0
    parts = (
        TimePart("attainable", "at the hardware limit", 2.20),
        TimePart("data_wait", "data wait", mean - 2.20, 2150.0),
    )
    signals["step_s"] = Signal(mean, "s", "step breakdown")
    same = msgspec.structs.replace(
        apart, attainable=msgspec.structs.replace(attainable, parts=parts), signals=signals
    )
    shown = session_text(snapshot(msgspec.structs.replace(view, runs=(same,))))
    assert "at the mean rate" not in shown and "measured step times" not in shown


def test_the_clock_of_the_header_is_the_end_of_the_axis() -> None:
    """The current run began 36 s ago, and the work 87 s ago."""
    view = session(WAITS)
    shown = pages(view)
    assert "running 01:27" in shown["header"]
    assert re.search(r"00:00( \d\d:\d\d)* 01:20", shown["chart"]), shown["chart"]
    ended = msgspec.structs.replace(
        view,
        runs=(view.runs[0], msgspec.structs.replace(view.runs[1], state="finished")),
        closed_s=view.now,
    )
    assert "finished 01:27" in pages(ended)["header"], (
        "the clock stops, and does not jump back to the duration of the last run"
    )


def test_nothing_to_recover_never_stands_beside_a_predicted_speedup() -> None:
    shown = pages(session(BUSY))
    assert "nothing to recover" not in " ".join(shown.values())
    assert (
        "optional, changes numerics: compute in bf16"
        in pages(without_trial(session(BUSY)))["answer"]
    )
    assert all(
        "optional: changes numerics, 1.41-1.88x" in shown[place]
        for place in ("details", "terminal")
    )
    alone = pages(session(msgspec.structs.replace(BUSY, suggestions=())))
    assert "nothing to recover" in alone["details"] and "predicted" not in alone["details"]


def without_trial(view: View) -> View:
    return msgspec.structs.replace(
        view, runs=view.runs[1:], trials=(), run_times=view.run_times[1:]
    )


def test_no_page_calls_anything_overhead() -> None:
    """The CPU of the console and the cost of the agent have names of their own."""
    shown = pages(session(WAITS))
    assert "console" in shown["header"] and "% CPU" in shown["header"]
    assert not [place for place, page in shown.items() if "overhead" in page.lower()]
