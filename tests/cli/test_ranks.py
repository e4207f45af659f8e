"""Runs in several processes through the real command line: slow and killed processes are named, and
no process is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.conftest import Cli
from tests.waiting import gone, wait_until

SMALL = ["batch_size=1", "seq_len=32", "d_model=64", "n_layer=1", "num_threads=1"]


def start(scenario: str, *words: str, errors: Path) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "gpuconsole",
        "run",
        scenario,
        "--device",
        "cpu",
        "--json",
        *words,
    ]
    command += [word for knob in SMALL for word in ("--set", knob)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors.open("w"), text=True)


def ranks_of(console: subprocess.Popen[str]) -> list[psutil.Process]:
    """The processes that torchrun has started for the run."""
    children = psutil.Process(console.pid).children(recursive=True)
    return [
        child
        for child in children
        if "gpuconsole.workloads.rank" in child.cmdline()
        and "gpuconsole.workloads.torchrun" not in child.cmdline()
    ]


@pytest.mark.slow
def test_a_process_that_is_killed_ends_the_run_and_is_named(tmp_path: Path) -> None:
    console = start("ddp-small-batch", "--duration", "100", errors=tmp_path / "errors")
    try:
        wait_until(lambda: "tokens/s" in (tmp_path / "errors").read_text(), 60, "the first steps")
        ranks = ranks_of(console)
        victim = next(rank for rank in ranks if rank.environ()["RANK"] == "1")
        victim.kill()
        out, _ = console.communicate(timeout=60)
        assert console.returncode == 1
        run = json.loads(out)["runs"][0]
        assert run["state"] == "failed"
        assert (
            "rank 1" in run["error"]
            and str(victim.pid) in run["error"]
            and "ended unexpectedly" in run["error"]
        )
        wait_until(lambda: all(gone(rank.pid) for rank in ranks), 10, "the other process ends too")
    finally:
        console.kill()


@pytest.mark.slow
def test_a_console_that_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    console = start("ddp-small-batch", "--duration", "100", errors=tmp_path / "errors")
    try:
        wait_until(lambda: "tokens/s" in (tmp_path / "errors").read_text(), 60, "the first steps")
        everyone = psutil.Process(console.pid).children(recursive=True)
        assert len(ranks_of(console)) == 2
        os.kill(console.pid, signal.SIGKILL)
        wait_until(lambda: all(gone(child.pid) for child in everyone), 10, "all processes end")
    finally:
        console.kill()


@pytest.mark.slow
def test_a_machine_that_loses_the_first_one_prints_one_line() -> None:
    words = [
        "--nnodes",
        "2",
        "--nproc-per-node",
        "1",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        "127.0.0.1:9",
        "--rdzv-id",
        "x",
    ]
    words += ["--rdzv-conf", "is_host=0,read_timeout=1", "-m", "gpuconsole.workloads.rank"]
    done = subprocess.run(
        [sys.executable, "-m", "gpuconsole.workloads.torchrun", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == (
        "gpuconsole: no connection to the first machine: the run has ended, or its console is"
        " not running yet\n"
    )


def test_an_address_that_no_other_machine_reaches_is_refused(cli: Cli) -> None:
    done = cli(
        "run",
        "ddp-small-batch",
        "--headless",
        "--nnodes",
        "2",
        "--rdzv-endpoint",
        "localhost:29500",
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert (
        "--rdzv-endpoint localhost:29500: 127.0.0.1 is a loopback address, which no other"
        " machine reaches"
    ) in done.stderr
