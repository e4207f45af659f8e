"""The real command line, headless, in a subprocess. Every scenario with `--json`:
tests/scenarios."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import jsonschema
import psutil
import pytest

from gpuconsole.model.snapshot import json_schema
from tests.conftest import Cli
from tests.waiting import gone, wait_until


def rules_that_fire(snapshot: dict) -> list[str]:  # type: ignore[type-arg]
    fires = [
        finding["rule"]
        for finding in snapshot["runs"][0]["findings"]
        if finding["state"] == "fires"
    ]
    # busy with others, and with bf16 units or without
    of_this_machine = ("host.cpu_contention", "gpu.fp32_no_tensor_core")
    return [rule for rule in fires if rule not in of_this_machine]


@pytest.mark.rates
@pytest.mark.slow
def test_data_starved_is_diagnosed_fixed_and_proven(cli: Cli, tmp_path: Path) -> None:
    done = cli(
        "run",
        "data-starved",
        "--set",
        "storage_latency_ms=12",
        "--headless",
        "--duration",
        "12",
        "--apply-top",
        "--snapshot",
        "s.json",
    )
    assert done.returncode == 0, done.stderr
    snapshot = json.loads((tmp_path / "s.json").read_text())
    jsonschema.validate(snapshot, json_schema())
    assert rules_that_fire(snapshot) == ["input.slow_storage"]
    assert "input.slow_storage" in done.stdout
    trial = snapshot["trials"][0]
    workers = trial["changes"]["num_workers"]
    assert workers >= 1  # as many as hide the latency: more where the model computes faster
    assert (trial["verdict"], trial["kept"]) == ("win", True)
    assert trial["speedup"]["low"] > 1
    assert trial["predicted"]["low"] > 1
    assert snapshot["runs"][1]["knobs"]["num_workers"] == workers
    rates = [run["summary"]["samples_per_s"]["p50"] for run in snapshot["runs"]]
    assert rates[1] > rates[0]
    reported = cli("report", "s.json", "--html", "s.html")
    assert reported.returncode == 0, reported.stderr
    page = (tmp_path / "s.html").read_text()
    assert (
        f"num_workers 0 -&gt; {workers}: kept" in page
        and 'class="band"' in page
        and "Loader" in page.partition("<h1>")[2][:80]
    )
    again = cli("diagnose", "s.json")
    assert again.returncode == 0
    assert "input.slow_storage" in again.stdout


def test_an_interrupted_run_keeps_what_was_measured(tmp_path: Path) -> None:
    """SIGTERM and SIGHUP: test_exits."""
    command = [
        sys.executable,
        "-m",
        "gpuconsole",
        "run",
        "tiny-batch",
        "--headless",
        "--duration",
        "600",
        "--snapshot",
        "s.json",
        "--record",
        "r.jsonl",
    ]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_until(
        lambda: (
            (tmp_path / "r.jsonl").exists() and b'"steps"' in (tmp_path / "r.jsonl").read_bytes()
        ),
        60,
        "first steps",
    )
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGINT
    snapshot = json.loads((tmp_path / "s.json").read_text())
    assert snapshot["runs"][0]["state"] == "stopped"
    assert "tiny-batch" in stdout


def test_sigkill_of_the_console_leaves_no_orphan(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "gpuconsole",
        "run",
        "vision-healthy",
        "--headless",
        "--duration",
        "600",
        "--record",
        "r.jsonl",
    ]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            recorded = tmp_path / "r.jsonl"
            wait_until(
                lambda: recorded.exists() and b'"steps":[[' in recorded.read_bytes(),
                60,
                "first steps",
            )
            children = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        finally:
            process.kill()
    assert len(children) >= 3  # sampler, worker, its loader process
    wait_until(lambda: all(gone(pid) for pid in children), 10, "children gone")


@pytest.mark.slow
def test_a_failing_workload_is_exit_code_1_with_its_cause(cli: Cli, tmp_path: Path) -> None:
    import resource

    def little_memory() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, 6 * 2**30))

    args = [
        "--set",
        "batch_size=65536",
        "--set",
        "seq_len=256",
        "--snapshot",
        "s.json",
        "--duration",
        "5",
    ]
    done = cli("run", "train-gpt", "--headless", *args, preexec_fn=little_memory)
    assert done.returncode == 1
    assert "out of memory at batch_size 65536" in done.stderr
    assert '  File "' in done.stdout, "the end of the traceback"
    (run,) = json.loads((tmp_path / "s.json").read_text())["runs"]
    assert run["state"] == "failed"
    assert any("Error" in row for row in run["traceback"])
