"""The answer line of each state of a session, and the marks and the time axis of the chart."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator

import msgspec
import pytest

from gpuconsole.diagnosis.probes import NO_CONSENT
from gpuconsole.model.certificate import Attempt, Certificate, Tuning
from gpuconsole.model.experiments import Speedup, Trial
from gpuconsole.model.figures import Attainable, RatePair
from gpuconsole.model.finding import CodePlace, Finding, Interval, Signal
from gpuconsole.model.job import AGENT, JOB
from gpuconsole.model.knobs.knob import Value
from gpuconsole.model.run import PHASES, Run, Summary
from gpuconsole.model.serving import SERVING_PHASES, WATCHED
from gpuconsole.model.stacks import Place
from gpuconsole.model.text import cell_width, char_width
from gpuconsole.report.cells import Row
from gpuconsole.report.run.breakdown import LOOKS
from gpuconsole.report.run.diagnosis import paint_diagnosis
from gpuconsole.report.screen.answer import guide, paint_answer
from gpuconsole.report.screen.chart import marks, paint_throughput, scale_for, window
from gpuconsole.session import facts
from gpuconsole.session.api import View
from gpuconsole.session.figures.distributions import distribution
from gpuconsole.tui import keys
from gpuconsole.tui.widgets.header import paint_header
from tests.tui.fake_session import gpu_view
from tests.tui.fake_session import view as idle_view
from tests.tui.golden.situations import BALANCED, SITUATIONS, WAITING, FoldedSession
from tests.tui.test_paint import text


def rows(view: View, width: int = 120, at: int = 0) -> list[str]:
    """The two rows, with the suggestion number `at` selected."""
    selected = list(facts.suggestions(view))[at : at + 1] or [""]
    return [
        row.rstrip()
        for row in text(
            paint_answer(view, selected[0], keys.for_answer(view), width, 2)
        ).splitlines()
    ]


def situation(name: str) -> View:
    return FoldedSession(SITUATIONS[name]()).view()


@pytest.mark.parametrize(
    ("name", "head", "more"),
    [
        (
            "finding",
            "Too few DataLoader workers: 61 % recoverable   The device reports errors",
            "use 4 DataLoader workers   num_workers 0 -> 4   predicted 2.10-2.50x",
        ),
        (
            "healthy",
            "No fault found so far",
            "11 rules are clear, 1 has no data   missing: comm_ratio",
        ),
        (
            "trial",
            "Too few DataLoader workers: 61 % recoverable",
            "use 4 DataLoader workers   num_workers 0 -> 4   on trial",
        ),
        (
            "kept",
            "Use 4 DataLoader workers: 2.24x [2.10, 2.40]  faster: kept",
            "next: the console measures the faster run",
        ),
        (
            "well",
            (
                "Use 4 DataLoader workers: 2.24x [2.10, 2.40]  faster: kept   Now: Compute-bound"
                " and healthy"
            ),
            (
                "optional, changes numerics: compute in bf16   predicted 1.10-1.25x   precision"
                " fp32 -> bf16"
            ),
        ),
        (
            "tuning",
            "fp32 products on a device with tensor cores: 22 % recoverable",
            "compute in bf16   precision fp32 -> bf16   on trial   tuning: 41 of 300 s",
        ),
        (
            "starting",
            "Starting: building the model 124 M parameters",
            "The first numbers follow the first steps.",
        ),
        ("failed", "Failed: out of memory at batch_size 32", "the worker ended with exit code 1"),
        (
            "server-down",
            "The server has not answered for 12 s: connection refused",
            "No conclusion while the server does not answer.",
        ),
        ("degraded", "The numbers are degraded: ", "No conclusion"),
    ],
)
def test_each_state_has_its_own_answer(name: str, head: str, more: str) -> None:
    first, second = rows(situation(name))
    assert first.startswith(f"▌{head}"), first
    assert second.startswith(f"▌{more}"), second


@pytest.mark.parametrize(
    ("summary", "second"),
    [
        ("The optimizer has 484 groups for 484 tensors and takes 34 % of each step, at train.py:41",
         "train.py:41: The optimizer has"),
        ("Net.forward at train.py:41 computes it twice", "Net.forward at train.py:41 computes"),
    ],
)  # fmt: skip
def test_the_line_of_a_finding_without_a_change_is_seen_at_80_columns(
    summary: str, second: str
) -> None:
    view = situation("finding")
    finding = Finding(
        "host.avoidable_work", "fires", "Work", 0.3, summary=summary, place=CodePlace("train.py:41")
    )
    run = msgspec.structs.replace(view.runs[-1], findings=[finding])
    shown = msgspec.structs.replace(view, runs=(*view.runs[:-1], run))
    assert rows(shown, 80)[1].startswith(f"▌{second}")


def test_no_run_is_without_a_fault_while_an_experiment_runs() -> None:
    """Its result may be the first that a rule needs."""
    view = msgspec.structs.replace(situation("healthy"), probing="loader_alone")
    assert rows(view)[0].startswith("▌Measuring: a probe runs")
    assert guide(view, keys.written()) == (
        2,
        "Wait for the finding. The console measures where the time goes.",
    )


@pytest.mark.parametrize("state", ["running", "finished"])
def test_a_watched_server_is_no_step_on_the_way_through_the_scenarios(state: str) -> None:
    view = situation("healthy")
    assert guide(view, keys.written())[0] == 2
    watched = msgspec.structs.replace(view.runs[-1], workload=WATCHED, state=state)
    shown = msgspec.structs.replace(view, runs=(watched,), state=state)
    assert guide(shown, keys.written()) == (0, "")


def test_the_suggestion_of_an_ended_run_names_no_key() -> None:
    view = situation("finding")
    ended = msgspec.structs.replace(
        view, runs=(*view.runs[:-1], msgspec.structs.replace(view.runs[-1], state="stopped"))
    )
    assert "[Enter]" in text(
        paint_diagnosis(view, next(iter(facts.suggestions(view))), 100, 20, True)
    )
    assert "[Enter]" not in text(
        paint_diagnosis(ended, next(iter(facts.suggestions(view))), 100, 20, True)
    )


def test_an_undecided_trial_beside_other_programs_names_them() -> None:
    view = situation("finding")
    undecided = msgspec.structs.replace(
        situation("kept").trials[0], state="done", verdict="undecided", kept=False
    )
    busy = Finding(
        "host.cpu_contention", "fires", "The training thread waits for a CPU core", note=True
    )
    beside = msgspec.structs.replace(view.runs[-1], findings=[*view.runs[-1].findings, busy])
    for runs, why in (
        (view.runs, "step times vary too much"),
        ((*view.runs[:-1], beside), "other programs use the cores"),
    ):
        shown = msgspec.structs.replace(view, trials=(undecided,), runs=runs)
        assert guide(shown, keys.written()) == (
            3,
            f"The trial was undecided: {why}. Press Enter to try again.",
        )


def test_after_a_trial_that_failed_the_hint_says_so_and_the_answer_has_the_effect_shown() -> None:
    view = situation("finding")
    suggestion = next(iter(facts.suggestions(view).values()))[1]
    assert view.run is not None
    failed = Trial(
        "9",
        view.run.id,
        suggestion.changes,
        state="failed",
        verdict="undecided",
        error="the dataset is random",
    )
    hint = "The trial failed, see above. Enter tries again."
    assert guide(msgspec.structs.replace(view, trials=(failed,)), keys.written()) == (3, hint)
    run = msgspec.structs.replace(
        view.run, workload="job", effects=dict.fromkeys(suggestion.changes, "changes numerics")
    )
    shown = msgspec.structs.replace(view, trials=(failed,), runs=(*view.runs[:-1], run))
    hint = "The trial failed, see above. Enter asks for your permission."
    assert guide(shown, keys.written()) == (3, hint)
    answer = text(paint_answer(shown, next(iter(facts.suggestions(shown))), [], 120, 2))
    assert "tried: failed   changes numerics" in answer


def test_the_end_of_a_job_has_no_empty_hint() -> None:
    view = situation("healthy")
    ended = msgspec.structs.replace(view.runs[-1], state="finished", workload="job")
    assert ended.is_job
    assert guide(msgspec.structs.replace(view, runs=(ended,)), keys.written()) == (0, "")


def test_without_torch_the_first_hint_says_how_to_install_it() -> None:
    command = 'pip install numpy "pillow>=10" "torch>=2.6"'
    step, words = guide(idle_view(), keys.written(), install_torch=command)
    assert step == 1 and words.startswith(f"Scenarios need torch: {command}") and "own job" in words
    assert guide(idle_view(), keys.written(), choosing=True, install_torch=command) == (
        1,
        f"Scenarios need torch: {command}",
    )
    assert len(f"step 1 of 4  Scenarios need torch: {command}") <= 80


def test_where_the_command_that_installs_torch_does_not_fit_the_hint_says_what_prints_it() -> None:
    command = (
        "/home/user/environments/console/bin/python -m pip install -e"
        " '/home/user/gpuconsole[torch]'"
    )
    for choosing in (False, True):
        hint = guide(idle_view(), keys.written(), choosing=choosing, install_torch=command, room=67)
        assert hint == (1, "Scenarios need torch: `gpuconsole doctor` prints the command.")
    without_the_rest = guide(idle_view(), keys.written(), install_torch=command, room=120)
    assert without_the_rest == (1, f"Scenarios need torch: {command}")


def test_the_first_win_has_a_last_hint_that_says_what_to_do_with_it() -> None:
    view = situation("kept")
    trial = next(one for one in view.trials if one.kept)
    first = msgspec.structs.replace(view, trials=(trial,))
    assert view.run is not None
    words = "Faster: kept. e writes a snapshot, u reverts, q saves and quits."
    assert guide(first, keys.written()) == (4, words)
    job = msgspec.structs.replace(
        first, runs=(*view.runs[:-1], msgspec.structs.replace(view.run, workload="job"))
    )
    assert guide(job, keys.written()) == (
        4,
        "Faster: kept. q leaves, and prints the patch for your code.",
    )
    assert all(
        len(f"step 4 of 4  {text}") <= 80
        for _, text in (guide(first, keys.written()), guide(job, keys.written()))
    )
    second = msgspec.structs.replace(trial, id="9")
    reverted = msgspec.structs.replace(trial, kept=False)
    for other in (
        {"trials": (trial, second)},
        {"trials": (reverted,)},
        {"now": view.now + 61.0},
        {"recording": True},
    ):
        assert guide(msgspec.structs.replace(first, **other), keys.written()) == (0, ""), other
    assert guide(first, keys.written(), choosing=True) == (0, "")


def test_a_healthy_run_reads_healthy_before_the_change_that_could_be_tried() -> None:
    after = situation("well").runs[-1]
    view = msgspec.structs.replace(
        situation("well"), runs=(msgspec.structs.replace(after, changes={}),), trials=()
    )
    first, second = rows(view)
    assert first.startswith("▌Compute-bound and healthy") and first.endswith(
        "Enter try   d details"
    )
    assert second.startswith(
        "▌optional, changes numerics: compute in bf16   predicted 1.10-1.25x   precision fp32 ->"
        " bf16"
    )
    assert guide(view, keys.written()) == (
        2,
        "This run is healthy. Press s for a scenario with a fault.",
    )
    alone = msgspec.structs.replace(view.runs[-1], findings=after.findings[:1])
    assert (
        rows(msgspec.structs.replace(view, runs=(alone,)))[1] == "▌MFU 52 %   no bottleneck found"
    )


def test_a_fault_comes_before_healthy_and_a_note_without_a_change_follows() -> None:
    view, (healthy, optional, *_) = situation("well"), situation("well").runs[-1].findings
    fault = situation("finding").runs[-1].findings[1]
    disturbed = Finding(
        "host.cpu_contention", "fires", "The training thread waits for a CPU core", note=True
    )

    def head(*findings: Finding) -> str:
        run = msgspec.structs.replace(view.runs[-1], findings=list(findings), changes={})
        return rows(msgspec.structs.replace(view, runs=(run,), trials=()))[0]

    assert head(fault, healthy).startswith(f"▌{fault.title}")
    assert head(healthy, optional, disturbed).startswith(f"▌{healthy.title}   {disturbed.title}")
    after = msgspec.structs.replace(view.runs[-1], findings=[healthy, optional, disturbed])
    proven = rows(msgspec.structs.replace(view, runs=(*view.runs[:-1], after)))[0]
    assert proven.startswith(
        "▌Use 4 DataLoader workers: 2.24x [2.10, 2.40]  faster: kept   The training thread waits"
        " for a CPU core"
    )


def test_what_was_proven_stays_the_headline_and_what_is_left_follows_in_the_second_row() -> None:
    view = situation("kept")
    assert view.run is not None
    proven = "▌Use 4 DataLoader workers: 2.24x [2.10, 2.40]  faster: kept"
    note = Finding(
        "host.cpu_contention",
        "fires",
        "The training thread waits for a CPU core",
        note=True,
        summary="other programs use it",
    )
    for state, findings, first, second in (
        ("running", [], "", "▌next: the console measures"),
        ("running", [note], "   The training thread waits", "▌other programs use it"),
        ("finished", [msgspec.structs.replace(note, state="clear")], "", "▌No fault found so far"),
        ("stopped", [], "", "▌The run ended before a diagnosis"),
    ):
        run = msgspec.structs.replace(
            view.run,
            state=state,
            findings=findings,
            steady_from_s=None if state == "running" else 1.0,
        )
        found = rows(msgspec.structs.replace(view, runs=(*view.runs[:-1], run)), 140)
        assert found[0].startswith(proven + first) and found[1].startswith(second), found
    cause = Finding(
        "host.logging_io", "fires", "Training waits for logging", 0.3, "high", "it logs each step"
    )
    run = msgspec.structs.replace(view.run, findings=[cause, note])
    left = msgspec.structs.replace(view, runs=(*view.runs[:-1], run))
    for width in (80, 140):
        first, second = rows(left, width)
        assert first.startswith(proven) and second.startswith(
            "▌next: Training waits for logging   30 % recoverable   it logs each step"
        )
    first, second = rows(situation("trial-finished"))
    assert first.startswith(proven) and first.endswith("Enter try   d details")
    assert second == (
        "▌next: fp32 products on a device with tensor cores   22 % recoverable   compute in"
        " bf16   predicted 1.10-1.25x"
    )
    assert (
        rows(situation("trial-finished"), 80)[1]
        == "▌next: fp32 products on a device with tensor cores   22 % recoverable"
    )
    broken = msgspec.structs.replace(
        cause, title="The device reports errors", recoverable_ratio=0.0
    )
    run = msgspec.structs.replace(view.run, findings=[broken])
    assert rows(msgspec.structs.replace(view, runs=(*view.runs[:-1], run)))[0].startswith(
        "▌The device reports errors"
    ), "the results may be wrong"


def test_a_long_cause_leaves_the_second_row_to_the_key_of_the_output() -> None:
    view = situation("failed")
    assert view.run is not None
    run = msgspec.structs.replace(
        view.run, workload="job", error="ValueError: " + "a bad shape " * 9
    )
    job = msgspec.structs.replace(view, runs=(*view.runs[:-1], run), notes=())
    assert rows(job, 80)[1] == "▌o output"
    assert rows(msgspec.structs.replace(job, notes=("a note",)), 80)[1] == "▌a note"
    run.error = "ValueError: short"
    assert rows(job, 80)[0].endswith("   o output") and rows(job, 80)[1] == "▌"


def test_the_keys_of_the_answer_are_those_that_work_now() -> None:
    for name, expected in (
        ("finding", "Enter try   d details   ↓ next finding"),
        ("trial", "Esc cancel   d details"),
        ("failed", "s scenarios   S settings"),
        ("healthy", "d details"),
    ):
        assert rows(situation(name))[0].endswith(expected)
    assert (
        rows(idle_view())[0].startswith("▌Nothing is running")
        and "s scenarios" in rows(idle_view())[0]
    )


def test_the_first_key_comes_before_the_second_cause_on_a_narrow_terminal() -> None:
    assert (
        rows(situation("trial"), 80)[0].endswith("Esc cancel")
        or "reports errors" not in rows(situation("trial"), 80)[0]
    )
    assert "Esc cancel" in rows(situation("trial"), 80)[0]


def test_the_answer_follows_the_selection_to_the_next_cause() -> None:
    view = situation("finding")
    assert rows(view, at=2)[0].startswith(
        "▌fp32 products on a device with tensor cores: 22 % recoverable"
    )
    assert rows(view, at=2)[1].startswith(
        "▌compute in bf16   precision fp32 -> bf16   predicted 1.10-1.25x"
    )


def test_a_suggestion_that_was_tried_shows_its_outcome_and_no_prediction() -> None:
    view = situation("tuning")
    done = msgspec.structs.replace(view.trials[0], state="done", verdict="no_gain")
    view = msgspec.structs.replace(view, trials=(done,), tuning=None)
    assert (
        "tried: 2.20x [1.90, 2.60] not faster: reverted" in rows(view)[1]
        and "predicted" not in rows(view)[1]
    )


def test_a_job_without_its_agent_has_no_other_answer() -> None:
    view = gpu_view()
    run = msgspec.structs.replace(
        view.runs[-1],
        workload="job",
        findings=[],
        unavailable={AGENT: "the agent has switched itself off at step 3"},
    )
    first, second = rows(msgspec.structs.replace(view, runs=(run,), trials=()))
    assert (
        first.startswith("▌The agent is off: no step is measured")
        and "switched itself off at step 3" in second
    )


def test_the_share_of_the_attainable_rate_stands_next_to_the_throughput() -> None:
    view = gpu_view()
    run = msgspec.structs.replace(
        view.runs[-1],
        attainable=Attainable((RatePair("tokens", "tokens", "tokens/s", 41.0, 100.0),)),
    )
    shown = msgspec.structs.replace(view, runs=(view.runs[0], run))
    assert "18 240 tokens/s  41 % of hardware limit" in text(paint_header(shown, 120, 1))


# --- the chart ------------------------------------------------------------------------------------


def test_trials_and_kept_changes_are_marks_at_their_times() -> None:
    found = marks(situation("trial-finished"))
    assert [(mark.begin_s, mark.end_s, mark.label) for mark in found] == [
        (51.0, 60.0, "precision bf16 reverted"),
        (71.0, 80.0, "num_workers 4 kept 2.24x"),
    ]
    assert [mark.label for mark in marks(situation("tuning"))] == [
        "num_workers 4 cancelled",
        "trial precision bf16",
    ]


def test_the_last_trial_of_a_tuning_session_is_marked_as_what_it_compares() -> None:
    """Its change goes back to the start, so "reverted" would say the opposite of what happened."""
    view = situation("tuning")
    assert view.tuning is not None
    kept = msgspec.structs.replace(view.trials[0], state="done", kept=True)
    made = msgspec.structs.replace(
        view.tuning.certificate, attempts=[Attempt("input.too_few_workers", {}, kept)]
    )
    view = msgspec.structs.replace(
        view, tuning=msgspec.structs.replace(view.tuning, certificate=made)
    )
    back = {"num_workers": made.start["num_workers"]}
    done = msgspec.structs.replace(
        view.trials[-1], changes=back, speedup=Speedup(0.5, 0.45, 0.55), state="done"
    )
    for trial, label in (
        (msgspec.structs.replace(done, state="running"), "all kept changes against the start"),
        (done, "all kept changes against the start 2.00x"),
    ):
        assert (
            marks(msgspec.structs.replace(view, trials=(*view.trials[:-1], trial)))[-1].label
            == label
        )


def test_a_kept_trial_stays_what_it_is_once_a_tuning_session_begins() -> None:
    """The reader pressed `t` after a proof of 1.57x: its mark became "all kept changes against the
    start 0.64x", and the lane of its blocks was inverted."""
    view = situation("trial-finished")
    before = marks(view)
    proven = view.trials[-1]
    assert proven.kept
    made = Certificate(
        scenario="", device="cpu", start={**proven.changes, "batch_size": 16}, end={}
    )
    assert (
        marks(msgspec.structs.replace(view, tuning=Tuning(made, 300.0, under_way=True))) == before
    )
    tried = msgspec.structs.replace(
        proven, id="9", changes={"precision": "bf16"}, kept=False, verdict="no_gain"
    )
    attempted = msgspec.structs.replace(
        made, attempts=[Attempt("gpu.fp32_no_tensor_core", {}, tried)]
    )
    assert (
        marks(msgspec.structs.replace(view, tuning=Tuning(attempted, 300.0, under_way=True)))
        == before
    )


