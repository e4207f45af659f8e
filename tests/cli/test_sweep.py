"""`gpuconsole sweep` with real workers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Cli


@pytest.mark.slow
def test_hot_and_cold_settings_in_turn(cli: Cli, tmp_path: Path) -> None:
    target = tmp_path / "sweep.json"
    vary = ("--vary", "batch_size=1,8", "--vary", "d_model=64,128")
    done = cli(
        "sweep",
        "train-gpt",
        "--device",
        "cpu",
        "--set",
        "d_model=64",
        "--set",
        "batch_size=4",
        "--set",
        "num_threads=1",
        *vary,
        "--repeat",
        "2",
        "--snapshot",
        str(target),
        "--record",
        str(tmp_path / "sweep.jsonl"),
    )
    assert done.returncode == 0, done.stderr
    (sweep,) = json.loads(target.read_text())["sweeps"]
    assert [
        (point["knobs"]["batch_size"], point["knobs"]["d_model"]) for point in sweep["points"]
    ] == [(4, 64), (1, 64), (8, 64), (4, 128)]
    assert all(len(point["rates"]) == 2 and min(point["rates"]) > 0 for point in sweep["points"])
    assert all(point["low"] < sum(point["rates"]) / 2 < point["high"] for point in sweep["points"])
    assert (
        "interleaved repeats" in done.stdout
        and " best" in done.stdout
        and "d_model=128" in done.stdout
    )
    recorded = (tmp_path / "sweep.jsonl").read_text()
    assert '"sample"' in recorded and "batch_size=8 d_model=64" in recorded, (
        "the recording holds the devices and the result"
    )


def test_bad_usage_is_reported_in_one_line(cli_here: Cli) -> None:
    for words, reason in (
        (("--vary", "no_such=1,2"), "has no setting 'no_such'"),
        (("--vary", "batch_size=1"), "expected NAME=A,B,..."),
        (("--vary", "batch_size=1,x"), "batch_size"),
        (("--vary", "batch_size=1,2", "--repeat", "1"), "must be 2 or more"),
    ):
        done = cli_here("sweep", "train-gpt", *words)
        assert done.returncode == 2 and reason in done.stderr and done.stderr.count("\n") == 1
