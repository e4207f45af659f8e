"""The GPU cases of DiagBench, one seed: the first cause named is the right one. One check for each
case."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import msgspec

from benchmarks.diagbench.cases import Case
from benchmarks.diagbench.gpu_cases import GPU, GPU_SERVING
from benchmarks.diagbench.rows import Row
from benchmarks.gpu_day.check import Day, add
from benchmarks.headless import last_line

SECONDS = 60.0
FIRST = ("G01", "G04", "G06")
"""A healthy job, one in fp32 and one that is launch-bound: a short loan of a GPU has time for
these."""


def is_right(case: Case, day: Day) -> None:
    """The diagnosis of the case, by the command that measures the CPU cases, too."""
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows"
        options = [
            "--device",
            day.device,
            "--only",
            case.id,
            "--seeds",
            "1",
            "--trial-seeds",
            "0",
            "--null-trials",
            "0",
            "--rows",
            str(rows),
        ]
        command = [sys.executable, "-m", "benchmarks.diagbench", *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not rows.exists():
            raise RuntimeError(last_line(done.stderr))
        row = msgspec.json.decode(rows.read_bytes().splitlines()[0], type=Row)
    if row.error:
        raise RuntimeError(row.error)
    fired = ", ".join(row.fired) or "no cause"
    right = (
        row.fired[0] in case.truth if row.fired and case.truth else not row.fired and not case.truth
    )
    day.require(
        "named first",
        right,
        fired if right else f"{fired}, expected {' or '.join(case.truth) or 'no cause'}",
    )
    if row.found_s is not None:
        day.note("found after", row.found_s, "s")
    day.data["row"] = msgspec.to_builtins(row)


for _case in GPU + GPU_SERVING:
    add(
        f"diagbench.{_case.id}",
        f"{_case.name}: {' or '.join(_case.truth) or 'no cause'}",
        448 if _case.id in FIRST else 75 - 5 * _case.serving,
        SECONDS + _case.watch_s,
        partial(is_right, _case),
    )
