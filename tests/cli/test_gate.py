"""`gpuconsole compare BASE NEW --fail-below` on files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuconsole.experiments.throughput import MeasuredRun
from gpuconsole.model.finding import Finding
from gpuconsole.model.machine import Device
from gpuconsole.model.snapshot import encode
from tests.conftest import Cli
from tests.experiments.test_comparison import HERE
from tests.experiments.test_gate import sides

HOSTILE = "@team </details> [x](http://evil.example) `rm` | a\x1b[2J\nb"


def written(folder: Path, base: list[MeasuredRun], new: list[MeasuredRun]) -> tuple[str, str]:
    """The two sides as folders of snapshots."""
    for name, runs in (("base", base), ("new", new)):
        (folder / name).mkdir(exist_ok=True)
        for number, side in enumerate(runs):
            (folder / name / f"{number}.json").write_bytes(encode(side.session))
    return "base", "new"


def test_the_exit_code_is_the_verdict(cli: Cli, tmp_path: Path) -> None:
    for new, code, words in ((1000, 0, "No regression: "), (900, 1, "Regression: 0.90")):
        done = cli("compare", *written(tmp_path, *sides(1000, new)), "--fail-below", "0.97")
        assert (done.returncode, done.stdout.startswith(words)) == (code, True), (
            done.stdout + done.stderr
        )
    done = cli("compare", "base/0.json", "new/0.json", "--fail-below", "0.92")
    assert (
        done.returncode == 3
        and done.stdout.startswith("Undecided: ")
        and "runs of each side, measured in turn, are needed" in done.stdout
    )
    assert (
        cli(
            "compare", "base/0.json", "new/0.json", "--fail-below", "0.92", "--undecided-fails"
        ).returncode
        == 1
    )


def test_as_json(cli: Cli, tmp_path: Path) -> None:
    done = cli("compare", *written(tmp_path, *sides(1000, 900)), "--fail-below", "0.97", "--json")
    gate = json.loads(done.stdout)
    assert (
        done.returncode == 1
        and gate["verdict"] == "regression"
        and gate["base_runs"] == 4
        and gate["ratio"]["in_turn"] is True
    )
    assert gate["labels"] == ["CPU: no number is GPU data"]


def test_the_comment_is_short_and_texts_of_the_job_stay_texts(cli: Cli, tmp_path: Path) -> None:
    base, new = sides(1000, 900)
    for side in (*base, *new):
        side.run.scenario = HOSTILE
        side.run.summary.phases_ratio = dict.fromkeys(
            ("data_wait", "forward", "backward", "optimizer", "other"), 0.2
        )
    for side in new:
        side.run.findings = [
            Finding(f"rule.{number}", "fires", f"{number} {HOSTILE}") for number in range(100)
        ]
        side.run.knobs = {f"knob_{number}": number for number in range(100)}
    done = cli("compare", *written(tmp_path, base, new), "--fail-below", "0.97", "--markdown")
    assert done.returncode == 1 and done.stdout.startswith("**Regression: 0.90"), done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) < 60 and max(map(len, lines)) < 600
    assert (
        "</details>" not in done.stdout.replace("\\</details>", "")
        and "@team" not in done.stdout
        and "\x1b" not in done.stdout
    )
    assert "[x](" not in done.stdout.replace("\\[x\\](", "") and "- new finding: " in done.stdout
    assert (
        cli("compare", "base", "new", "--fail-below", "0.97", "--markdown", "comment.md").stdout
        == "wrote comment.md\n"
    )
    assert (tmp_path / "comment.md").read_text() == done.stdout


KEY = "workload.{}{{device=cpu}}"


@pytest.mark.parametrize("words", [("compare", "--fail-below", "0.97"), ("compare",), ("report",)])
@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        (("series", KEY.format("tokens_per_s"), "v", 29), 1e308, "out of range: 1e+308 at $.runs"),
        (("series", KEY.format("step_time_s"), "v", 9), -1, "out of range: -1 at $.runs[0].series"),
        (("series", KEY.format("tokens_per_s"), "v", 9), math.nan, "not JSON"),
        (("series", KEY.format("tokens_per_s"), "v", 9), None, "not a valid snapshot"),
        (("series", KEY.format("tokens_per_s"), "v"), [], "not a valid snapshot"),
        (("summary", "tokens_per_s", "mean"), "fast", "not a valid snapshot"),
        (("summary", "tokens_per_s", "mean"), 10**30 * 10**30, "out of range"),
        (("summary", "tokens_per_s", "mean"), 4.6e18, "4.6e+18 at $.runs[0].summary.tokens_per_s"),
        (("summary", "tokens_per_s", "n"), 2**62, "out of range: 4.61e+18"),
        (("series", KEY.format("step_time_s"), "v", 9), 1e15, "out of range: 1e+15 at $.runs[0]"),
        (("summary", "steps"), 2**62, "4.61e+18 at $.runs[0].summary.steps"),
        (("series", KEY.format("tokens_per_s"), "v", 9), 1e19, "out of range: 1e+19"),
        (("duration_s",), 4.6e18, "4.6e+18 at $.runs[0].duration_s"),
        (("duration_s",), 10**400, "not a valid snapshot"),
    ],
)
def test_a_damaged_file_is_no_regression(
    cli_here: Cli,
    tmp_path: Path,
    words: tuple[str, ...],
    path: tuple[Any, ...],
    value: Any,
    why: str,
) -> None:
    """The exit code is 2, and one line names the file and the damage."""
    written(tmp_path, *sides(1000, 1000, runs=1))
    file = tmp_path / "new/0.json"
    session = json.loads(file.read_text())
    inside = session["runs"][0]
    for step in path[:-1]:
        inside = inside[step]
    inside[path[-1]] = value
    file.write_text(json.dumps(session))
    command, *options = words
    done = cli_here(
        command, *(["base/0.json"] if command == "compare" else []), "new/0.json", *options
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert done.stderr.startswith("gpuconsole: new/0.json: ") and why in done.stderr


def test_other_hardware_is_one_line_and_exit_code_2(cli: Cli, tmp_path: Path) -> None:
    base, new = sides(1000, 900)
    other = msgspec.structs.replace(HERE, cores=64)
    new = [
        side._replace(session=msgspec.structs.replace(side.session, environment=other))
        for side in new
    ]
    done = cli("compare", *written(tmp_path, base, new), "--fail-below", "0.97")
    assert done.returncode == 2 and done.stdout == ""
    assert (
        done.stderr == "gpuconsole: base/0.json and new/0.json are not comparable: cores 2 -> 64\n"
    )


def test_a_simulated_gpu_is_named(cli: Cli, tmp_path: Path) -> None:
    base, new = sides(1000, 1000)
    there = msgspec.structs.replace(HERE, devices=[Device("gpu:0", "simulated H100")])
    for side in (*base, *new):
        side.run.device, side.session.environment = "gpu:0", there
    done = cli("compare", *written(tmp_path, base, new), "--fail-below", "0.97", "--markdown")
    assert (
        done.returncode == 0 and "- device: simulated GPU: no number is GPU data" in done.stdout
    ), done.stderr


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ("base", "new", "--fail-below", "0.99"),
            "0.99: must be 0.5 to 0.98: a difference below 2 % counts as none",
        ),
        (("base", "new", "--fail-below", "x"), "x: must be 0.5 to 0.98"),
        (
            ("base", "empty", "--fail-below", "0.9"),
            "empty: this folder has no snapshot (FILE.json)",
        ),
        (("base", "nowhere", "--fail-below", "0.9"), "nowhere: cannot be read"),
        (("base", "x" * 300, "--fail-below", "0.9"), "cannot be read: File name too long"),
        (("x" * 300, "y" * 300), "cannot be read: File name too long"),
        (
            ("base", "base", "--fail-below", "0.9"),
            "base/0.json and base/0.json are the same run: a run counts once",
        ),
        (("base", "new"), "base: a folder goes with --fail-below; without it, name a snapshot"),
    ],
)
def test_bad_usage(cli_here: Cli, tmp_path: Path, arguments: tuple[str, ...], line: str) -> None:
    written(tmp_path, *sides(1000, 1000))
    (tmp_path / "empty").mkdir()
    done = cli_here("compare", *arguments)
    assert (
        done.returncode == 2
        and line in done.stderr
        and done.stderr.count("\n") == 1
        and done.stdout == ""
    )


def test_the_key_of_a_cache(cli: Cli, tmp_path: Path) -> None:
    written(tmp_path, *sides(1000, 900))
    keys = [cli("baselines", "--key", f"{name}/1.json") for name in ("base", "new")]
    assert (
        keys[0].returncode == 0
        and keys[0].stdout == keys[1].stdout
        and keys[0].stdout.startswith("train-gpt-a-CPU-")
    )
    assert cli("baselines", "--key", "nowhere.json").returncode == 2


def test_the_page_of_two_runs_as_markdown_on_stdout(cli: Cli, tmp_path: Path) -> None:
    written(tmp_path, *sides(1000, 800))
    done = cli("compare", "base/0.json", "new/0.json", "--markdown")
    assert (
        done.returncode == 0
        and done.stdout.startswith("# Throughput worse")
        and not list(tmp_path.glob("*.md"))
    )
