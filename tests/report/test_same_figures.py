"""The terminal and the screen show the same figures: numbers with units are read from both and
compared."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec
import pytest

from gpuconsole.model.comparison import BaselineComparison
from gpuconsole.model.experiments import Sweep, SweepPoint
from gpuconsole.model.run import Distribution, Run, Summary
from gpuconsole.model.snapshot import Snapshot
from gpuconsole.report.cells import Row
from gpuconsole.report.experiments import (
    certificate_report,
    paint_done,
    paint_running,
    paint_tuning,
    sweep_report,
)
from gpuconsole.report.parts import lay_out, printed
from gpuconsole.report.run.breakdown import paint_steps
from gpuconsole.report.run.diagnosis import paint_details, paint_diagnosis
from gpuconsole.report.run.models import model_lines
from gpuconsole.report.run.profile import paint_profile
from gpuconsole.report.run.runs import paint_runs
from gpuconsole.report.screen.answer import paint_answer
from gpuconsole.report.session import session_text, trial_text
from gpuconsole.session.api import View
from tests.tui.fake_gpu_box import drawn
from tests.tui.fake_models import several_view
from tests.tui.fake_profile import profiled_view
from tests.tui.fake_session import FINDINGS, gpu_view, trial_view, tuned_view
from tests.tui.test_paint import text

UNITS = (
    r"%|x|[nµm]?s|[KMGT]iB|[kMGT]?B/s|[kMGT]?FLOP(?:/s)?(?:/W)?|[kM]?[JW]|(?:tokens|samples|"
    r"requests|kernels)/s|tokens/J|per million tokens|"
    r"answered|failed|B"
)
NUMBER = r"\d{1,3}(?: \d{3})+|\d+(?:\.\d+)?"
FIGURE = re.compile(rf"(?<![\w.,-])([+-]?(?:{NUMBER})(?: ± (?:{NUMBER}))?) ?({UNITS})(?![\w/])")
INTERVAL = re.compile(r"\[[\d., +-]+\]|\d+\.\d+-\d+\.\d+x")
PAIR = re.compile(rf"p50 ((?:{NUMBER})) +p99 ((?:{NUMBER})) ({UNITS})(?![\w/])")


def figures(page: str) -> set[str]:
    """`41 %`, `18 240 ± 210 tokens/s`, `[1.18, 1.24]`. A unit that stands once for two numbers
    belongs to both."""
    words = PAIR.sub(r"p50 \1 \3 p99 \2 \3", " ".join(re.sub(r"[│╭╮╰╯─]", " ", page).split()))
    return {f"{number} {unit}" for number, unit in FIGURE.findall(words)} | set(
        INTERVAL.findall(words)
    )


def snapshot(view: View) -> Snapshot:
    return Snapshot(
        created="",
        gpuconsole="",
        environment=view.environment,
        runs=list(view.runs),
        trials=list(view.trials),
    )


def panels(view: View) -> list[Row]:
    """The reports of the main screen, without the live gauges of the device and of the server."""
    answer = paint_answer(view, "", (), 200, 2)
    return [
        *answer,
        *paint_steps(view, 200, 12),
        *paint_diagnosis(view, "", 200, 60, True),
        *paint_runs(view, 160, 20, True),
    ]


def pages(view: View) -> list[Row]:
    """The sub-screens about the current run."""
    rows = [*paint_details(view, 200), *paint_profile(view, 250)]
    models = model_lines(view, 200, 60)
    for key in models.keys:
        rows += drawn(models, 200, 60, key)
    return rows


def training() -> View:
    view = several_view(findings=FINDINGS, profile=profiled_view().runs[-1].profile)
    view = msgspec.structs.replace(
        view,
        latest={
            key: value for key, value in view.latest.items() if not key.startswith("workload.")
        },
    )
    summary = view.runs[-1].summary
    summary.flops_per_s, summary.memory_bytes_per_s, summary.mbu_ratio, summary.mbu_peak_source = (
        41.3e12,
        2.02e12,
        0.42,
        "datasheet",
    )
    summary.memory_peak_bytes, summary.energy_j, summary.tokens_per_j, summary.flops_per_j = (
        106e6,
        26_400.0,
        29.8,
        1.4e9,
    )
    (
        summary.cost_per_million_tokens,
        summary.overhead_s_per_step,
        summary.loss_first,
        summary.loss_last,
    ) = 0.213, 41e-6, 4.2, 3.9
    run = msgspec.structs.replace(
        view.runs[-1],
        baseline=BaselineComparison(
            "k", "8.3 % [5.1, 11.2] slower than the baseline of 2026-11-20", "-8 %", "slower"
        ),
    )
    return msgspec.structs.replace(view, runs=(view.runs[0], run))


def serving() -> View:
    def latency(p50: float, p99: float) -> Distribution:
        return Distribution(p50 * 1.1, p50 * 0.2, 182, p50, p50 * 1.3, p50 * 1.5, p99)

    summary = Summary(
        tokens_per_s=Distribution(1231.4, 52.0, 60, 1231.4),
        requests_per_s=Distribution(12.44, 1.3, 60, 12.4), goodput_per_s=11.9, requests=182,
        failed_requests=3, failures={"HTTP 500": 3},
        phases_ratio={"queue": 0.41, "prefill": 0.13, "decode": 0.4, "transport": 0.06},
        ttft_s=latency(0.0203, 1.24), tpot_s=latency(0.0081, 0.0102),
        itl_s=latency(0.0079, 0.0311), e2e_s=latency(0.62, 2.3),
        client_queue_s=latency(0.0002, 0.004), mfu_ratio=0.034, mfu_peak_source="datasheet bf16",
        mbu_ratio=0.21, tokens_per_j=0.042,
    )  # fmt: skip
    run = Run(
        "1",
        "serve-chat",
        "inference.server",
        {"concurrency": 8},
        "gpu:0",
        "running",
        steady_from_s=4.0,
        summary=summary,
        findings=FINDINGS[:1],
    )
    return gpu_view(runs=(run,), trials=(), step_times=())


def same(terminal: Iterable[str], screen: Iterable[str]) -> None:
    assert not set(terminal) ^ set(screen), (
        sorted(set(terminal) - set(screen)),
        sorted(set(screen) - set(terminal)),
    )


@pytest.mark.parametrize(
    ("view", "at_least"), [(training(), 80), (serving(), 30)], ids=["training", "serving"]
)
def test_a_run(view: View, at_least: int) -> None:
    terminal = figures(session_text(snapshot(view)))
    of_others = (
        figures(session_text(snapshot(msgspec.structs.replace(view, runs=view.runs[:-1]))))
        if len(view.runs) > 1
        else set()
    )
    main, screen = figures(text(panels(view))), figures(text([*panels(view), *pages(view)]))
    in_order = figures(
        " ".join(finding.summary for finding in view.runs[-1].findings if finding.state == "clear")
    )
    assert len(terminal) >= at_least
    assert not main - terminal - in_order
    assert not terminal - of_others - screen


def test_a_trial_while_it_runs_and_when_it_has_ended() -> None:
    view = trial_view()
    running, ended = view.trials[-1], view.trials[0]
    before = view.runs[-1].knobs
    same(
        figures(trial_text(running, snapshot(view))),
        figures(text(paint_running(running, before, 120, 3))),
    )
    done = msgspec.structs.replace(gpu_view(), trials=(ended,))
    terminal = figures(trial_text(ended, snapshot(done)))
    assert terminal == {"1.21 x", "[1.18, 1.24]", "1.10-1.30x"}
    same(terminal, figures(text(paint_done(ended, 120, 3))))


def test_a_tuning_session() -> None:
    view = tuned_view(under_way=False)
    assert view.tuning is not None
    terminal, screen = (
        figures(page)
        for page in (
            printed(certificate_report(view.tuning.certificate)),
            text(paint_tuning(view, 140)),
        )
    )
    assert {"1.62 x", "[1.51, 1.74]", "1.45-1.69x", "1.82 x"} <= terminal
    same(terminal - {"78 s"}, screen - {"78 s", "300 s"})  # the elapsed time, and the budget


@pytest.mark.parametrize("width", [70, 100, 160])
def test_a_sweep(width: int) -> None:
    points = [SweepPoint({"batch_size": 4}, [1510.0, 1490.2, 1502.0], low=1480.0, high=1520.0),
              SweepPoint({"batch_size": 8}, [2011.0, 1990.0, 2004.0], low=1980.0, high=2020.0),
              SweepPoint({"batch_size": 16}, error="out of memory")]  # fmt: skip
    sweep = Sweep("train-gpt", "cpu", "tokens/s", {"batch_size": 8}, points, 3, elapsed_s=41.0)
    report = sweep_report(sweep, ("batch_size",))
    terminal, screen = printed(report), text(lay_out(report, width))
    rows = [" ".join(row.split()) for row in terminal.splitlines()]
    assert rows[1] == "setting tokens/s interval"
    assert rows[3].startswith("batch_size=8 2 002 ± 11 [1 980, 2 020]") and rows[3].endswith("best")
    assert rows[4] == "batch_size=16 n/a out of memory"
    same(
        figures(terminal) | set(re.findall(NUMBER, terminal)),
        figures(screen) | set(re.findall(NUMBER, screen)),
    )
