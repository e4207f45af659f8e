"""Other tools on the benchmark: their words are read and mapped as published, and the figures keep
apart what they have no word for."""

from __future__ import annotations

import ast
import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks.diagbench.cases import TRAINING, Case
from benchmarks.diagbench.peers import gpuprof, slowai, traceml, train_doctor
from benchmarks.diagbench.peers.__main__ import PEERS, read
from benchmarks.diagbench.peers.peer import CASES, Job, Peer
from benchmarks.diagbench.peers.plain import drawn
from benchmarks.diagbench.peers.run import PeerRow, diagnose, execute
from benchmarks.diagbench.peers.score import cause_outcome, family_outcome, one_line, page, report
from benchmarks.diagbench.peers.verdict import (
    CANNOT_TELL,
    FINE,
    NOTE,
    Said,
    judge,
    names,
    points_to,
)
from gpuconsole.diagnosis.engine import all_rules
from tests.waiting import gone, wait_until

RULES = {rule.id for rule in all_rules()}
FAMILIES = {rule.partition(".")[0] for rule in RULES}


@pytest.mark.parametrize("peer", PEERS.values(), ids=lambda peer: peer.name)
def test_a_mapping_uses_our_words(peer: Peer) -> None:
    for word, meaning in peer.meanings.items():
        assert set(meaning.causes) <= RULES, word
        assert set(meaning.families) <= {*FAMILIES, "healthy"}, word
        assert {cause.partition(".")[0] for cause in meaning.causes} <= set(meaning.families), word


@pytest.mark.parametrize("peer", PEERS.values(), ids=lambda peer: peer.name)
def test_commands_run_a_script_of_the_case(peer: Peer, tmp_path: Path) -> None:
    commands = peer.commands(Job("/venv/python", tmp_path, "C08", "reporting", 3, 12.0, 300.0))
    assert all(command[0] == "/venv/python" for command in commands)
    assert any(str(tmp_path / "train.py") in command for command in commands)
    script = (tmp_path / "train.py").read_text()
    ast.parse(script)
    assert "'C08'" in script and "'reporting'" in script and "'3'" in script


@pytest.mark.slow
def test_jobs_of_several_processes_and_mere_offers_are_left_out_and_no_others() -> None:
    assert {case.id for case in TRAINING} - {case.id for case in CASES} == {
        "C26",
        "C27",
        "C28",
        "C29",
        "C30",
    }
    for case in CASES:
        workload, knobs = drawn(case.id, "reporting", 0)
        assert workload in ("training.gpt", "training.vision", "training.ragged")
        assert {
            "log_every",
            "save_every",
            "eval_every",
            "eval_batch_size",
            "gc_collect_every",
            "gradient_percentiles",
        } <= set(knobs)


# --- what each tool writes, in its own form -------------------------------------------------------


def traceml_summary(kind: str, **sections: str) -> dict[str, object]:
    found = {
        name: {"diagnosis": {"kind": word, "status": word, "severity": "warn"}}
        for name, word in sections.items()
    }
    return {
        "schema_version": "1.8",
        "primary_diagnosis": {
            "kind": kind,
            "status": kind,
            "severity": "crit",
            "section": "step_time",
        },
        **found,
    }


@pytest.mark.parametrize(
    ("summary", "families", "causes"),
    [
        (
            traceml_summary("INPUT_BOUND", system="NORMAL", process="NORMAL", step_memory="NO_GPU"),
            ("input",),
            (),
        ),
        (traceml_summary("RESIDUAL_HEAVY", process="HIGH_PROCESS_CPU"), ("host",), ()),
        (traceml_summary("COMPUTE_BOUND", system="HIGH_CPU"), ("healthy",), ()),
        (
            traceml_summary("NO_CLEAR_PERFORMANCE_BOTTLENECK", process="HIGH_PROCESS_RSS"),
            ("mem",),
            (),
        ),
        (traceml_summary("INSUFFICIENT_STEP_TIME_DATA"), (), ()),
        (traceml_summary("INPUT_STRAGGLER"), ("comm",), ("comm.straggler",)),
    ],
)
def test_traceml(
    summary: dict[str, object], families: tuple[str, ...], causes: tuple[str, ...], tmp_path: Path
) -> None:
    place = tmp_path / "logs" / traceml.RUN
    place.mkdir(parents=True)
    (place / "final_summary.json").write_text(json.dumps(summary))
    verdict = judge(traceml.read(tmp_path), traceml.MEANINGS)
    assert (verdict.families, verdict.causes, verdict.unknown) == (families, causes, ())


