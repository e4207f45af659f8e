"""TraceML (`traceml-ai`): `traceml run`, and `trace_step` around each step in the script; the
verdict is in `final_summary.json`.

The whole body of the loop is in `trace_step`, logging and saving included, because TraceML sees
nothing outside of it.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from benchmarks.diagbench.peers.peer import Job, Peer
from benchmarks.diagbench.peers.verdict import CANNOT_TELL, FINE, NOTE, Said, names, points_to

RUN = "case"
QUIET = {"NORMAL", "BALANCED", "NO_DATA", "NO_GPU"}
"""Sections with nothing to report."""

MEANINGS = {
    "NO_CLEAR_PERFORMANCE_BOTTLENECK": FINE,
    "COMPUTE_BOUND": FINE,  # informational there: no overhead is in sight
    "INSUFFICIENT_STEP_TIME_DATA": CANNOT_TELL,
    "LOW_GPU_UTILIZATION_UNEXPLAINED": CANNOT_TELL,
    "INPUT_BOUND": points_to("input"),
    "RESIDUAL_HEAVY": points_to("host"),
    "H2D_BOUND": names("h2d.pageable_or_serial", gpu_only=True),
    "STRAGGLER": names("comm.straggler"),
    "COMPUTE_STRAGGLER": names("comm.straggler"),
    "INPUT_STRAGGLER": names("comm.straggler"),
    "H2D_STRAGGLER": names("comm.straggler", gpu_only=True),
    "step_memory.CREEP_EARLY": names("mem.leak_gpu", gpu_only=True),
    "step_memory.CREEP_CONFIRMED": names("mem.leak_gpu", gpu_only=True),
    "step_memory.HIGH_PRESSURE": names("mem.near_capacity", gpu_only=True),
    "step_memory.IMBALANCE": NOTE,
    "process.HIGH_PROCESS_RSS": points_to("mem"),
    "process.HIGH_PROCESS_CPU": NOTE,
    "process.HIGH_PROCESS_GPU_MEMORY": names("mem.near_capacity", gpu_only=True),
    "process.VERY_HIGH_PROCESS_GPU_MEMORY": names("mem.near_capacity", gpu_only=True),
    "process.GPU_MEMORY_RESERVED_OVERHANG": names("mem.fragmentation", gpu_only=True),
    "process.RANK_GPU_MEMORY_IMBALANCE": NOTE,
    "system.HIGH_HOST_MEMORY": points_to("mem"),
    "system.HIGH_GPU_MEMORY": names("mem.near_capacity", gpu_only=True),
    "system.VERY_HIGH_GPU_MEMORY": names("mem.near_capacity", gpu_only=True),
    "system.HIGH_CPU": NOTE,
    "system.HIGH_GPU_TEMPERATURE": NOTE,
    "system.HIGH_GPU_POWER": NOTE,
    "system.LOW_GPU_UTILIZATION": NOTE,
    "system.MODERATE_GPU_UTILIZATION": NOTE,
}


def commands(job: Job) -> list[list[str]]:
    run = [
        job.python,
        "-m",
        "traceml_ai.launcher.cli",
        "run",
        job.script("traceml"),
        "--mode",
        "summary",
    ]
    where = ["--logs-dir", str(job.folder / "logs"), "--run-name", RUN]
    return [
        [*run, *where, "--aggregator-port", str(free_port()), "--master-port", str(free_port())]
    ]


def read(folder: Path) -> list[Said]:
    return findings(
        json.loads((folder / "logs" / RUN / "final_summary.json").read_text(encoding="utf-8"))
    )


def findings(summary: dict[str, Any]) -> list[Said]:
    """The diagnosis of the run, then those of its sections. TraceML ranks the diagnosis of the run
    first."""
    primary = summary["primary_diagnosis"]
    said = [Said(primary["kind"], str(primary.get("severity", "")))]
    for section in ("step_memory", "process", "system"):
        diagnosis = (summary.get(section) or {}).get("diagnosis") or {}
        if diagnosis.get("kind", "NO_DATA") not in QUIET:
            said.append(Said(f"{section}.{diagnosis['kind']}", str(diagnosis.get("severity", ""))))
    return said


def free_port() -> int:
    """A free TCP port: two runs on one machine must not share an aggregator."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


PEER = Peer("traceml", "traceml-ai", "0.5.0", "nothing", MEANINGS, commands, read)