def test_the_throughput_after_a_kept_change_is_green_and_a_trial_has_the_colour_of_the_focus() -> (
    None
):
    for name, style in (("kept", "gained"), ("trial", "trial")):
        session = FoldedSession(SITUATIONS[name]())
        painted = paint_throughput(session.view(), session.history, 120, 14)
        assert style in {one for row in painted for _, one in row}
    session = FoldedSession(SITUATIONS["finding"]())
    assert not {"gained", "trial"} & {
        one for row in paint_throughput(session.view(), session.history, 120, 14) for _, one in row
    }


def test_the_blocks_of_a_trial_are_marked_by_side_with_and_without_colour() -> None:
    session = FoldedSession(SITUATIONS["trial"]())
    view = session.view()
    assert [arm for _, arm in view.sides] == [0, 1, 2, 1]
    painted = paint_throughput(view, session.history, 120, 14)
    lane = next(
        "".join(part for part, _ in row)
        for row in painted
        if "changed" in "".join(part for part, _ in row)
    )
    changed = {column for column, char in enumerate(lane) if char == "━"}
    assert 3 <= len(changed) <= 6  # three of 69 seconds, in about 110 columns
    coloured = {
        column for row in painted for column, name in columns_of_row(row) if name == "trial"
    }
    assert coloured == changed


