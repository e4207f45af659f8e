"""Other load clients, run as their users run them; figures in seconds under our names."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import msgspec

FIGURES = ("mean", "p50", "p99")


class Load(msgspec.Struct, frozen=True):
    """The same load for every client. `prompts`: a file with one prompt per line, under the names
    that each client expects."""

    url: str
    model: str
    tokenizer: str
    concurrency: int
    requests: int
    prompts: str
    output_tokens: int


class Told(msgspec.Struct):
    """`latencies` by our names and percentile; `cpu_s` of the whole command, its start included."""

    latencies: dict[str, dict[str, float]]
    tokens_per_s: float | None
    cpu_s: float


def run(command: list[str], env: dict[str, str]) -> float:
    """CPU seconds of `command` and its children. Raises CalledProcessError with the output."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **env})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


VLLM_ENV = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def vllm_bench_command(python: Path, load: Load, folder: str) -> list[str]:
    command = [
        str(python),
        "-m",
        "vllm.entrypoints.cli.main",
        "bench",
        "serve",
        "--base-url",
        load.url,
    ]
    command += [
        "--endpoint",
        "/v1/completions",
        "--model",
        load.model,
        "--tokenizer",
        load.tokenizer,
        "--dataset-name",
        "custom",
    ]
    command += [
        "--dataset-path",
        load.prompts,
        "--custom-output-len",
        str(load.output_tokens),
        "--ignore-eos",
        "--skip-chat-template",
    ]
    command += [
        "--max-concurrency",
        str(load.concurrency),
        "--num-prompts",
        str(load.requests),
        "--num-warmups",
        str(load.concurrency),
    ]
    command += [
        "--percentile-metrics",
        "ttft,tpot,itl,e2el",
        "--metric-percentiles",
        "50,99",
        "--save-result",
        "--result-dir",
        folder,
    ]
    return command


def vllm_bench(python: Path, load: Load) -> Told:
    """`vllm bench serve`. Its ITL is the gap between chunks."""
    with tempfile.TemporaryDirectory() as folder:
        cpu_s = run(vllm_bench_command(python, load, folder), VLLM_ENV)
        (result,) = Path(folder).glob("*.json")
        told = json.loads(result.read_text())
    names = {"ttft_s": "ttft", "tpot_s": "tpot", "chunk_gap_s": "itl", "e2e_s": "e2el"}
    latencies = {
        ours: {p: told[f"{p}_{theirs}_ms"] / 1e3 for p in FIGURES} for ours, theirs in names.items()
    }
    return Told(latencies, told["output_throughput"], cpu_s)


def aiperf_command(program: Path, load: Load, folder: str) -> list[str]:
    command = [
        str(program),
        "profile",
        "-m",
        load.model,
        "--url",
        load.url,
        "--endpoint-type",
        "completions",
        "--streaming",
    ]
    command += [
        "--tokenizer",
        load.tokenizer,
        "--use-server-token-count",
        "--concurrency",
        str(load.concurrency),
    ]
    command += [
        "--request-count",
        str(load.requests),
        "--warmup-request-count",
        str(load.concurrency),
    ]
    command += [
        "--input-file",
        load.prompts,
        "--custom-dataset-type",
        "single_turn",
        "--osl",
        str(load.output_tokens),
    ]
    command += ["--extra-inputs", "ignore_eos:true"]
    command += ["--ui", "none", "--artifact-dir", folder]
    return command


def aiperf(program: Path, load: Load) -> Told:
    """NVIDIA's AIPerf. Its inter-token latency is our TPOT."""
    with tempfile.TemporaryDirectory() as folder:
        cpu_s = run(aiperf_command(program, load, folder), {})
        # the other is of the warm-up
        result = min(
            Path(folder).rglob("profile_export_aiperf.json"), key=lambda path: len(path.parts)
        )
        told: dict[str, Any] = json.loads(result.read_text())
    names = {
        "ttft_s": "time_to_first_token",
        "tpot_s": "inter_token_latency",
        "e2e_s": "request_latency",
    }
    latencies = {
        ours: {p: told[theirs]["avg" if p == "mean" else p] / 1e3 for p in FIGURES}
        for ours, theirs in names.items()
    }
    return Told(latencies, told["output_token_throughput"]["avg"], cpu_s)
