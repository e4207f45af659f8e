"""`gpuconsole compare` on files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuconsole.model.snapshot import Snapshot, decode, encode
from tests.conftest import Cli
from tests.experiments.test_comparison import HERE, run


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A session of two runs, the second faster, and one of a run that is slower than both."""
    first, second, third = run(1000, batch_size=8), run(1300, batch_size=16), run(500, batch_size=8)
    second.id = "2"
    paths = (tmp_path / "a.json", tmp_path / "b.json")
    for path, runs in zip(paths, ([first, second], [third]), strict=True):
        path.write_bytes(
            encode(Snapshot(created="", gpuconsole="", environment=HERE, runs=runs, trials=[]))
        )
    return paths


def test_the_last_runs_of_two_files(cli: Cli, files: tuple[Path, Path]) -> None:
    done = cli("compare", *map(str, files))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].endswith("a.json#2 train-gpt on cpu") and lines[2].split() == [
        "environment",
        "the",
        "same",
    ]
    (rate,) = [line for line in lines if "workload.tokens_per_s" in line]
    assert "worse" in rate and "-61" in rate


def test_two_runs_of_one_file_as_json(cli: Cli, files: tuple[Path, Path]) -> None:
    done = cli("compare", f"{files[0]}#1", f"{files[0]}#2", "--json")
    found = json.loads(done.stdout)
    assert found["knobs"] == [{"name": "batch_size", "before": "8", "after": "16"}]
    (rate,) = [one for one in found["metrics"] if one["metric"] == "workload.tokens_per_s"]
    assert rate["verdict"] == "better" and rate["change"]["low"] > 0.1


def test_a_run_that_is_not_there_is_named(cli: Cli, files: tuple[Path, Path]) -> None:
    done = cli("compare", f"{files[0]}#7", str(files[1]))
    assert done.returncode == 2 and "the runs are 1, 2" in done.stderr
    done = cli("compare", "nowhere.json", str(files[1]))
    assert done.returncode == 2 and "nowhere.json: cannot be read" in done.stderr


def test_two_scenarios_are_no_speedup(cli: Cli, files: tuple[Path, Path]) -> None:
    snapshot = decode(files[1].read_bytes())
    snapshot.runs[0].scenario, snapshot.environment.torch = "tiny-batch", "2.12.0"
    files[1].write_bytes(encode(snapshot))
    done = cli("compare", f"{files[0]}#1", str(files[1]))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[2:5] == [
        "differs     scenario train-gpt -> tiny-batch",
        "differs     torch 2.13.0 -> 2.12.0",
        (
            "caution     the runs differ in scenario and torch: their ratio is not the speedup of a"
            " change"
        ),
    ]
    (rate,) = [line for line in lines if "workload.tokens_per_s" in line]
    assert "lower" in rate and "worse" not in done.stdout
    page = files[0].parent / "page.md"
    assert cli("compare", f"{files[0]}#1", str(files[1]), "--markdown", str(page)).returncode == 0
    assert page.read_text().startswith(
        "# The runs are not alike: their ratio is not the speedup of a change\n"
    )


def test_the_same_file_twice_is_one_run(cli: Cli, files: tuple[Path, Path]) -> None:
    done = cli("compare", str(files[1]), str(files[1]))
    assert done.returncode == 0, done.stderr
    assert "both are the same run of the same session" in done.stdout and "--all" not in done.stdout
    assert (
        json.loads(cli("compare", str(files[1]), str(files[1]), "--json").stdout)["same_run"]
        is True
    )


def test_an_interval_has_one_unit(cli: Cli, files: tuple[Path, Path]) -> None:
    """The lower end is below a factor of eleven, the upper end above it."""
    before, after = run(1000, noise=0.3), run(11_500, seed=1, noise=0.3)
    for path, one in zip(files, (before, after), strict=True):
        path.write_bytes(
            encode(Snapshot(created="", gpuconsole="", environment=HERE, runs=[one], trials=[]))
        )
    (line,) = [
        line
        for line in cli("compare", *map(str, files)).stdout.splitlines()
        if "workload.tokens_per_s" in line
    ]
    low, high = line[line.index("[") + 1 : line.index("]")].split(", ")
    assert (
        low.endswith("x")
        and high.endswith("x")
        and float(low[:-1]) < 11 < float(high[:-1])
        and "%" not in line
    )


def test_the_throughput_has_a_row_also_where_nothing_changed(
    cli: Cli, files: tuple[Path, Path]
) -> None:
    same = run(1001, 5, batch_size=8)
    files[1].write_bytes(
        encode(Snapshot(created="", gpuconsole="", environment=HERE, runs=[same], trials=[]))
    )
    done = cli("compare", f"{files[0]}#1", str(files[1]))
    assert "workload.tokens_per_s" in done.stdout and "undecided" in done.stdout