def test_blocks_with_the_old_settings_are_not_green() -> None:
    """The last trial of a tuning session compares all kept changes with the start."""
    script = SITUATIONS["trial-finished"]()
    script.train(3, 0.065, BALANCED, arm=1)
    script.train(3, 0.146, WAITING, arm=2)
    script.train(3, 0.065, BALANCED, arm=1)
    script.trial("3", "2", {"num_workers": 0}, Interval(0.4, 0.5), Speedup(0.45, 0.4, 0.5))
    session = FoldedSession(script)
    view = session.view()
    made = situation("tuning").tuning
    assert made is not None
    certificate = msgspec.structs.replace(made.certificate, proof=view.trials[-1])
    view = msgspec.structs.replace(
        view, tuning=msgspec.structs.replace(made, certificate=certificate)
    )
    painted = paint_throughput(view, session.history, 120, 14)
    foot = next(row for row in painted if "▀" in "".join(part for part, _ in row))
    after = "".join(
        "g" if name == "gained" else "o" for _, name in columns_of_row(foot) if name != "dim"
    ).strip("o")
    assert re.fullmatch("g+o{2,5}g+", after), after
    lane = next(
        "".join(part for part, _ in row)
        for row in painted
        if "changed" in "".join(part for part, _ in row)
    )
    assert len(re.findall("━+", lane)) == 2, (
        "with the kept changes: before and after the block with the old settings"
    )


