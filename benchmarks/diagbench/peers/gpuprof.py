"""gpuprof: `with gpuprof.profile()` around the loop of a script; `gpuprof insights --json` prints
the insights of its SQLite file.

An insight has a title and no key, so words of the title identify it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.diagbench.peers.peer import Job, Peer
from benchmarks.diagbench.peers.verdict import FINE, NOTE, Said, names, points_to

SEVERITIES = ("high", "medium", "low")

TITLES = (
    ("workers are CPU-bound", "cpu_bound_dataloader"),
    ("I/O-bound", "io_bound_dataloader"),
    ("waiting on the loader", "dataloader_stall"),
    ("Prefetch queue starved", "prefetch_queue_starved"),
    ("worker imbalance", "worker_imbalance"),
    ("Cold-cache", "cold_cache"),
    ("Cache thrashing", "cache_thrashing"),
    ("Host memory pressure", "host_memory_pressure"),
    ("of step unaccounted", "kernel_launch_overhead"),
    ("NCCL comm", "comm_dominant"),
    ("No major bottlenecks", "none"),
    ("high tail latency", "high_step_variance"),
    ("warmup / JIT", "compilation_warmup"),
    ("filter it from averages", "first_step_outlier"),
    ("backward/forward", "gradient_checkpointing"),
    ("Estimated cost", "cost_projection"),
    ("Kernel drift", "kernel_drift"),
    ("Regression vs last", "regression"),
    ("Low arithmetic intensity", "small_batch"),
    ("MFU", "low_mfu"),
    ("Peak memory", "memory_pressure"),
    ("Attention appears unfused", "sdpa_suboptimal"),
    ("thermal throttling", "thermal_throttling"),
    ("PCIe RX", "pcie_saturation"),
)
"""Words of a title, and the name of the rule that has it. The first that fits holds."""

MEANINGS = {
    "none": FINE,
    "dataloader_stall": points_to("input"),
    "prefetch_queue_starved": names("input.jitter"),
    "cpu_bound_dataloader": names("input.cpu_transform"),
    "io_bound_dataloader": names("input.slow_storage"),
    "cold_cache": names("input.slow_storage"),
    "cache_thrashing": names("input.slow_storage"),
    "worker_imbalance": points_to("input"),
    "host_memory_pressure": points_to("mem"),
    "kernel_launch_overhead": names("host.launch_bound", "host.python_overhead"),
    "comm_dominant": names("comm.exposed"),
    "low_mfu": points_to("gpu", gpu_only=True),
    "small_batch": names("gpu.small_batch", gpu_only=True),
    "sdpa_suboptimal": names("gpu.attention_math", gpu_only=True),
    "memory_pressure": names("mem.near_capacity", gpu_only=True),
    "pcie_saturation": points_to("h2d", gpu_only=True),
    "thermal_throttling": names("hw.thermal", gpu_only=True),
    "kernel_drift": NOTE,
    "regression": NOTE,
    # lists logging, checkpoints, garbage collection and loading as what may be behind it
    "high_step_variance": NOTE,
    "compilation_warmup": NOTE,
    "first_step_outlier": NOTE,
    "gradient_checkpointing": NOTE,
    "cost_projection": NOTE,
}


def commands(job: Job) -> list[list[str]]:
    return [
        [job.python, job.script("gpuprof")],
        [job.python, "-m", "gpuprof", "insights", "gpuprof.db", "--json"],
    ]


def read(folder: Path) -> list[Said]:
    return findings(json.loads((folder / "output.txt").read_text(encoding="utf-8")))


def findings(report: dict[str, Any]) -> list[Said]:
    """Findings by severity, because gpuprof lists them in the order of its rules."""
    if not report["summary"]["n_steps"]:
        raise ValueError("it saw no steps")
    ranked = sorted(report["insights"], key=lambda one: SEVERITIES.index(one["severity"]))
    return [Said(rule_of(one["title"]), one["severity"]) for one in ranked]


def rule_of(title: str) -> str:
    """The rule behind a title; the beginning of the title if the rule is unknown."""
    return next((rule for words, rule in TITLES if words in title), title[:40])


PEER = Peer(
    "gpuprof",
    "gpuprof",
    "0.7.1",
    "psutil (without it, it does not look at the host)",
    MEANINGS,
    commands,
    read,
)
