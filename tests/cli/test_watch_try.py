"""`gpuconsole watch --try` through the real command line, under the traffic of a client that knows
nothing of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest

from gpuconsole.workloads.serving.live_limits import LEASE_S
from tests.cli.test_watch import answered, client, embedded_server
from tests.conftest import Cli
from tests.waiting import wait_until

LIVE = "--live-limits"


def running(url: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics") as page:
        return float(
            next(
                line.split()[-1]
                for line in page.read().decode().splitlines()
                if line.startswith("vllm:num_requests_running{")
            )
        )


@pytest.mark.slow
def test_a_limit_is_tried_under_the_traffic_and_no_request_is_ours(tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-m",
        "gpuconsole",
        "watch",
        "--headless",
        "--duration",
        "6",
        "--try",
        "max_num_seqs=1",
        "--snapshot",
        str(tmp_path / "s.json"),
    ]
    with embedded_server(LIVE, max_num_seqs=32) as url, client(url, 10, 48, seconds=80) as load:
        console = subprocess.Popen(
            [*words, url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert console.stderr is not None and any(
            "trial: max_num_seqs 32 -> 1" in line for line in console.stderr
        )
        wait_until(lambda: running(url) == 1, 60)
        console.send_signal(signal.SIGINT)
        printed, _ = console.communicate(timeout=30)
        wait_until(lambda: running(url) > 4)
        seen = json.loads(load.communicate()[0])
        assert answered(url) == len(seen["requests"]), (
            "the server has answered the requests of the client, and no others"
        )
    (trial,) = json.loads((tmp_path / "s.json").read_text())["trials"]
    assert (trial["state"], trial["method"], trial.get("kept", False)) == (
        "cancelled",
        "live traffic",
        False,
    ), trial
    assert "the server has its limits of the start again" in printed


@pytest.mark.slow
@pytest.mark.matrix
def test_a_load_below_the_limit_ends_undecided_with_the_reason(cli: Cli) -> None:
    with embedded_server(LIVE, max_num_seqs=32) as url, client(url, 3, 48, seconds=120):
        words = ("--headless", "--duration", "6", "--try", "max_num_seqs=16", "--slo", "e2e_p50=60")
        done = cli("watch", url, *words, timeout=400)
    assert (
        "objective e2e_p50 at most 60.0 s: " in done.stdout and "with the change (" in done.stdout
    )
    assert (
        "undecided: the load is too small for the limit to matter: at most 3 requests were in"
        " the server"
    ) in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("ends", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
def test_the_limit_goes_back_when_the_console_dies_or_hangs(ends: int) -> None:
    """Every request runs again soon after, and the server has never stopped."""
    words = [
        sys.executable,
        "-m",
        "gpuconsole",
        "watch",
        "--headless",
        "--duration",
        "6",
        "--try",
        "max_num_seqs=1",
    ]
    with embedded_server(LIVE, max_num_seqs=32) as url, client(url, 10, 48, seconds=90):
        console = subprocess.Popen(
            [*words, url], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        try:
            assert console.stderr is not None and any(
                "trial: max_num_seqs 32 -> 1" in line for line in console.stderr
            )
            wait_until(lambda: running(url) == 1, 60)
            stopped = (
                [console.pid, *children(console.pid)] if ends == signal.SIGSTOP else [console.pid]
            )
            for pid in stopped:  # SIGSTOP: all of it, as when a machine is out of memory
                os.kill(pid, ends)
            begun = time.monotonic()
            wait_until(lambda: running(url) > 4, 30)
            assert time.monotonic() - begun < LEASE_S + 7
        finally:
            for pid in [*children(console.pid), console.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            console.communicate()


def children(pid: int) -> list[int]:
    with contextlib.suppress(psutil.Error):
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return []


@pytest.mark.slow
def test_a_server_without_live_limits_needs_a_restart(cli: Cli) -> None:
    with embedded_server() as url, client(url, 3, 48, seconds=30):
        done = cli("watch", url, "--headless", "--duration", "4", "--try", "max_num_seqs=2")
    assert "trial: max_num_seqs: gpuconsole did not start this server" in done.stderr


@pytest.mark.slow
def test_a_limit_above_that_of_the_start_needs_a_restart(cli: Cli) -> None:
    with embedded_server(LIVE, max_num_seqs=8) as url, client(url, 3, 48, seconds=30):
        done = cli("watch", url, "--headless", "--duration", "4", "--try", "max_num_seqs=64")
    assert (
        "a running server takes at most the value of its start, 8; restart the server with the"
        " new value"
    ) in done.stderr


@pytest.mark.parametrize(
    ("words", "mistake"),
    [
        (["--try", "max_num_seqs=2"], "--try: --apply-top and --try go with --headless"),
        (["--probe"], "--probe goes with --headless; on the screen, press P"),
        (["--headless", "--try", "dtype=float16"], "a running server has no setting 'dtype'"),
        (["--headless", "--slo", "ttft_p99=1"], "--slo goes with --try"),
        (["--headless", "--try", "max_num_seqs=2", "--slo", "ttft=1"], "expected ttft_p99=S"),
    ],
)
def test_a_mistake_is_one_line(cli: Cli, words: list[str], mistake: str) -> None:
    done = cli("watch", "http://127.0.0.1:1", *words)
    assert (
        done.returncode == 2
        and mistake.removeprefix("--try: ") in done.stderr
        and done.stdout == ""
    )


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        (
            ["watch", "http://127.0.0.1:1", "--advise"],
            "--advise is gone: the findings of gpuconsole watch name the flag",
        ),
        (["scenarios", "--check"], "--check is gone: gpuconsole scenarios NAME"),
        (["explain", "day/", "--restart"], "--restart is gone: gpuconsole compare BEFORE AFTER"),
    ],
)
def test_an_option_that_is_gone_says_what_to_use(cli: Cli, words: list[str], instead: str) -> None:
    done = cli(*words)
    assert (
        done.returncode == 2
        and instead in done.stderr
        and done.stdout == ""
        and len(done.stderr.splitlines()) == 1
    )