def columns_of_row(row: Row) -> Iterator[tuple[int, str]]:
    """The column and the style of each cell."""
    column = 0
    for part, name in row:
        for _ in part:
            yield column, name
            column += 1


@pytest.mark.parametrize("rows", [4, 7, 9, 12, 20, 31])
@pytest.mark.parametrize("high", [0.0, 0.037, 1.0, 3.3, 99.0, 101.0, 14_084.0, 1e7])
def test_the_figures_of_the_axis_are_even_and_stand_on_their_lines(high: float, rows: int) -> None:
    scale = scale_for(high, rows)
    power = 10.0 ** math.floor(math.log10(scale.step) + 1e-9)
    assert round(scale.step / power, 9) in (1, 2, 5)
    assert high <= scale.top and (rows < 7 or high >= scale.top / 2 or not high), (
        "at most half of the chart is empty"
    )

    view = gpu_view(run_times=(0.0, 0.0))
    painted = text(
        paint_throughput(
            view, lambda key, columns, seconds: [high] * (columns - 3) + [None] * 3, 120, rows + 3
        )
    )
    figures = [(n, row) for n, row in enumerate(painted.splitlines()) if "┤" in row]
    values = [
        float(row.partition("┤")[0].strip("│ ").replace(" ", "").removesuffix("M"))
        for _, row in figures
    ]
    steps = {round(above - below, 9) for above, below in itertools.pairwise(values)}
    assert values[-1] == 0 and len(steps) <= 1, values
    assert len({below - above for (above, _), (below, _) in itertools.pairwise(figures)}) <= 1, (
        "equal distances"
    )
    assert all("─" in row for _, row in figures), "each figure has its line in its own row"


