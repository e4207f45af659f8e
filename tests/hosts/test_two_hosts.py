"""One scenario across two hosts by torchrun's rendezvous; the console on the first follows both."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts.two_hosts import Host, two_hosts, why_not
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())
SMALL = ["batch_size=2", "seq_len=32", "d_model=64", "n_layer=1", "num_threads=1", "nproc=1"]
ENVIRONMENT = {
    name: value for name, value in os.environ.items() if name != "GLOO_SOCKET_IFNAME"
} | {"OMP_NUM_THREADS": "1"}
"""Processes find the interface to each other by themselves."""


@pytest.mark.slow
def test_a_run_spans_two_hosts_and_its_console_follows_both(tmp_path: Path) -> None:
    with two_hosts() as (first, second):
        console = start_console(first, tmp_path)
        try:
            joining = command_for(second, tmp_path)
            other = subprocess.Popen(
                joining,
                env=ENVIRONMENT,
                stdout=subprocess.DEVNULL,
                stderr=(tmp_path / "other").open("w"),
            )
            out, err = console.communicate(timeout=120)
            assert console.returncode == 0, err + (tmp_path / "other").read_text()
            run = json.loads(out)["runs"][0]
            assert run["state"] == "finished"
            assert {rank["host"] for rank in run["ranks"]} == {"node-a", "node-b"}
            assert all(
                rank["steps"] > 5 and rank["phases_ratio"]["comm"] > 0 for rank in run["ranks"]
            )
            other.wait(30)  # the job is over there too
            assert "all 2 processes on 2 machines have joined" in (tmp_path / "console").read_text()
            assert "Traceback" not in (tmp_path / "other").read_text()
        finally:
            console.kill()


def start_console(host: Host, tmp_path: Path) -> subprocess.Popen[str]:
    words = [
        sys.executable,
        "-m",
        "gpuconsole",
        "run",
        "ddp-small-batch",
        "--json",
        "--duration",
        "4",
    ]
    words += [
        "--nnodes",
        "2",
        "--rdzv-endpoint",
        f"{host.address}:29555",
        "--rdzv-id",
        "both",
        "--device",
        "cpu",
    ]
    words += [word for knob in SMALL for word in ("--set", knob)]
    return subprocess.Popen(
        host.command(*words),
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=(tmp_path / "console").open("w"),
        text=True,
    )


def command_for(host: Host, tmp_path: Path) -> list[str]:
    """The command that the console shows for the other machines, as its user would run it there."""

    def told() -> str:
        return next(
            (
                line
                for line in (tmp_path / "console").read_text().splitlines()
                if "torchrun" in line
            ),
            "",
        )

    wait_until(told, 60, "the command for the other machines")
    words = shlex.split(told()[told().index("torchrun") :].replace("ADDRESS", host.address))
    return host.command(sys.executable, "-m", "gpuconsole.workloads.torchrun", *words[1:])
