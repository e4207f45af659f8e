"""`gpuconsole compare` on files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuconsole.model.snapshot import Snapshot, encode
from tests.conftest import Cli
from tests.experiments.test_comparison import HERE, run


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A session of two runs, the second faster, and one of a run that is slower than both."""
    first, second, third = run(1000, batch_size=8), run(1300, batch_size=16), run(500, batch_size=8)
    second.id = "2"
    paths = (tmp_path / "a.json", tmp_path / "b.json")
    for path, runs in zip(paths, ([first, second], [third]), strict=True):
        path.write_bytes(encode(Snapshot(created="", gpuconsole="", environment=HERE, runs=runs, trials=[])))
    return paths


def test_the_last_runs_of_two_files(cli: Cli, files: tuple[Path, Path]) -> None:
    done = cli("compare", *map(str, files))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].endswith("a.json#2 train-gpt on cpu") and lines[2].split() == ["environment", "the", "same"]
    (rate,) = [line for line in lines if "workload.tokens_per_s" in line]
    assert "worse" in rate and "-61" in rate


def test_two_runs_of_one_file_as_json(cli: Cli, files: tuple[Path, Path]) -> None:
    done = cli("compare", f"{files[0]}#1", f"{files[0]}#2", "--json")
    found = json.loads(done.stdout)
    assert found["knobs"] == [{"name": "batch_size", "before": "8", "after": "16"}]
    (rate,) = [one for one in found["metrics"] if one["metric"] == "workload.tokens_per_s"]
    assert rate["verdict"] == "better" and rate["change"]["low"] > 0.2


def test_a_run_that_is_not_there_is_named(cli: Cli, files: tuple[Path, Path]) -> None:
    done = cli("compare", f"{files[0]}#7", str(files[1]))
    assert done.returncode == 2 and "the runs are 1, 2" in done.stderr
    done = cli("compare", "nowhere.json", str(files[1]))
    assert done.returncode == 2 and "nowhere.json: cannot be read" in done.stderr