@pytest.mark.parametrize(
    ("found", "families", "causes"),
    [
        (
            [("dataloader_bound", 0.64), ("cpu_bound_preprocessing", 0.58)],
            ("input",),
            ("input.too_few_workers", "input.slow_storage"),
        ),
        (
            [("cpu_bound_preprocessing", 0.5), ("no_torch_compile", 0.02)],
            ("input",),
            ("input.cpu_transform",),
        ),
        (
            [("no_torch_compile", 0.06), ("checkpoint_in_hot_loop", 0.03)],
            ("host",),
            ("host.checkpoint_stall",),
        ),
        ([("no_torch_compile", 0.06)], ("healthy",), ()),
        ([], ("healthy",), ()),
    ],
)
def test_train_doctor(
    found: list[tuple[str, float]],
    families: tuple[str, ...],
    causes: tuple[str, ...],
    tmp_path: Path,
) -> None:
    run = tmp_path / "runs" / "20260101-000000-profile"
    run.mkdir(parents=True)
    (run / "findings.json").write_text(
        json.dumps([{"id": word, "title": "", "score": score} for word, score in found])
    )
    (run / "evidence.json").write_text(json.dumps({"source": "hook"}))
    verdict = judge(train_doctor.read(tmp_path), train_doctor.MEANINGS)
    assert (verdict.families, verdict.causes) == (families, causes)


def test_train_doctor_without_steps_has_no_verdict() -> None:
    with pytest.raises(ValueError, match="steps"):
        train_doctor.findings([], {"source": "none"})


@pytest.mark.parametrize(
    ("insights", "families", "causes"),
    [
        (
            [("low", "Estimated cost: $0.04"), ("low", "No major bottlenecks detected")],
            ("healthy",),
            (),
        ),
        ([("medium", "19% of step time waiting on the loader (inter-step gap)")], ("input",), ()),
        (
            [
                ("medium", "21% of step time waiting on the loader (x)"),
                ("high", "stall + CPU pegged (97% avg) — workers are CPU-bound"),
            ],
            ("input",),
            ("input.cpu_transform",),
        ),
        (
            [
                ("high", "70% of step time waiting on the loader (x)"),
                ("high", "stall + disk hot (peak 700 MB/s) — I/O-bound"),
            ],
            ("input",),
            ("input.slow_storage",),
        ),
        (
            [
                ("low", "Step-time p99/p50 = 3.0× — high tail latency"),
                ("low", "backward/forward = 3.1×"),
            ],
            ("healthy",),
            (),
        ),
        (
            [("low", "14% of step unaccounted (Python overhead)")],
            ("host",),
            ("host.launch_bound", "host.python_overhead"),
        ),
    ],
)
def test_gpuprof(
    insights: list[tuple[str, str]],
    families: tuple[str, ...],
    causes: tuple[str, ...],
    tmp_path: Path,
) -> None:
    told = {
        "summary": {"n_steps": 40},
        "insights": [{"severity": severity, "title": title} for severity, title in insights],
    }
    (tmp_path / "output.txt").write_text(json.dumps(told, indent=2))
    verdict = judge(gpuprof.read(tmp_path), gpuprof.MEANINGS)
    assert (verdict.families, verdict.causes, verdict.unknown) == (families, causes, ())


def test_every_title_of_gpuprof_has_a_meaning() -> None:
    assert {rule for _, rule in gpuprof.TITLES} == set(gpuprof.MEANINGS)
    assert gpuprof.rule_of("Something new") == "Something new"


@pytest.mark.parametrize(
    ("regime", "families", "causes"),
    [
        ("overhead", ("gpu",), ("gpu.small_batch",)),
        ("compute", ("healthy",), ()),
        ("memory", ("gpu",), ("gpu.elementwise_membw",)),
        ("unknown", (), ()),
    ],
)
def test_slowai(regime: str, families: tuple[str, ...], causes: tuple[str, ...]) -> None:
    output = (
        "a warning {of torch}\n"
        + json.dumps({"workload": "train.py", "regime": regime, "confidence": 0.85}, indent=2)
        + "\n"
    )
    verdict = judge(slowai.findings(output), slowai.MEANINGS)
    assert (verdict.families, verdict.causes) == (families, causes)


# --- verdicts and figures -------------------------------------------------------------------------

MEANINGS = {
    "input": points_to("input"),
    "slow disk": names("input.slow_storage"),
    "logging": names("host.logging_io"),
    "leak": names("mem.leak_gpu", gpu_only=True),
    "fine": FINE,
    "hint": NOTE,
    "?": CANNOT_TELL,
}


def told(text: str) -> str:
    return f"print({text!r})"