def test_lines_show_without_colour_where_a_trial_begins_and_where_it_ended() -> None:
    # the end of a trial that runs is the present
    for name, most in (("trial-finished", 4), ("tuning", 3), ("finding", 0)):
        session = FoldedSession(SITUATIONS[name]())
        view = session.view()
        painted = text(paint_throughput(view, session.history, 120, 14)).splitlines()
        columns = {column for row in painted for column, char in enumerate(row) if char in "╎▓"}
        assert len(columns) == most, (name, columns)
        label = next(row for row in painted if "▼" in row) if most else ""
        assert {column for column, char in enumerate(label) if char == "▼"} <= columns


@pytest.mark.parametrize("columns", [10, 60, 190])
def test_at_most_a_third_of_the_time_axis_is_in_the_future(columns: int) -> None:
    for seconds in range(20, 20_000, 37):
        axis = window(5.0, 5.0 + seconds, columns)
        assert columns * 2 / 3 <= axis.filled + 1 and axis.filled <= columns, (seconds, axis)
        assert 0 <= axis.column(5.0) < axis.column(5.0 + seconds) < columns


def test_past_columns_do_not_move_while_the_width_of_a_column_stays() -> None:
    before, after = window(0.0, 61.0, 100), window(0.0, 62.0, 100)
    assert before.per_column_s == after.per_column_s and before.first == after.first
    recent = window(0.0, 1000.0, 50, 2.0)
    assert recent.per_column_s == 2.0 and recent.filled == 50 and recent.column(1000.0) == 49


