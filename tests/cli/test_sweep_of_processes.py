"""`gpuconsole sweep --vary nproc=`: the same work on several numbers of processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpuconsole.cli.scaling import with_nproc
from gpuconsole.model.run import Distribution, Run, Summary
from gpuconsole.report.experiments import scaling_table
from gpuconsole.report.parts import printed
from tests.conftest import Cli

SMALL = ["batch_size=1", "seq_len=32", "d_model=64", "n_layer=1", "num_threads=1"]


def gpuconsole(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpuconsole", *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
def test_one_and_two_processes_are_measured(tmp_path: Path) -> None:
    sets = [word for knob in SMALL for word in ("--set", knob)]
    recording = tmp_path / "scaling.jsonl"
    options = (
        "--vary",
        "nproc=1,2",
        "--duration",
        "2",
        "--device",
        "cpu",
        "--json",
        "--record",
        str(recording),
    )
    done = gpuconsole("sweep", "ddp-small-batch", *options, *sets)
    assert done.returncode == 0, done.stderr
    one, two = json.loads(done.stdout)["runs"]
    assert (one["knobs"]["nproc"], one["knobs"]["sharding"]) == (1, "none")
    assert recording.read_text().count('"runopened"') == 2
    assert (two["knobs"]["nproc"], two["knobs"]["sharding"], len(two["ranks"])) == (2, "ddp", 2)


def test_efficiency_is_throughput_over_n_times_that_of_one() -> None:
    lines = printed([scaling_table([run(1, 1000.0), run(2, 1500.0)])]).splitlines()
    assert "100 %" in lines[1] and "75 %" in lines[2] and "750" in lines[2]
    assert lines[2].endswith("n/a"), "communication that was not measured is not 0 %"


def test_a_scenario_without_sharding_gets_ddp_and_keeps_its_own() -> None:
    assert with_nproc("train-gpt", {}, 4, is_gpu=False)["sharding"] == "ddp"
    assert with_nproc("train-gpt", {"sharding": "zero3"}, 4, is_gpu=False)["sharding"] == "zero3"


def test_a_scenario_that_cannot_be_scaled_is_refused(cli_here: Cli) -> None:
    done = cli_here("sweep", "train-vision", "--vary", "nproc=1,2")
    assert done.returncode == 2 and "nproc" in done.stderr and done.stderr.count("\n") == 1


def run(nproc: int, tokens_per_s: float) -> Run:
    rate = Distribution(tokens_per_s, 1.0, 5, tokens_per_s)
    return Run(
        str(nproc),
        "s",
        "w",
        {"nproc": nproc},
        "cpu",
        state="finished",
        summary=Summary(tokens_per_s=rate),
    )
