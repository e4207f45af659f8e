"""`gpuconsole watch` through the real command line, beside a client that knows nothing of it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import re
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuconsole.engine.catalog import find_scenario
from tests.conftest import Cli
from tests.fakes.processes import address_of

DURATION_S = 10


_servers: dict[str, subprocess.Popen[str]] = {}


def kill(url: str) -> None:
    """End the server at `url` at once."""
    _servers[url].kill()


@contextlib.contextmanager
def embedded_server(*flags: str, **changes: Any) -> Iterator[str]:
    """The address of a small embedded server, in a process of its own, started with `flags`."""
    knobs = {**find_scenario("serve-chat").knobs_for("cpu"), "d_model": 64, "n_layer": 1, **changes}
    words = [
        sys.executable,
        "-m",
        "gpuconsole.workloads.serving.engine",
        "--knobs",
        json.dumps(knobs),
        *flags,
    ]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = next(line.split()[1] for line in process.stdout if line.startswith("serving "))
        _servers[url] = process
        yield url
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def client(
    url: str, users: int, output_tokens: int, prompt: int = 40, seconds: float = DURATION_S + 8
) -> Iterator[subprocess.Popen[str]]:
    words = [url, str(users), str(seconds), str(output_tokens), str(prompt)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fakes.independent_client", *words],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def answered(url: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics") as page:
        found = re.findall(
            r"^vllm:request_success_total\{.*\} (\S+)$", page.read().decode(), re.MULTILINE
        )
    return sum(map(float, found))


def firing(run: dict[str, Any]) -> set[str]:
    return {finding["rule"] for finding in run["findings"] if finding["state"] == "fires"}


@pytest.mark.slow
@pytest.mark.rates
def test_the_figures_are_those_of_the_client_and_no_request_is_ours(
    cli: Cli, tmp_path: Path
) -> None:
    record = tmp_path / "watch.jsonl"
    with embedded_server() as url, client(url, 6, 48) as load:
        time.sleep(0.1)  # the order does not matter: the watch may begin before the first request
        done = cli("watch", url, "--json", "--duration", str(DURATION_S), "--record", str(record))
        seen = json.loads(load.communicate()[0])
        assert done.returncode == 0, done.stderr
        assert answered(url) == len(seen["requests"]), (
            "the server has answered the requests of the client, and no others"
        )
    (run,) = json.loads(done.stdout)["runs"]
    states = [
        event
        for event in map(json.loads, record.read_text().splitlines())
        if event["event"] == "serverstate"
    ]
    begun = next(state["t"] for state in states if state["totals"]["generation_tokens"] > 0) + 1
    inside = [state for state in states if state["t"] >= begun]
    first, last = inside[0], inside[-1]
    of_client = sum(count for t, count in seen["tokens"] if first["t"] <= t <= last["t"])
    assert last["totals"]["generation_tokens"] - first["totals"][
        "generation_tokens"
    ] == pytest.approx(of_client, rel=0.05)
    summary = run["summary"]
    assert summary["tokens_per_s"]["mean"] == pytest.approx(
        of_client / (last["t"] - first["t"]), rel=0.05
    )
    ended = [
        (ttft, e2e)
        for start, ttft, e2e in seen["requests"]
        if first["t"] <= start + e2e <= last["t"]
    ]
    for figure, values in (
        ("ttft_s", [ttft for ttft, _ in ended]),
        ("e2e_s", [e2e for _, e2e in ended]),
    ):
        low, high = summary[figure]["within"]["p50"]
        # a client counts its own connection, which takes longer than a bucket of 1 ms
        assert low / 2.5 <= statistics.median(values) <= max(high * 2.5, 0.01), (
            "the median of the client is in the bucket, or in the next one"
        )
    assert run["validity"]["verdict"] == "valid" and run["workload"] == "inference.watched"


@pytest.mark.slow
@pytest.mark.rates
@pytest.mark.parametrize(
    ("knobs", "users", "output", "expected"),
    [
        ({"max_num_seqs": 2}, 10, 48, "serve.sequence_cap"),
        ({"max_num_seqs": 16, "num_gpu_blocks_override": 16}, 12, 100, "serve.kv_bound"),
        ({"max_num_seqs": 32}, 2, 48, "serve.underloaded_healthy"),
        ({"max_num_seqs": 8}, 7, 48, "serve.at_limit_healthy"),
    ],
)
def test_a_real_state_gets_its_verdict(
    cli: Cli, knobs: dict[str, Any], users: int, output: int, expected: str
) -> None:
    with embedded_server(**knobs) as url, client(url, users, output):
        done = cli("watch", url, "--json", "--duration", "14")
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    assert firing(run) == {expected}


@pytest.mark.slow
def test_a_recording_of_a_watched_server_replays_to_the_same_summary(
    cli: Cli, tmp_path: Path
) -> None:
    record = tmp_path / "watch.jsonl"
    with embedded_server() as url, client(url, 4, 32):
        done = cli("watch", url, "--json", "--duration", "5", "--record", str(record))
    replayed = cli("replay", str(record), "--headless", "--json")
    assert (done.returncode, replayed.returncode) == (0, 0), replayed.stderr
    before, after = (json.loads(output.stdout)["runs"][0] for output in (done, replayed))
    assert (
        after["summary"]["ttft_s"] == before["summary"]["ttft_s"]
        and after["scenario"] == before["scenario"]
    )


@pytest.mark.slow
def test_a_probe_names_the_wait_in_a_proxy_and_its_requests_are_counted(cli: Cli) -> None:
    with (
        embedded_server() as server,
        address_of("slow_proxy", server, "0.6") as url,
        client(server, 3, 32, seconds=45) as load,
    ):
        done = cli("watch", url, "--json", "--probe", "--duration", "20")
        seen = json.loads(load.communicate()[0])
        assert done.returncode == 0, done.stderr
        assert answered(server) == len(seen["requests"]) + 5, (
            "those of the client, and the five of the probe"
        )
    assert (
        "probe: 5 requests of ours, 32 tokens each" in done.stderr
        and "pass before the engine" in done.stderr
    )
    (run,) = json.loads(done.stdout)["runs"]
    assert firing(run) == {"serve.queue_before_engine"}, run["findings"]
    (finding,) = [
        finding for finding in run["findings"] if finding["rule"] == "serve.queue_before_engine"
    ]
    values = {entry["signal"]: entry["value"] for entry in finding["evidence"]}
    assert (
        0.5 < values["probe.before_engine_s"] <= 0.6 + 0.2
        and values["probe.engine_ttft_upper_s"] < 0.5
    )
    assert run["summary"]["requests"] < len(seen["requests"])


def test_a_dead_address_is_one_line_and_exit_code_2(cli: Cli) -> None:
    done = cli("watch", "http://127.0.0.1:1", "--headless", "--quiet")
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr.count("\n") == 1
        and "connection refused: nothing listens at 127.0.0.1:1" in done.stderr
    )


@pytest.mark.slow
def test_a_server_that_is_killed_is_one_line_and_what_was_measured_is_kept(
    cli: Cli, tmp_path: Path
) -> None:
    with (
        embedded_server() as url,
        client(url, 4, 32, seconds=4) as load,
        concurrent.futures.ThreadPoolExecutor() as pool,
    ):
        watching = pool.submit(
            cli,
            "watch",
            url,
            "--headless",
            "--duration",
            "10",
            "--snapshot",
            str(tmp_path / "s.json"),
        )
        load.communicate()
        kill(url)
        done = watching.result()
    assert done.stderr.count("the server does not answer") >= 1 and "Traceback" not in done.stderr
    (run,) = json.loads((tmp_path / "s.json").read_text())["runs"]
    assert run["summary"]["tokens_per_s"]["mean"] > 0 and run["validity"]["verdict"] in (
        "degraded",
        "invalid",
    )