def test_a_gap_is_shown_only_where_no_sample_came_for_some_time() -> None:
    axis = window(0.0, 20.0, 41)
    values: list[float | None] = [1.0, None, None, None, None, None, None, 2.0] + [None] * 100
    held = axis.values("key", lambda key, columns, seconds: values[:columns], 1.5)
    assert axis.per_column_s == 0.5 and held[:8] == [1.0, 1.0, 1.0, 1.0, None, None, None, 2.0]


def test_the_short_way_to_the_width_of_a_text_is_right_for_each_character() -> None:
    for code in range(0x20, 0x3000):
        char = chr(code)
        assert cell_width(char) == char_width(char), hex(code)


# --- the bar of a step ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*PHASES, *SERVING_PHASES])
def test_neighbours_in_the_bar_differ_without_colour(name: str) -> None:
    """In the usual step and in the usual request, also with one more part or without one of the
    parts."""
    step = {"data_wait", "forward", "backward", "optimizer", "other"}
    for order, usual in ((PHASES, step), (SERVING_PHASES, set(SERVING_PHASES))):
        for shown in (usual, usual - {name}, usual | {name}):
            glyphs = [LOOKS[part][0] for part in order if part in shown]
            assert all(a != b for a, b in itertools.pairwise(glyphs)), (shown, glyphs)


