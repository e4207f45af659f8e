"""The real command line, headless, in a subprocess."""

from __future__ import annotations

import json
import os
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

TOP_FINDINGS = {
    "train-gpt": "gpu.compute_bound_healthy",
    "tiny-batch": "gpu.small_batch",
    "chatty-logging": "host.logging_io",
    "slow-checkpoint": "host.checkpoint_stall",
}


def rules_that_fire(snapshot: dict) -> list[str]:  # type: ignore[type-arg]
    fires = [finding["rule"] for finding in snapshot["runs"][0]["findings"] if finding["state"] == "fires"]
    of_this_machine = ("host.cpu_contention", "gpu.fp32_no_tensor_core")  # busy with others, and with bf16 units or without
    return [rule for rule in fires if rule not in of_this_machine]


@pytest.mark.parametrize("scenario", TOP_FINDINGS)
def test_each_scenarios_cause_is_the_top_finding(cli: Cli, tmp_path: Path, scenario: str) -> None:
    done = cli("run", scenario, "--headless", "--duration", "11", "--snapshot", "s.json")
    assert done.returncode == 0, done.stderr
    snapshot = json.loads((tmp_path / "s.json").read_text())
    jsonschema.validate(snapshot, json_schema())
    assert rules_that_fire(snapshot) == [TOP_FINDINGS[scenario]]
    run = snapshot["runs"][0]
    assert run["state"] == "finished"
    assert sum(run["summary"]["phases_ratio"].values()) == pytest.approx(1.0, abs=0.01)
    assert run["device"] == "cpu"
    assert TOP_FINDINGS[scenario] in done.stdout
    assert "host.cores_busy{device=cpu}" in run["series"]


def test_data_starved_is_diagnosed_fixed_and_proven(cli: Cli, tmp_path: Path) -> None:
    done = cli("run", "data-starved", "--headless", "--duration", "15", "--apply-top", "--snapshot", "s.json")
    assert done.returncode == 0, done.stderr
    snapshot = json.loads((tmp_path / "s.json").read_text())
    jsonschema.validate(snapshot, json_schema())
    assert rules_that_fire(snapshot) == ["input.slow_storage"]
    trial = snapshot["trials"][0]
    workers = trial["changes"]["num_workers"]
    assert workers >= 2  # as many as hide the latency: more where the model computes faster
    assert (trial["verdict"], trial["kept"]) == ("win", True)
    assert trial["speedup"]["low"] > 1
    assert trial["predicted"]["low"] > 1
    assert snapshot["runs"][1]["knobs"]["num_workers"] == workers
    rates = [run["summary"]["samples_per_s"]["p50"] for run in snapshot["runs"]]
    assert rates[1] > rates[0]
    again = cli("diagnose", "s.json")
    assert again.returncode == 0
    assert "input.slow_storage" in again.stdout


def test_bf16_without_bf16_units_is_measured_as_worse_and_reverted(cli: Cli, tmp_path: Path) -> None:
    """oneDNN is told to use no instruction set beyond AVX2, so bf16 is emulated as on an older CPU."""
    env = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    args = [
        "--headless",
        "--duration",
        "6",
        "--try",
        "precision=bf16",
        "--set",
        "d_model=64",
        "--set",
        "n_layer=1",
        "--set",
        "batch_size=2",
    ]
    done = cli("run", "train-gpt", *args, "--set", "seq_len=32", "--snapshot", "s.json", env=env)
    assert done.returncode == 0, done.stderr
    trial = json.loads((tmp_path / "s.json").read_text())["trials"][0]
    assert (trial["verdict"], trial.get("kept", False)) == ("worse", False)
    assert trial["speedup"]["high"] < 1


def test_json_is_alone_on_stdout(cli: Cli) -> None:
    done = cli("run", "train-gpt", "--json", "--duration", "3", "--set", "d_model=64", "--set", "n_layer=1")
    assert done.returncode == 0
    jsonschema.validate(json.loads(done.stdout), json_schema())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_runs_keep_what_was_measured(tmp_path: Path, number: signal.Signals) -> None:
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
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: (tmp_path / "r.jsonl").exists() and b'"steps"' in (tmp_path / "r.jsonl").read_bytes(), 60, "first steps")
    process.send_signal(number)
    stdout, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    snapshot = json.loads((tmp_path / "s.json").read_text())
    assert snapshot["runs"][0]["state"] == "stopped"
    assert "tiny-batch" in stdout


def test_sigkill_of_the_console_leaves_no_orphan_after_two_seconds(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gpuconsole", "run", "train-vision", "--headless", "--duration", "600", "--record", "r.jsonl"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: (tmp_path / "r.jsonl").exists() and b'"steps":[[' in (tmp_path / "r.jsonl").read_bytes(), 60, "first steps")
    children = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    assert len(children) >= 3  # sampler, worker, its loader process
    process.kill()
    process.wait()
    wait_until(lambda: all(gone(pid) for pid in children), 2.0, "children gone")


def test_a_failing_workload_is_exit_code_1_with_its_cause(cli: Cli, tmp_path: Path) -> None:
    import resource

    def little_memory() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, 6 * 2**30))

    args = ["--set", "batch_size=65536", "--set", "seq_len=256", "--snapshot", "s.json", "--duration", "5"]
    done = cli("run", "train-gpt", "--headless", *args, preexec_fn=little_memory)
    assert done.returncode == 1
    assert "out of memory at batch_size 65536" in done.stderr
    assert json.loads((tmp_path / "s.json").read_text())["runs"][0]["state"] == "failed"
