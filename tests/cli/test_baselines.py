"""The real command line: a run is kept, and the next run is compared with it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jsonschema
import pytest

from gpuconsole.cli.headless import HeadlessRun
from gpuconsole.cli.parser import parse
from gpuconsole.cli.session import live_engine
from gpuconsole.model.comparison import BaselineComparison, BaselineVerdict, RateChange
from gpuconsole.model.run import Run
from gpuconsole.model.snapshot import Environment, Snapshot, json_schema
from tests.conftest import Cli

SMALL = [
    "--set",
    "d_model=64",
    "--set",
    "n_layer=1",
    "--set",
    "batch_size=2",
    "--set",
    "seq_len=32",
]


def a_thousand_times_faster(path: Path) -> None:
    """The kept run as another machine's would be; without its load, so that no contention of this
    one excuses anything."""
    kept = json.loads(path.read_text())
    for run in kept["runs"]:
        rate = run["summary"]["tokens_per_s"]
        rate |= {"mean": 1000 * rate["mean"], "std": 1000 * rate["std"]}
        run["series"], run["signals"] = {}, {}
        run["summary"].pop("runq_ratio", None)
    path.write_text(json.dumps(kept))


@pytest.mark.matrix
@pytest.mark.slow
def test_a_run_is_kept_and_the_next_one_fails_as_a_regression(cli: Cli, tmp_path: Path) -> None:
    env = {**os.environ, "XDG_DATA_HOME": str(tmp_path / "data")}
    first = cli(
        "run",
        "train-gpt",
        "--headless",
        "--duration",
        "16",
        *SMALL,
        "--save-baseline",
        "--fail-on-regression",
        env=env,
    )
    assert first.returncode == 0, first.stderr
    assert (
        "run 1 could not be checked for a regression: there is no baseline for this scenario"
        in first.stderr
    )
    (path,) = (tmp_path / "data" / "gpuconsole" / "baselines").glob("*/*.json")
    assert f"run 1 kept as a baseline: {path.parent.name}, 1 run" in first.stderr

    # so that a verdict stands on however few steady blocks a busy machine leaves
    a_thousand_times_faster(path)
    doctored = path.read_bytes()
    args = [
        "--duration",
        "16",
        "--save-baseline",
        "--fail-on-regression",
        "--snapshot",
        "s.json",
        "--record",
        "r.jsonl",
    ]
    second = cli("run", "train-gpt", "--headless", *SMALL, *args, env=env)
    assert second.returncode == 1, second.stdout + second.stderr
    assert "slower than the baseline of 2" in second.stdout
    assert "run 1 has regressed: " in second.stderr
    assert "run 1 is not kept as a baseline: it is slower" in second.stderr
    assert path.read_bytes() == doctored and [*path.parent.iterdir()] == [path]
    gate = cli("compare", str(path.parent), "s.json", "--fail-below", "0.97", "--json", env=env)
    ratio, change = (
        json.loads(gate.stdout)["ratio"],
        json.loads((tmp_path / "s.json").read_text())["runs"][0]["baseline"]["change"],
    )
    assert gate.returncode == 1
    assert [ratio[name] - 1 for name in ("estimate", "low", "high")] == [
        change[name] for name in ("estimate", "low", "high")
    ]
    listed = cli("baselines", env=env).stdout
    assert (
        listed.startswith(f"{path.parent.name}  train-gpt: ")
        and "batch_size=2" in listed
        and "tokens/s" in listed
    )
    (shown,) = json.loads(cli("baselines", "--json", env=env).stdout)[path.parent.name]
    assert shown["file"] == str(path) and shown["summary"]["steps"] > 0
    snapshot = json.loads((tmp_path / "s.json").read_text())
    jsonschema.validate(snapshot, json_schema())
    found = snapshot["runs"][0]["baseline"]
    assert found["verdict"] == "slower"
    assert found["change"]["high"] < -0.5
    again = cli("replay", "r.jsonl", "--headless", env=env)
    assert found["words"] in again.stdout


class Measured:
    """A session with one finished run, which its baseline calls `verdict`; None: there is no
    baseline."""

    def __init__(self, verdict: BaselineVerdict | None) -> None:
        compared = (
            BaselineComparison(
                "k", f"it is {verdict}", verdict=verdict, change=RateChange(-0.2, -0.3, -0.1)
            )
            if verdict
            else None
        )
        self._run = Run(
            "1", "train-gpt", "training.gpt", {}, "cpu", state="finished", baseline=compared
        )
        self.baselines = SimpleNamespace(kept=[], failed=[])

    def snapshot(self) -> Snapshot:
        return Snapshot(
            created="", gpuconsole="", environment=Environment(), runs=[self._run], trials=[]
        )


@pytest.mark.parametrize(
    ("verdict", "code"), [("slower", 1), ("same", 0), ("undecided", 0), (None, 0)]
)
def test_a_slower_run_fails_only_where_that_is_asked_for(
    verdict: BaselineVerdict | None, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, expected in (([], 0), (["--fail-on-regression"], code)):
        args = parse(["run", "train-gpt", "--headless", "--save-baseline", *words])
        assert HeadlessRun(args, {}, {})._report(cast("Any", Measured(verdict))) == expected
        asked, said = bool(words), capsys.readouterr().err
        assert ("run 1 has regressed: it is slower" in said) == (asked and verdict == "slower")
        assert (
            "could not be checked for a regression: there is no baseline for this scenario" in said
        ) == (asked and verdict is None)
        assert live_engine(args).baselines._keeps == ("all but slower" if asked else "all")


def test_baselines_are_listed_and_removed(cli: Cli, tmp_path: Path) -> None:
    env = {**os.environ, "XDG_DATA_HOME": str(tmp_path)}
    assert "there are no baselines" in cli("baselines", env=env).stdout
    folder = tmp_path / "gpuconsole" / "baselines"
    folder.mkdir(parents=True)
    (folder / "broken.json").write_text("{")
    listed = cli("baselines", env=env)
    assert listed.returncode == 0
    assert len(listed.stderr.splitlines()) == 1
    assert (
        "broken.json: no longer read: an earlier gpuconsole kept rates, and no sessions. Keep a"
        " run again; "
    ) in listed.stderr
    assert json.loads(cli("baselines", "--json", env=env).stdout) == {}
    wrong = cli("baselines", "--remove", "brocken", env=env)
    assert wrong.returncode == 2
    assert "did you mean 'broken'?" in wrong.stderr
    assert cli("baselines", "--remove", "broken", env=env).returncode == 0
    assert not (folder / "broken.json").exists()


def test_a_folder_that_cannot_be_written_is_reported_before_the_run_starts(
    cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    done = cli(
        "run",
        "train-gpt",
        "--headless",
        "--save-baseline",
        env={**os.environ, "XDG_DATA_HOME": str(tmp_path / "file")},
    )
    assert done.returncode == 2
    assert "--save-baseline: " in done.stderr and "cannot be written" in done.stderr
    assert (
        "--fail-on-regression goes with --headless"
        in cli("run", "train-gpt", "--fail-on-regression").stderr
    )