def after(before: Run, number: int, **changes: Value) -> Run:
    return msgspec.structs.replace(
        before, id=str(number), knobs={**before.knobs, **changes}, changes=changes
    )


def test_the_gain_since_the_start_is_the_proven_gain_where_trials_measured_it() -> None:
    first = Run(
        "1",
        "x",
        "training.gpt",
        {"num_workers": 0, "optim": "adamw"},
        "cpu",
        summary=Summary(tokens_per_s=distribution([1000.0])),
    )
    second = msgspec.structs.replace(
        after(first, 2, num_workers=4), summary=Summary(tokens_per_s=distribution([1500.0]))
    )
    third = msgspec.structs.replace(
        after(second, 3, optim="adamw_fused"), summary=Summary(tokens_per_s=distribution([1400.0]))
    )
    one = Trial(
        "1", "1", {"num_workers": 4}, "done", Speedup(2.0, 1.9, 2.1), verdict="win", kept=True
    )
    two = Trial(
        "2", "2", {"optim": "adamw_fused"}, "done", Speedup(1.5, 1.4, 1.6), verdict="win", kept=True
    )
    back = Trial(
        "3",
        "3",
        {"num_workers": 0, "optim": "adamw"},
        "done",
        Speedup(0.4, 0.38, 0.42),
        verdict="worse",
    )

    def words(runs: list[Run], trials: list[Trial]) -> str:
        gain = facts.since_start(idle_view(runs=tuple(runs), trials=tuple(trials)))
        return gain.words if gain is not None else ""

    assert words([first], []) == ""
    assert words([first, second], [one]) == "2.00x in trials"
    assert words([first, second, third], [one, two]) == "3.00x in trials"
    assert words([first, second, third], [one, two, back]) == "2.50x in trials", (
        "one trial of all changes"
    )
    begun, undecided = (
        msgspec.structs.replace(
            back, state=state, verdict=None if state == "running" else "undecided"
        )
        for state in ("running", "done")
    )
    assert (
        words([first, second, third], [one, begun])
        == words([first, second, third], [one, undecided])
        == "1.40x since start, no trial"
    )
    assert words([first, second, third], [one]) == "1.40x since start, no trial"
    assert words([first, second], []) == "1.50x since start, no trial"
    assert words([first, second, after(second, 3, num_workers=0)], [one]) == "", (
        "the settings of the start again"
    )


