"""The comparison of `benchmarks.own_job.innocence`: what counts as a difference, and that all programs are Python."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from benchmarks.own_job.innocence.__main__ import LONG, Runs, accepted, outcome, without_ours
from benchmarks.own_job.innocence.habits import PROGRAMS, Program

WRITES = Program(
    "import sys\nopen('made', 'w').write('x')\nprint('out')\nprint('gpuconsole: ours', file=sys.stderr)\nprint('err', file=sys.stderr)\nsys.exit(3)\n"
)


def test_there_are_many_programs_and_all_are_python() -> None:
    assert len(PROGRAMS) >= 120
    for program in PROGRAMS.values():
        ast.parse(program.text)


def test_an_outcome_has_output_exit_code_and_files_without_our_own_lines(tmp_path: Path) -> None:
    found = outcome(tmp_path, WRITES, [sys.executable, "program.py"], {})
    assert (found.values["stdout"], found.values["stderr"], found.values["exit code"]) == ("out\n", "err\n", "3")
    assert found.values["files left"].splitlines()[0].startswith("made ") and without_ours("gpuconsole: x\na\n") == "a\n"
    other = found._replace(values={**found.values, "stdout": "other\n", "new": "1"})
    assert found.differences(other) == {"stdout": ("out\n", "other\n"), "new": ("", "1")}


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
def test_only_named_additions_are_accepted(fact: str, bare: str, watched: str, is_accepted: bool) -> None:
    assert accepted(fact, bare, watched) is is_accepted


@pytest.mark.slow
def test_a_real_program_is_the_same_with_its_changes_and_one_that_fails_alone_is_not_run(tmp_path: Path) -> None:
    runs = Runs("plain", PROGRAMS["plain"], sys.executable, tmp_path, LONG)
    tried, kept = runs.changed(PROGRAMS["plain"].changes, keep=False), runs.changed(PROGRAMS["plain"].changes, keep=True)
    assert not (runs.watched().differences or tried.differences or kept.differences)
    assert (tried.told, kept.told) == ("optim: made and taken back", "optim: made")
    assert Runs("x", Program("import nowhere"), sys.executable, tmp_path, {}).fails.startswith("ModuleNotFoundError")
