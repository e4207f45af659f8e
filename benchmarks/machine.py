"""The machine and versions of a result."""

from __future__ import annotations

import datetime
import functools
import json
import platform
import shutil
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import psutil

RESULTS = Path(__file__).parent / "results"


def fingerprint() -> dict[str, object]:
    """Machine, versions, date, and the load, because other work on shared machines is noise."""
    names = ("torch", "textual", "nvidia-ml-py", "msgspec", "psutil")
    return {
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "cpu": _cpu_name(),
        "cores": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "os": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in names},
        "load_before": psutil.getloadavg(),
    }


@functools.cache
def commit() -> str:
    """The commit that runs, with `-dirty` where files other than results differ from it; empty
    outside of a checkout."""
    root = RESULTS.parents[1]
    if shutil.which("git") is None:
        return ""
    head = subprocess.run(
        ["git", "rev-parse", "--short=10", "HEAD"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    changed = (
        subprocess.run(
            ["git", "diff", "--quiet", "HEAD", "--", ".", ":!benchmarks/results"],
            cwd=root,
            check=False,
        ).returncode
        == 1
    )
    return head + "-dirty" * (bool(head) and changed)


def keep(name: str, result: dict[str, object]) -> Path:
    """Write `result` with the machine it came from under `results/`."""
    path = RESULTS / f"{name}-{datetime.date.today().isoformat()}.json"
    path.write_text(json.dumps({"machine": fingerprint(), **result}, indent=1) + "\n")
    return path


def has_features(one_of: Sequence[str]) -> bool:
    """Whether the CPU has one of these features, as the kernel names them; true where none is asked
    for."""
    return not one_of or not set(one_of).isdisjoint(_of_cpu("flags").split())


def _cpu_name() -> str:
    return _of_cpu("model name") or platform.processor()


def _of_cpu(field: str) -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(field):
            return line.partition(":")[2].strip()
    return ""