def test_the_last_trial_of_a_tuning_session_is_known_where_the_observed_batch_size_has_grown() -> (
    None
):
    """The batch size of a job is that of the largest batch so far. It is no change of the console,
    and no part of the way back."""
    first = Run("1", "t.py", JOB, {"num_workers": 0, "optim": "adamw", "batch_size": 50}, "cpu")
    second = after(first, 2, num_workers=4)
    third = after(second, 3, optim="adamw_fused")
    third.knobs["batch_size"] = 57
    back = Trial(
        "3",
        "3",
        {"num_workers": 0, "optim": "adamw"},
        "done",
        Speedup(0.4, 0.38, 0.42),
        verdict="worse",
    )
    assert facts.proof([first, second, third], [back]) is back
    assert facts.proof([third], [back]) is None
    at_start = msgspec.structs.replace(
        after(third, 4, num_workers=0, optim="adamw"),
        summary=Summary(tokens_per_s=distribution([900.0])),
    )
    first.summary = Summary(tokens_per_s=distribution([1000.0]))
    assert facts.since_start(idle_view(runs=(first, second, third, at_start))) is None, (
        "the settings of the start again"
    )


def test_the_clock_of_work_that_has_ended_stops_and_does_not_jump_back() -> None:
    """A kept change opens a second run: at its end the clock showed the duration of that run alone,
    00:40 in place of 02:07."""
    view = situation("kept")
    going = facts.clock_s(view)
    last = msgspec.structs.replace(view.runs[-1], state="stopped")
    ended = msgspec.structs.replace(
        view,
        runs=(*view.runs[:-1], last),
        state="stopped",
        closed_s=view.now,
        running_s=3.0,
        now=view.now + 50,
    )
    assert len(view.runs) == 2 and facts.clock_s(ended) == going


@pytest.mark.parametrize("width", [80, 120])
def test_a_function_that_no_rule_judges_is_the_headline_and_a_note_is_not(width: int) -> None:
    note = Finding("host.cpu_contention", "fires", "The training thread waits", note=True)
    missing = Finding("gpu.small_batch", "cant_tell", "", missing=("probe.batch_cost_ratio",))
    run = msgspec.structs.replace(
        gpu_view().runs[-1],
        workload=JOB,
        device="cpu",
        steady_from_s=1.0,
        duration_s=60.0,
        signals={f"{phase}_ratio": Signal(0.0, "ratio", "test") for phase in PHASES}
        | {"optimizer_ratio": Signal(0.9, "ratio", "test")},
        findings=[note, missing],
        places=[Place("optimizer", "Triple.step", "train.py:38", 0.55)],
        unavailable={"probe.batch_elasticity": NO_CONSENT},
    )
    view = msgspec.structs.replace(gpu_view(), runs=(run,), trials=())
    first, second = rows(view, width)
    assert first.startswith("▌55 % of the step is in Triple.step at train.py:38, in the optimizer")
    assert second.startswith(
        "▌no rule judges it   P (or --probe) allows the probe batch_elasticity"
    )
    nowhere = msgspec.structs.replace(view, runs=(msgspec.structs.replace(run, places=[]),))
    assert rows(nowhere, width)[0].startswith("▌No conclusion: 1 rule has no data about the passes")
