"""slowai: `slowai diagnose FILE --json` imports a script and calls its `main()` twice, the second
time under torch.profiler.

The script runs few steps, because slowai needs minutes for the profile of twelve seconds. The JSON
is on its standard output.
"""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.diagbench.peers.peer import Job, Peer
from benchmarks.diagbench.peers.verdict import CANNOT_TELL, FINE, Said, names

MAX_STEPS = 60

MEANINGS = {
    "compute": FINE,  # mathematics fills the time
    # many short operations: it advises larger batches, torch.compile or CUDA graphs
    "overhead": names("gpu.small_batch"),
    "memory": names("gpu.elementwise_membw"),
    "unknown": CANNOT_TELL,
}


def commands(job: Job) -> list[list[str]]:
    return [[job.python, "-m", "slowai", "diagnose", job.script(steps=MAX_STEPS), "--json"]]


def read(folder: Path) -> list[Said]:
    return findings((folder / "output.txt").read_text(encoding="utf-8"))


def findings(output: str) -> list[Said]:
    """The JSON object at the end of the output, after the output of the script and the profiler."""
    start = 0 if output.startswith("{") else output.index("\n{") + 1
    diagnosis = json.loads(output[start:])
    return [Said(diagnosis["regime"], f"{diagnosis['confidence']:.2f}")]


PEER = Peer("slowai", "slowai", "0.10.0", "nothing", MEANINGS, commands, read)
