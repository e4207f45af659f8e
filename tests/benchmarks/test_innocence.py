"""The comparison of `benchmarks.own_job.innocence`: what counts as a difference, and that all
programs are Python."""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path

import pytest

from benchmarks.own_job.innocence.__main__ import (
    LONG,
    Outcome,
    Row,
    Runs,
    accepted,
    compared,
    every_program,
    outcome,
    read,
    rows_of,
    without_ours,
)
from benchmarks.own_job.innocence.habits import PROGRAMS, Program

WRITES = Program(
    "import sys\nopen('made', 'w').write('x')\nprint('out')\n"
    "print('gpuconsole: ours', file=sys.stderr)\nprint('err', file=sys.stderr)\nsys.exit(3)\n"
)


def test_there_are_many_programs_and_all_are_python() -> None:
    assert len(PROGRAMS) >= 120 and len(every_program()) >= len(PROGRAMS) + 60
    for program in every_program().values():
        ast.parse(program.text)


def test_an_outcome_has_output_exit_code_and_files_without_our_own_lines(tmp_path: Path) -> None:
    found = outcome(tmp_path, WRITES, [sys.executable, "program.py"], {})
    assert (found.values["stdout"], found.values["stderr"], found.values["exit code"]) == (
        "out\n",
        "err\n",
        "3",
    )
    assert (
        found.values["files left"].splitlines()[0].startswith("made ")
        and without_ours("gpuconsole: x\na\n") == "a\n"
    )
    other = found._replace(values={**found.values, "stdout": "other\n", "new": "1"})
    assert found.differences(other) == {"stdout": ("out\n", "other\n"), "new": ("", "1")}


def test_the_first_lines_of_a_file_say_how_it_is_run(tmp_path: Path) -> None:
    file = tmp_path / "train it.py"
    head = (
        "# needs: torch, nowhere\n# command: coverage run {program}\n# exit: -11\n# python: 3.12\n"
        "# design: stderr: a line of ours\n"
    )
    file.write_text(head + "print(1)\n")
    ((name, made),) = read(f"'{file}' --epochs 2", "ignored").items()
    assert (name, made.file, made.command) == (
        "train it --epochs 2",
        "train it.py",
        "coverage run {program} --epochs 2",
    )
    assert (made.needs, made.exit, made.python, made.design) == (
        ("torch", "nowhere"),
        -11,
        "3.12",
        (("stderr", "a line of ours"),),
    )
    file.write_text("print(1)\n")
    (plain,) = read(str(tmp_path), "{python} -X dev {program}").values()
    assert (plain.command, plain.exit, plain.needs, plain.design) == (
        "{python} -X dev {program}",
        0,
        (),
        (),
    )


def test_times_addresses_and_process_numbers_are_not_compared() -> None:
    pairs = [
        ("1 passed in 2.31s", "1 passed in 12.04s"),
        ("<Net at 0x7f12a3b4c5d6>", "<Net at 0x7f12a3b4ffff>"),
        ("DataLoader worker (pid(s) 12, 345) exited", "DataLoader worker (pid(s) 77, 8) exited"),
        ("2026-11-29 17:05:33,123 INFO", "2026-11-30 01:15:00,001 INFO"),
        ("[W1129 17:05:33.123456 4711 x.py:3] a", "[W1129 17:06:00.1 12 x.py:3] a"),
    ]
    assert [compared(one) == compared(other) for one, other in pairs] == [True] * len(pairs)
    assert compared("loss 0.123 after 40 steps, line 12") == "loss 0.123 after 40 steps, line 12"


def rows(program: Program, **how: object) -> list[Row]:
    return rows_of(
        "x",
        program,
        sys.executable,
        argparse.Namespace(**{"changes": False, "bare": True, "options": "", **how}),
    )


