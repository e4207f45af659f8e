"""`gpuconsole run --profile`: the real command line."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import shlex
from pathlib import Path

import jsonschema
import pytest

from gpuconsole.cli.headless import nsys_command
from gpuconsole.engine.recording import Replay
from gpuconsole.engine.run_control import trace_path
from gpuconsole.model.snapshot import decode, json_schema
from tests.conftest import Cli

SMALL = [
    part
    for knob in ("batch_size=4", "seq_len=64", "d_model=128", "n_layer=1")
    for part in ("--set", knob)
]


def with_nsys(folder: Path) -> dict[str, str]:
    """An environment in which there is an nsys."""
    program = folder / "nsys"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.slow
def test_a_headless_run_is_profiled_and_keeps_the_trace(cli: Cli, tmp_path: Path) -> None:
    done = cli(
        "run", "train-gpt", *SMALL, "--headless", "--duration", "3", "--profile", "2",
        "--profile-dir", "traces", "--snapshot", "s.json", "--record", "r.jsonl",
        env=with_nsys(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for part in (
        "profile of run 1: 2 steps",
        "gemm",
        "tensor cores  n/a: the device is a CPU",
        "https://ui.perfetto.dev",
        "kernels/s",
    ):
        assert part in done.stdout
    (nsys,) = [line for line in done.stdout.splitlines() if line.startswith("nsys: ")]
    knobs = {"batch_size": 4, "seq_len": 64, "d_model": 128, "n_layer": 1}
    assert nsys == f"nsys: {nsys_command('train-gpt', knobs, 'cpu')}"
    (trace,) = (tmp_path / "traces").iterdir()
    assert trace.name.startswith("gpuconsole-trace-train-gpt-")
    with gzip.open(trace) as file:
        events = json.load(file)["traceEvents"]
    assert {"ProfilerStep#1", "ProfilerStep#2", "aten::addmm"} <= {
        event.get("name") for event in events
    }

    data = (tmp_path / "s.json").read_bytes()
    jsonschema.validate(json.loads(data), json_schema())
    snapshot = decode(data)
    report = snapshot.runs[0].profile
    assert report is not None
    assert (report.steps, report.trace) == (2, str(trace))
    assert sum(one.share_ratio for one in report.classes) == pytest.approx(1.0)

    replay = Replay(tmp_path / "r.jsonl", speed=0)
    asyncio.run(replay.open())
    run = replay.view().run
    assert run is not None
    assert run.profile == report


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--headless", "--profile", "0"], "must be 1 to 50 steps"),
        (["--headless", "--profile", "many"], "must be 1 to 50 steps"),
        (["--profile"], "on the screen, press f"),
        (
            ["--headless", "--profile", "--profile-dir", "/proc/nowhere"],
            "--profile-dir /proc/nowhere: cannot be written",
        ),
    ],
)
def test_bad_usage_is_one_line_before_anything_starts(
    cli: Cli, options: list[str], says: str
) -> None:
    done = cli("run", "train-gpt", *options)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stdout == ""


def test_the_nsys_command_can_be_pasted_whatever_the_scenario_is_called() -> None:
    words = shlex.split(
        nsys_command("./my scenarios/it's.toml", {"pin_memory": True, "batch_size": 4}, "gpu:0")
    )
    assert words[:2] == ["nsys", "profile"]
    assert words[words.index("run") + 1 :][:5] == [
        "./my scenarios/it's.toml",
        "--set",
        "pin_memory=true",
        "--set",
        "batch_size=4",
    ]
    assert "--output=gpuconsole-nsys-it-s" in words
    assert trace_path("it's / odd", Path("here")).name.startswith("gpuconsole-trace-it-s-odd-")
