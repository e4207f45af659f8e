"""train-doctor: `train-doctor profile -- COMMAND` on an unchanged script; ranked findings in
`findings.json`.

Its window is as long as that of the other tools. It ends the script itself.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.diagbench.peers.peer import Job, Peer
from benchmarks.diagbench.peers.verdict import NOTE, Said, names

MIN_STEPS = 20
"""Its default of 50 is half a minute with the slowest of the cases."""

MEANINGS = {
    # said only with num_workers=0; its one suggestion, more workers, cures too few of them and slow
    # storage alike
    "dataloader_bound": names("input.too_few_workers", "input.slow_storage"),
    "cpu_bound_preprocessing": names("input.cpu_transform"),
    "checkpoint_in_hot_loop": names("host.checkpoint_stall"),
    "logging_in_hot_loop": names("host.logging_io"),
    "host_sync_in_loop": names("host.sync_stall", gpu_only=True),
    "small_batch": names("gpu.small_batch", gpu_only=True),
    "grad_accumulation_small_micro_batch": names("gpu.small_batch", gpu_only=True),
    "no_mixed_precision": names("gpu.fp32_no_tensor_core", gpu_only=True),
    "pin_memory_off": names("h2d.pageable_or_serial", gpu_only=True),
    "ddp_accumulation_without_no_sync": names("comm.accum_without_no_sync"),
    # settings that it finds untried, with a fixed score: said of every eager run on a CPU, healthy
    # ones included
    "no_torch_compile": NOTE,
    "cudnn_benchmark_off": NOTE,
    "cpu_with_accelerator_available": NOTE,
}


def commands(job: Job) -> list[list[str]]:
    script = job.script(seconds=3 * job.seconds + 60)
    window = [
        "--seconds",
        str(job.seconds),
        "--steps",
        str(MIN_STEPS),
        "--timeout",
        str(job.limit_s),
    ]
    return [
        [
            job.python,
            "-m",
            "train_doctor",
            "profile",
            "--out",
            "runs",
            "--json",
            *window,
            "--",
            job.python,
            script,
        ]
    ]


def read(folder: Path) -> list[Said]:
    """Findings of the only run in the folder. A run without steps has no findings and no
    verdict."""
    (run,) = (folder / "runs").iterdir()
    evidence = json.loads((run / "evidence.json").read_text(encoding="utf-8"))
    return findings(json.loads((run / "findings.json").read_text(encoding="utf-8")), evidence)


def findings(found: list[dict[str, Any]], evidence: dict[str, Any]) -> list[Said]:
    """Findings in the tool's own order, by score."""
    if evidence.get("source") != "hook":
        raise ValueError("it saw no optimizer steps")
    return [Said(one["id"], f"{one['score']:.3f}") for one in found]


PEER = Peer("train-doctor", "train-doctor", "0.2.0", "nothing", MEANINGS, commands, read)