def test_a_program_that_cannot_be_compared_has_its_reason() -> None:
    assert [row.reason for row in rows(Program("", python="4.0"))] == ["Python 4.0 or newer"]
    assert [row.reason for row in rows(Program("", needs=("nowhere",)))] == [
        "nowhere is not installed"
    ]
    assert [row.reason for row in rows(Program("raise SystemExit('no data')", exit=0))] == [
        "it fails without gpuconsole: exit code 1: no data"
    ]
    assert [row.state() for row in rows(Program("raise SystemExit(3)", exit=3))] == ["same"]
    assert [row.state() for row in rows(Program("import os; print(os.urandom(8))", exit=0))] == [
        "DIFFERS: stdout"
    ]
    (run,) = rows(Program("print(1)", exit=0, command='bash -c "{python} {program}; exit 0"'))
    assert run.state() == "same" and run.bare_s > 0 and run.watched_s > 0


def test_what_differs_by_chance_or_by_design_is_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = {"stdout": "1", "stderr": "", "exit code": "0", "files left": "", "value": "a"}
    watched = {**bare, "stdout": "2", "stderr": "ours", "value": "b"}
    cases = {
        (): ("", "stdout, stderr, value"),
        ("value",): ("", "stdout, stderr"),
        ("stdout", "value"): ("stdout differs bare against bare", "stderr"),
    }
    for chance, (reason, differing) in cases.items():
        for design in ((), (("stderr", "one line"),)):
            made = iter([bare, watched, {**bare, **dict.fromkeys(chance, "by chance")}])
            monkeypatch.setattr(Runs, "_run", lambda self, before, made=made: Outcome(next(made)))
            row = Runs(
                "x", Program("", exit=0, design=design), sys.executable, tmp_path, {}
            ).watched()
            by_design = ["by design: stderr: one line"] if design else []
            assert row.reason == "; ".join(filter(None, [reason, *by_design]))
            assert ", ".join(row.differences) == ", ".join(
                name for name in differing.split(", ") if not (design and name == "stderr")
            )


@pytest.mark.parametrize(
    ("fact", "bare", "watched", "is_accepted"),
    [
        ("files", "['null']", "['doorbell', 'null']", True),
        ("files", "['null', 'x']", "['doorbell', 'null']", False),
        ("files", "['null']", "['null', 'other']", False),
        ("modules", "['os']", "['os', 'json.decoder', 'torch.utils.x']", True),
        ("modules", "['os']", "['os', 'gpuconsole']", False),
        ("callbacks of gc", "0", "1", True),
        ("callbacks of gc (1)", "0", "2", False),
        ("callbacks of gc", "0", "", False),
        ("threads", "['MainThread']", "['MainThread', 'x']", False),
        ("files", "['null']", "['doorbell', 'null', 'torch_17726_2779089207_149 (deleted)']", True),
        ("files", "['null']", "['null', 'torch_weights.bin']", False),
        ("threads", "['MainThread']", "['MainThread', 'QueueFeederThread']", True),
        ("threads", "['MainThread']", "['MainThread', 'Thread-1']", False),
    ],
)
def test_only_named_additions_are_accepted(
    fact: str, bare: str, watched: str, is_accepted: bool
) -> None:
    assert accepted(fact, bare, watched) is is_accepted


@pytest.mark.slow
@pytest.mark.matrix
def test_a_real_program_is_the_same_with_its_changes_and_one_that_fails_alone_is_not_run(
    tmp_path: Path,
) -> None:
    runs = Runs("plain", PROGRAMS["plain"], sys.executable, tmp_path, LONG)
    tried, kept = (
        runs.changed(PROGRAMS["plain"].changes, keep=False),
        runs.changed(PROGRAMS["plain"].changes, keep=True),
    )
    assert not (runs.watched().differences or tried.differences or kept.differences)
    assert (tried.told, kept.told) == ("optim: made and taken back", "optim: made")
    assert (
        "ModuleNotFoundError"
        in Runs("x", Program("import nowhere"), sys.executable, tmp_path, {}).fails
    )