FAKE = Peer(
    "fake",
    "fake",
    "1",
    "nothing",
    MEANINGS,
    lambda job: [[job.python, "-c", told("slow disk")]],
    lambda folder: [Said((folder / "output.txt").read_text().strip())],
)


def test_the_first_that_blames_decides_and_a_later_one_makes_it_precise() -> None:
    assert judge(
        [Said("hint"), Said("input"), Said("logging"), Said("slow disk")], MEANINGS
    ).causes == ("input.slow_storage",)
    assert judge([Said("logging"), Said("slow disk")], MEANINGS).families == ("host",)
    assert judge([Said("?"), Said("hint")], MEANINGS).families == ()
    assert judge([Said("new")], MEANINGS).unknown == ("new",)


def row(case: str, truth: tuple[str, ...], *words: str, error: str = "") -> PeerRow:
    return PeerRow(
        "fake",
        "1",
        case,
        case,
        "reporting",
        0,
        truth,
        tuple(Said(word) for word in words),
        error,
        20.0,
    )


def test_a_cause_without_a_word_for_it_is_not_applicable() -> None:
    leak = row("F1", ("mem.leak_host",), "logging")
    assert (cause_outcome(leak, FAKE), family_outcome(leak, FAKE)) == (
        "not applicable",
        "not applicable",
    )
    jitter = row("F2", ("input.jitter",), "input")
    assert (cause_outcome(jitter, FAKE), family_outcome(jitter, FAKE)) == (
        "not applicable",
        "right",
    )
    disk = row("F3", ("input.slow_storage",), "fine")
    assert (cause_outcome(disk, FAKE), family_outcome(disk, FAKE)) == ("silent", "silent")
    assert cause_outcome(row("F4", ("input.slow_storage",), "input"), FAKE) == "wrong"


def test_figures_follow_from_rows() -> None:
    rows = [
        row("F1", ("mem.leak_host",), "logging"),
        row("F2", ("input.slow_storage",), "slow disk"),
        row("F3", ("host.logging_io",), "input"),
        row("F4", ("host.logging_io",), error="it crashed"),
        row("H1", (), "fine"),
        row("H2", (), "logging", "unheard of"),
        row("H3", (), error="it crashed"),
    ]
    found = report(rows, FAKE)
    assert (
        found["cause"],
        found["cause_runs"],
        found["cause_not_applicable"],
        found["cause_of_all"],
    ) == (0.3333, 3, 1, 0.25)
    assert (found["cause_right"], found["cause_wrong"], found["cause_silent"]) == (1, 1, 1)
    assert (found["family"], found["misled"], found["false_positive"], found["healthy_runs"]) == (
        0.3333,
        2,
        0.5,
        2,
    )
    assert (found["failed_runs"], found["seconds_median"], found["unknown_words"]) == (
        2,
        20.0,
        ["unheard of"],
    )
    assert found["cause_low"] < found["cause"] < found["cause_high"]
    whole = "\n".join([page(rows, FAKE, found), *(one_line(one, FAKE) for one in rows)])
    assert "not applicable" in whole and "it crashed" in whole and "false positive" in whole
    assert report([], FAKE)["cause"] is None


CASE = Case("C99", "made_up", ("input.slow_storage",), lambda chance, half: ("vision-healthy", {}))


def test_a_run_becomes_a_row_that_is_found_again(tmp_path: Path) -> None:
    made = diagnose(FAKE, "1", sys.executable, CASE, "reporting", 0, 1.0, 30.0)
    assert made.said == (Said("slow disk"),) and not made.error and made.elapsed_s < 30
    path = tmp_path / "rows.jsonl"
    path.write_bytes(msgspec.json.encode(made) + b"\n")
    assert [one.key for one in read(path)] == [("fake", "C99", "reporting", 0)]
    assert read(tmp_path / "none.jsonl") == []


def test_a_tool_that_fails_leaves_a_row_too() -> None:
    failing = dataclasses.replace(
        FAKE, commands=lambda job: [[job.python, "-c", "raise SystemExit('no torch')"]]
    )
    made = diagnose(failing, "1", sys.executable, CASE, "reporting", 0, 1.0, 30.0)
    assert "no torch" in made.error and not made.said


@pytest.mark.slow
def test_what_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time; print(subprocess.Popen([sys.executable, '-c', 'import time;"
        " time.sleep(60)']).pid, flush=True); time.sleep(60)"
    )
    with pytest.raises(subprocess.TimeoutExpired):
        execute([sys.executable, "-c", code], tmp_path, {}, 4.0)
    child = int((tmp_path / "output.txt").read_text())
    wait_until(lambda: gone(child), 5.0, "the kernel ends it a moment after it was told to")
