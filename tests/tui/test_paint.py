"""Painters: rows exactly as wide as asked, and what they say."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec
import pytest

from gpuconsole.model.comparison import BaselineComparison, BaselineVerdict
from gpuconsole.model.experiments import Speedup
from gpuconsole.model.finding import Evidence, Finding, Suggestion
from gpuconsole.model.machine import Device
from gpuconsole.model.run import Summary
from gpuconsole.model.serving import Fact, ServerFacts
from gpuconsole.model.text import cell_width, cut
from gpuconsole.report import charts
from gpuconsole.report.cells import Row, fit, shaded, spark, to_ascii, wrap
from gpuconsole.report.experiments import paint_done, paint_running, paint_tuning
from gpuconsole.report.machine.tiles import paint_devices as paint_history
from gpuconsole.report.run.breakdown import columns_of, paint_steps
from gpuconsole.report.run.diagnosis import paint_details, paint_diagnosis
from gpuconsole.report.run.models import model_lines
from gpuconsole.report.run.runs import entries, paint_runs
from gpuconsole.report.screen.answer import paint_answer
from gpuconsole.report.screen.chart import paint_throughput
from gpuconsole.session import facts
from gpuconsole.session.api import View
from gpuconsole.tui import keys
from gpuconsole.tui.screens.knobs import KnobState, knob_lines
from gpuconsole.tui.screens.pages import paint_help
from gpuconsole.tui.screens.scenarios import matching, scenario_lines
from gpuconsole.tui.theme import STYLES
from gpuconsole.tui.widgets.bars import paint_keys
from gpuconsole.tui.widgets.header import paint_header
from gpuconsole.tui.widgets.layout import LayoutNeeds, plan
from tests.tui.fake_gpu_box import drawn, paint_devices
from tests.tui.fake_models import several_view
from tests.tui.fake_session import (
    H200,
    KNOBS,
    SCENARIOS,
    STARVED,
    FakeSession,
    cpu_view,
    failed_view,
    gpu_view,
    steps,
    trial_view,
    tuned_view,
    view,
)

HOSTILE = "[/b] \x1b[2J\x07\u202e 模型 [red]\r\n" * 4
HOST_CPU = Device("cpu", "host CPU")
WIDTHS = (*range(40, 201, 14), 80, 120, 200)


def hostile_view() -> View:
    shown = failed_view(HOSTILE)
    devices = (msgspec.structs.replace(H200, name=HOSTILE), Device("cpu", HOSTILE))
    return msgspec.structs.replace(
        shown,
        devices=devices,
        device="gpu:0",
        notes=(HOSTILE,),
        lost={"gpu:0": HOSTILE},
        no_gpu_reason=HOSTILE,
    )


VIEWS: dict[str, Callable[[], View]] = {
    "gpu": gpu_view,
    "trial": trial_view,
    "cpu": cpu_view,
    "failed": failed_view,
    "idle": view,
    "hostile": hostile_view,
    "tuning": lambda: tuned_view(True),
    "tuned": lambda: tuned_view(False),
    "several": several_view,
    "hostile hosts": lambda: several_view(3, HOSTILE),
    "recording": lambda: cpu_view(recording=True, recording_to="x.jsonl"),
}


def text(rows: list[Row]) -> str:
    return "\n".join("".join(part for part, _ in row) for row in rows)


def everything(shown: View, width: int) -> list[Row]:
    """What every painter makes of a view at one width."""
    rows: list[Row] = []
    api = FakeSession(shown)
    for height in (12, 24, 40):
        layout = plan(width, height)
        rows += paint_header(shown, width, layout.header)
        selected = next(iter(facts.suggestions(shown)), "")
        rows += paint_answer(shown, selected, keys.for_answer(shown), width, 2)
        rows += paint_steps(shown, width, layout.steps)
        rows += paint_throughput(shown, api.history, width, layout.chart)
        rows += paint_history(
            shown,
            api.history,
            width,
            layout.devices,
            all_eight=layout.all_eight,
            boxed=layout.boxed,
        )
        for trial in shown.trials:
            for tall in (1, 3, 4):
                rows += (
                    paint_running(trial, {}, width, tall)
                    if trial.state == "running"
                    else paint_done(trial, width, tall)
                )
        for boxed in (False, True):
            rows += paint_diagnosis(shown, selected, width, layout.causes, boxed)
            rows += paint_runs(shown, width, max(3, layout.tried), boxed)
        rows += drawn(
            scenario_lines(SCENARIOS, HOST_CPU, width, height), width, height, "data-starved"
        )
        state = KnobState(KNOBS, {"num_workers": 4}, {"knob.pin_memory": HOSTILE})
        rows += drawn(knob_lines(state, width, height), width, height, "pin_memory")
        rows += drawn(model_lines(shown, width, height), width, height)
    rows += paint_tuning(shown, width)
    rows += (
        paint_details(shown, width)
        + paint_devices(shown, width)
        + paint_help(width)
        + [paint_keys(*keys.bar("main", shown), width)[0]]
    )
    return rows


@pytest.mark.parametrize("name", VIEWS)
def test_every_row_is_as_wide_as_asked(name: str) -> None:
    shown = VIEWS[name]()
    for width in WIDTHS:
        for row in everything(shown, width):
            for version in (row, to_ascii(row)):
                assert sum(cell_width(part) for part, _ in version) == width, (width, row)
            assert all(part.isprintable() for part, _ in row), row
            assert {style for _, style in row} <= set(STYLES)
            assert text([to_ascii(row)]).isascii()


@pytest.mark.parametrize("height", range(6, 60))
def test_a_plan_fills_the_screen_and_no_more(height: int) -> None:
    for width in (40, 60, 80, 99, 100, 120, 200):
        for needs in (
            LayoutNeeds(),
            LayoutNeeds(header=2, fleet=7, tried=9, below=2, trial=4),
            LayoutNeeds(idle=True),
        ):
            layout = plan(width, height, needs)
            band = layout.devices if layout.side else layout.devices + layout.causes + layout.tried
            used = (
                layout.header
                + layout.answer
                + layout.steps
                + layout.fleet
                + layout.chart
                + band
                + layout.trial
                + 1
            )
            assert used == height or height < 12, (width, needs, layout)
            assert all(part >= 0 for part in layout)
            assert not layout.side or layout.causes + layout.tried == layout.devices


def test_cells() -> None:
    assert fit("模型x", 4) == "模… "
    assert fit("ab", 4, ">") == "  ab"
    assert cut("abcdef", 4) == "abc…"
    assert wrap("one two three four", 8, 2) == ["one two", "three f…"]


def test_sparkline_tells_zero_from_nothing() -> None:
    assert spark([None, 0.0, 0.5, 1.0], 1, 1.0) == [" ▁▄█"]
    assert spark([1.0, 0.5], 2) == ["█ ", "██"]
    assert spark([0.0, 0.0], 1) == ["▁▁"]


def test_histories_in_neighbouring_rows_do_not_merge_and_are_brighter_for_higher_values() -> None:
    assert spark([1.0, 0.5], 1, apart=True) == ["▇▄"] and spark([1.0, 0.1], 2, apart=True) == [
        "▇ ",
        "█▂",
    ]
    assert shaded(["▁▂▄█ ▁"]) == [[("▁▂", "low"), ("▄█ ", "middle"), ("▁", "low")]]
    assert [row[0][1] for row in shaded(["a", "b", "c", "d"])] == ["high", "middle", "low", "low"]


def test_the_bar_is_whole() -> None:
    for width in range(1, 120):
        assert (
            sum(columns_of([("data_wait", 0.41), ("forward", 0.333), ("other", 0.257)], width))
            == width
        )


def test_gpu_screen_says_what_the_gpu_does() -> None:
    shown = text(everything(gpu_view(), 120))
    for expected in (
        "gpu:0 H200",
        "61.2/140 GiB",
        "612/700 W",
        "2.02 TB/s",
        "no NVLink on this device",
        "18 240",
        "data wait  41 %",
        "use 4 DataLoader workers",
        "41 % recoverable",
        "num_workers 0 -> 4",
        "1.45-1.69x  [Enter]",
        "1.21x [1.18, 1.24]  kept",
        "0.45x [0.43, 0.47]  reverted",
        "missing comm_ratio",
    ):
        assert expected in shown, expected


def test_cpu_screen_says_that_it_is_a_cpu() -> None:
    shown = text(everything(cpu_view(), 120))
    for expected in (
        "CPU (no NVIDIA driver",
        "cores busy",
        "3.2 of 4",
        "run-queue delay",
        "the rate is not steady yet",
    ):
        assert expected in shown, expected
    assert "SM active" not in shown and "HBM" not in shown


def test_states_are_told() -> None:
    assert "failed: out of memory at batch_size 64" in text(
        paint_diagnosis(failed_view(), "", 100, 10, True)
    )
    assert "Press s" in text(paint_diagnosis(view(), "", 100, 10, True))
    assert "measured   1.52x [1.40, 1.66]" in text(paint_running(trial_view().trials[-1], {}, 100))
    assert "REPLAY" in text(paint_header(cpu_view(recording=True), 80, 2))
    first = msgspec.structs.replace(
        trial_view().trials[-1],
        state="running",
        speedup=Speedup(6.88, 0.0, 14783.0),
        resolution_ratio=45.16,
    )
    shown = text(paint_running(first, {}, 120))
    assert (
        "measured   6.88x, not sure yet" in shown
        and "14783" not in shown
        and "can detect" not in shown
    )
    assert "● rec" in text(paint_header(cpu_view(recording_to="x"), 80, 2))


def test_the_selected_suggestion_is_always_in_sight_and_what_it_is_about() -> None:
    shown = gpu_view()
    for finding in facts.firing(shown.run):
        for suggestion in finding.suggestions:
            for height in range(4, 20):
                painted = text(
                    paint_diagnosis(
                        shown, facts.suggestion_id(finding, suggestion), 80, height, False
                    )
                )
                assert "[Enter]" in painted and finding.title in painted, (finding.rule, height)


def test_a_setting_of_a_server_that_was_not_started_here_is_suggested_without_a_key() -> None:
    shown = gpu_view()
    assert shown.run is not None
    suggestion = Suggestion(
        {"max_num_seqs": 64},
        None,
        "max_num_seqs 64: larger batches",
        "vllm serve ... --max-num-seqs 64",
    )
    finding = msgspec.structs.replace(shown.run.findings[0], suggestions=(suggestion,))
    served = msgspec.structs.replace(
        shown.run,
        workload="inference.serving",
        knobs={"max_num_seqs": 32},
        elsewhere=True,
        findings=[finding],
        summary=Summary(),
    )
    shown = msgspec.structs.replace(shown, runs=(served,), trials=())
    painted = text(paint_diagnosis(shown, facts.suggestion_id(finding, suggestion), 100, 12, True))
    assert "max_num_seqs 64 " in painted and "restart" in painted and "[Enter]" not in painted
    assert not facts.suggestions(shown) and "try_selected" not in [
        action.id for action in keys.ACTIONS if action.makes_sense(shown)
    ]
    assert "not tried from here: max_num_seqs: gpuconsole did not start this server" in text(
        paint_details(shown, 120)
    )
    served = msgspec.structs.replace(
        served,
        server=ServerFacts(
            kv_cache_tokens=Fact(2304.0, "vllm:cache_config_info"),
            enable_prefix_caching=Fact(1.0, "x"),
        ),
    )
    details = text(paint_details(msgspec.structs.replace(shown, runs=(served,)), 120))
    assert re.search(r"kv_cache_tokens +2304 +vllm:cache_config_info", details) and re.search(
        r"enable_prefix_caching +on", details
    )
    assert facts.suggestions(
        msgspec.structs.replace(shown, runs=(msgspec.structs.replace(served, elsewhere=False),))
    ), "the console can try it"


def test_runs_and_turned_down_trials_are_rows() -> None:
    assert [(entry.number, entry.verdict) for entry in entries(gpu_view())] == [
        ("1", ""),
        ("2", "kept"),
        ("–", "reverted"),
    ]


def test_filter() -> None:
    assert [one.name for one in matching(SCENARIOS, "logging")] == ["logging-heavy"]
    assert [one.name for one in matching(SCENARIOS[::-1], "gpt")] == [
        "train-gpt",
        "logging-heavy",
        "data-starved",
    ]
    assert [one.name for one in matching(SCENARIOS, "loader KEEP")] == ["data-starved"]


def test_charts_are_rows_too() -> None:
    times = [float(t) for t in range(100)]
    for rows in (
        charts.throughput(
            times, [5.0 + t % 3 for t in times], [(40.0, "num_workers 4")], "tokens/s", 100, 16
        ),
        charts.step_times(steps(0.4), 100, 14),
    ):
        assert all(sum(cell_width(part) for part, _ in row) == 100 for row in rows)
    assert charts.step_times((0.1, 0.1), 60, 10)
    assert charts.round_ticks(0, 20_000, 4) == [0, 5000, 10_000, 15_000, 20_000]


def test_the_history_leaves_a_pause_open_and_names_its_marks() -> None:
    times = [*map(float, range(30)), *map(float, range(60, 90))]
    rows = charts.throughput(times, [5.0] * 60, [(58.0, "num_workers 4")], "tokens/s", 100, 16)
    drawn = ["".join(part for part, _ in row) for row in rows]
    assert drawn[0].strip() == "throughput, tokens/s; dotted: 00:58 num_workers 4"
    curve = next(one for one in drawn[1:] if "▀▀▀" in one or "▄▄▄" in one)
    middle = curve[45:62]  # 36 s to 54 s
    assert not set(middle) & set("▀▄"), curve


@pytest.mark.parametrize(
    ("verdict", "style"),
    [("slower", "alert"), ("undecided", "dim"), ("same", "dim"), ("faster", "good")],
)
def test_the_run_table_says_how_the_run_stands_to_its_baseline_and_red_means_beyond_noise(
    verdict: BaselineVerdict, style: str
) -> None:
    shown = gpu_view()
    found = BaselineComparison(
        "train-gpt-0",
        "8.3 % [5.1, 11.2] slower than the baseline of 2026-11-20",
        "-8 % vs baseline",
        verdict,
    )
    run = msgspec.structs.replace(shown.runs[-1], baseline=found)
    shown = msgspec.structs.replace(shown, runs=(*shown.runs[:-1], run))
    for width, expected in ((100, found.words), (60, found.short)):
        top = paint_runs(shown, width, 8, True)[0]
        assert (expected, style) in top
        assert sum(cell_width(part) for part, _ in top) == width
    assert found.words in text(paint_details(shown, 100))
    assert "vs baseline" not in text(paint_runs(gpu_view(), 100, 8, True))


def test_the_figures_of_the_evidence_are_whole_and_aligned() -> None:
    shown = gpu_view()
    evidence = (
        Evidence("probe.loader_samples_per_s", 1640.0, "samples/s", None, "probe P6"),
        Evidence("data_wait_ratio", 0.2, "ratio", 0.1, "account"),
    )
    finding = Finding(
        "input.too_few_workers", "fires", "Too few DataLoader workers", 0.2, "high", "", evidence
    )
    run = msgspec.structs.replace(shown.runs[-1], findings=[finding])
    rows = text(
        paint_details(msgspec.structs.replace(shown, runs=(*shown.runs[:-1], run)), 100)
    ).splitlines()
    head, first, second = (
        next(row for row in rows if word in row)
        for word in ("threshold", "loader_samples", "data_wait_ratio")
    )
    assert "1 640 samples/s " in first
    assert head.index("source") == first.index("probe P6") == second.index("account")


def test_the_panel_begins_with_a_headline_and_shows_that_of_the_selected_finding() -> None:
    """No tail of a finding stands above the selected one, however far the list is scrolled."""
    base = gpu_view(trials=())
    findings = [
        msgspec.structs.replace(
            STARVED,
            rule=f"rule.{n}",
            title=f"Finding number {n}",
            summary="why " * 40,
            recoverable_ratio=0.9 - n / 10,
        )
        for n in range(1, 6)
    ]
    run = msgspec.structs.replace(base.runs[-1], findings=findings)
    shown = msgspec.structs.replace(base, runs=(run,))
    for height in range(8, 40):
        for identity in facts.suggestions(shown):
            rows = text(paint_diagnosis(shown, identity, 60, height, True)).splitlines()
            number = identity.partition(":")[0].removeprefix("rule.")
            assert "Finding number" in rows[1], (height, identity, rows)
            assert any(f"Finding number {number}" in row for row in rows), (height, identity, rows)
            assert sum("[Enter]" in row for row in rows) == 1, (height, identity, rows)
