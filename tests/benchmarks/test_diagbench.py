"""The benchmark of the diagnosis: its cases are well-formed, and its figures follow from its
rows."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from benchmarks.diagbench import run
from benchmarks.diagbench.beside import beside, peers
from benchmarks.diagbench.cases import HEALTHY, TRAINING, Case
from benchmarks.diagbench.charts import families, gains
from benchmarks.diagbench.gpu_cases import GPU, GPU_SERVING
from benchmarks.diagbench.knobs import changes_to_try
from benchmarks.diagbench.rows import Realised, Row, best
from benchmarks.diagbench.score import report, wilson
from benchmarks.diagbench.serving_cases import SERVING
from benchmarks.diagbench.text import page
from benchmarks.pictures import svg
from gpuconsole.diagnosis.engine import all_rules
from gpuconsole.engine.catalog import find_scenario
from gpuconsole.model.experiments import Speedup
from gpuconsole.model.finding import Interval
from gpuconsole.model.knobs.catalogue import Knobs, check_knobs
from gpuconsole.workloads.training.gpt import check_width
from tests.matrix import matrix

EVERY = (*TRAINING, *SERVING, *GPU, *GPU_SERVING)


@pytest.mark.parametrize(
    "case",
    matrix(EVERY, in_ci=(TRAINING[0], SERVING[0], GPU[0], GPU_SERVING[0])),
    ids=lambda case: case.id,
)
def test_a_case_names_scenarios_knobs_and_rules_that_exist(case: Case) -> None:
    for half in ("tuning", "reporting"):
        for seed in range(3):
            scenario, sets = case.drawn(half, seed)  # type: ignore[arg-type]
            chosen = find_scenario(scenario)
            check_knobs(dict(sets), chosen.workload.knobs, scenario)
            if chosen.workload.name == "training.gpt":
                check_width(int(sets.get("d_model", 64)))
            assert set(case.fix) <= set(chosen.workload.knobs)
    assert set(case.truth) <= {rule.id for rule in all_rules()}
    assert case.drawn("reporting", 1) == case.drawn("reporting", 1)


def test_a_third_is_healthy_and_ids_are_unique() -> None:
    assert len({case.id for case in EVERY}) == len(EVERY)
    assert (
        len(HEALTHY) + sum(not case.truth for case in SERVING) >= (len(TRAINING) + len(SERVING)) / 3
    )


def test_the_oracle_turns_no_exercise() -> None:
    knobs = find_scenario("data-starved").knobs_for("cpu")
    turned = {name for changes in changes_to_try(knobs) for name in changes}
    assert {"num_workers", "optim", "batch_size"} <= turned and not turned & {
        "storage_latency_ms",
        "slow_sample_ratio",
        "leak_mb",
    }
    of_known_fix = {name for changes in changes_to_try(knobs, ("num_workers",)) for name in changes}
    assert "batch_size" not in of_known_fix, (
        "a larger batch makes up for whatever a step costs once"
    )


def test_the_best_of_many_short_looks_is_tried_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    found = row("F1", ("host.logging_io",), ("host.logging_io",), fix=("log_every", "num_workers"))
    found.top = Realised({"log_every": 10}, speedup=Speedup(1.3, 1.2, 1.4), verdict="win")
    lucky = Realised({"optim": "adamw_foreach"}, speedup=Speedup(1.5, 1.1, 2.0))
    found.oracle = [
        lucky,
        Realised({"num_workers": 4}, speedup=Speedup(1.35, 1.3, 1.4)),
        Realised({"log_every": 10}, speedup=Speedup(1.6, 1.2, 2)),
    ]
    anew = {"adamw_foreach": Speedup(1.0, 0.98, 1.02), 4: Speedup(1.36, 1.34, 1.38)}

    async def looked_at_longer(engine: object, changes: Knobs, limits: object) -> Realised:
        return Realised(changes, speedup=anew[next(iter(changes.values()))])  # type: ignore[index]

    monkeypatch.setattr(run, "_try", looked_at_longer)
    asyncio.run(run.confirm(None, found))  # type: ignore[arg-type]
    assert [one.speedup and one.speedup.estimate for one in found.oracle] == [1.0, 1.36, 1.6]
    assert best(found) is found.oracle[1], (
        "the first suggestion's own change is known from its longer trial"
    )
    figures = report([found])
    assert (figures["top_realises"], figures["top_realises_runs"], figures["rivals_excluded"]) == (
        0.0,
        1,
        0.0,
    )
    found.oracle = [found.oracle[0], found.oracle[2]]
    figures = report([found])
    assert (figures["top_realises"], figures["rivals_excluded"]) == (1.0, 1.0), (
        "other values of the same knob are no rivals"
    )
    found.top = None
    assert report([found])["rivals_excluded"] == 0.0, (
        "without a suggestion there is nothing that others could fall short of"
    )


def row(case: str, truth: tuple[str, ...], fired: tuple[str, ...], **changes: object) -> Row:
    return Row(case, case, "reporting", 0, 0, "train-gpt", {}, truth, fired=fired, **changes)  # type: ignore[arg-type]


TOP = Realised(
    {"num_workers": 4}, "input.slow_storage", Interval(1.8, 2.2), Speedup(2.1, 1.9, 2.3), "win"
)
UNDONE = Realised(
    {"straggler_ms": 0.0}, "comm.straggler", Interval(1.8, 2.2), Speedup(1.2, 1.1, 1.3), "win"
)


def test_figures_follow_from_rows() -> None:
    rows = [
        row(
            "F1",
            ("input.slow_storage",),
            ("input.slow_storage",),
            top=TOP,
            fix=("num_workers",),
            steady_known_s=2.0,
            found_s=5.0,
        ),
        row("F2", ("input.slow_storage",), ("input.jitter",), top=UNDONE),
        row("F3", ("host.logging_io",), ()),
        row(
            "H1",
            (),
            (),
            steady_from_s=0.5,
            accused=("mem.leak_host",),
            offers=("gpu.fp32_no_tensor_core",),
        ),
        row(
            "H2",
            (),
            ("gpu.small_batch",),
            steady_from_s=0.5,
            nulls=[Realised({"pin_memory": False}, verdict="no_gain")],
        ),
    ]
    found = report(rows)
    assert report([row("H3", (), ())])["false_positive"] == 1.0, (
        "a run that never was steady proves nothing"
    )
    assert (found["top1"], found["family"], found["false_positive"], found["abstained"]) == (
        0.3333,
        0.6667,
        0.5,
        0.3333,
    )
    assert (
        found["gain_median_error"],
        found["gain_covered"],
        found["undoing"],
        found["top_won"],
    ) == (0.0553, 1.0, 1, 1)
    assert (report(rows[:1])["time_to_finding_s"], found["time_to_finding_s"]) == (3.0, None), (
        "a miss never ends"
    )
    assert (found["top1_cases"], found["extra"], found["ever_accused"], found["offered"]) == (
        0.3333,
        0.3333,
        0.5,
        0.5,
    )
    assert found["offered_by_rule"] == {"gpu.fp32_no_tensor_core": 0.5}
    assert (found["null_trials"], found["null_false_wins"], found["null_no_gain"]) == (1, 0, 1.0)
    assert found["failing"] == ["F2", "F3", "H2"]
    told = row(
        "O1", ("gpu.fp32_no_tensor_core",), ("gpu.fp32_no_tensor_core",), offer=True, top=TOP
    )
    with_offer = report([*rows, told])
    assert (with_offer["offers_right"], with_offer["offer_runs"]) == (1.0, 1)
    assert all(
        with_offer[name] == found[name] for name in ("top1", "faulty_runs", "healthy_runs", "gains")
    ), "neither faulty nor healthy"
    whole = "\n".join((page(rows, found), families(rows), gains([rows[0], rows[0]])))
    assert "F1" in whole and "input" in whole and svg(whole, "DiagBench").startswith("<svg")


def test_a_trial_that_came_to_nothing_is_held_against_no_prediction() -> None:
    nothing = Realised(
        {"num_workers": 2}, "input.jitter", Interval(1.1, 1.6), Speedup(0.93, 0.6, 1.4), "undecided"
    )
    missed = Realised(
        {"num_workers": 2},
        "input.jitter",
        Interval(1.2, 1.6),
        Speedup(1.03, 0.99, 1.07),
        "undecided",
    )
    found = report(
        [
            row(f"F{n}", ("input.jitter",), ("input.jitter",), top=top)
            for n, top in enumerate((nothing, missed, TOP))
        ]
    )
    assert (
        found["gains"],
        found["untold"],
        found["gain_covered"],
        found["gain_covered_untold_too"],
    ) == (2, 1, 0.5, 0.3333)


def test_a_label_that_the_oracle_denies_is_disputed_and_counts_nowhere() -> None:
    helps = Realised({"batch_size": 32}, speedup=Speedup(1.4, 1.3, 1.5))
    unsure = Realised({"log_every": 20}, speedup=Speedup(1.1, 0.9, 1.3))
    found = report(
        [
            row("H1", (), (), oracle=[helps], steady_from_s=0.5),
            row(
                "F1", ("host.logging_io",), ("host.logging_io",), fix=("log_every",), oracle=[helps]
            ),
            row(
                "F2",
                ("host.logging_io",),
                ("host.logging_io",),
                fix=("log_every",),
                oracle=[unsure],
            ),
        ]
    )
    assert found["disputed"].keys() == {"H1", "F1"} and found["cases"] == 1, (
        "what could not be told denies nothing"
    )


def test_wilson() -> None:
    low, high = wilson(95, 100)
    assert (round(low, 3), round(high, 3)) == (0.888, 0.978)
    assert wilson(0, 0) == (0.0, 1.0)


def test_peers_stand_in_the_same_table_on_the_cases_that_they_ran(tmp_path: Path) -> None:
    figures = {
        "tool": "other",
        "versions": ["1.0"],
        "faulty_runs": 2,
        "cause_right": 1,
        "cause_runs": 1,
        "family_right": 1,
        "family_runs": 2,
    }
    figures |= {"misled": 1, "false_positive": 0.5, "healthy_runs": 2, "seconds_median": 12.0}
    kept = {"report": figures, "rows": [{"case": "F1", "seed": 0}, {"case": "H1", "seed": 0}]}
    (tmp_path / "diagbench-peers-other-reporting-2026-01-01.json").write_text(json.dumps(kept))
    ours = [
        row("F1", ("input.slow_storage",), ("input.slow_storage",)),
        row("H1", (), (), steady_from_s=0.5, diagnosed_s=9.0),
        row("F2", ("input.jitter",), ()),
    ]
    table = beside(ours, peers("reporting", tmp_path)).splitlines()
    assert table[2].split() == ["gpuconsole", "1/1", "100%", "1/1", "100%", "0/1", "0/1", "9"]
    assert table[3].split() == ["other", "1.0", "1/1", "50%", "1/2", "50%", "1/2", "1/2", "12"]
    assert beside(ours, peers("tuning", tmp_path)) == ""
