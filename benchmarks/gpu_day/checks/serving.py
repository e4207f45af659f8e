"""A real model server: vLLM with a small model of random weights."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys

from benchmarks.gpu_day.check import Day, NotHereError, check
from benchmarks.gpu_day.tools import run, summary
from benchmarks.headless import last_line


@check(value=84, seconds=200, limit_s=420)
def vllm_serves(day: Day) -> None:
    """vLLM starts on the GPU, answers, and reports its counters."""
    if day.simulated:
        raise NotHereError("vLLM has kernels of its own, which the simulated device cannot run")
    if shutil.which("vllm") is None and importlib.util.find_spec("vllm") is None:
        raise NotHereError("vLLM is not installed")
    model = day.folder / "model"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.vllm_cpu.make_model", str(model)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise NotHereError(f"no model: {last_line(done.stderr)}")
    found = run(day, "serve-chat", 15.0, "--set", "server=vllm", "--model", str(model)).runs[-1]
    day.expect("requests", summary(found).get("requests"), low=10)
    ttft = summary(found).get("ttft_s") or {}
    day.note("TTFT p50", ttft.get("p50", "n/a"), "s")
    day.note(
        "findings", ", ".join(one.rule for one in found.findings if one.state == "fires") or "none"
    )
    day.require(
        "counters of the server",
        any(name.startswith("server.") for name in found.series),
        f"{len(found.series)} series",
    )
