"""`gpuconsole run --headless -- COMMAND` on an unchanged script: our own console, as for any job of
a user's own.

The findings are those of the snapshot that the console writes when the job ends. `gpuconsole-run`
only watches; `gpuconsole-run-probe` may also experiment (`--probe`).
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.diagbench.peers.peer import Job, Peer
from benchmarks.diagbench.peers.verdict import FINE, NOTE, Meaning, Said, names
from gpuconsole.diagnosis.engine import all_rules

SNAPSHOT = "snapshot.json"
NOTED = "note: "
"""Prefix of a finding that only informs."""


def meaning(rule: str) -> Meaning:
    return FINE if rule.endswith("_healthy") else names(rule)


MEANINGS = {rule.id: meaning(rule.id) for rule in all_rules()} | {
    NOTED + rule.id: NOTE for rule in all_rules()
}


def commands(job: Job, options: tuple[str, ...] = ()) -> list[list[str]]:
    run = [
        job.python,
        "-m",
        "gpuconsole",
        "run",
        "--headless",
        "--device",
        "cpu",
        "--snapshot",
        SNAPSHOT,
        "--summary",
        "summary.txt",
    ]
    return [[*run, *options, "--", job.python, job.script()]]


def read(folder: Path) -> list[Said]:
    """Findings of the last run. A run that never became steady has no findings and no verdict."""
    run = json.loads((folder / SNAPSHOT).read_text(encoding="utf-8"))["runs"][-1]
    return findings(run)


def findings(run: dict[str, Any]) -> list[Said]:
    """Firing findings in the order of the console. Raises ValueError where the run was not
    evaluated."""
    fired = [one for one in run.get("findings", ()) if one["state"] == "fires"]
    if run.get("steady_from_s") is None and not fired:
        raise ValueError("the run never became steady")
    return [
        Said((NOTED if one.get("note") else "") + one["rule"], f"{one['recoverable_ratio']:.3f}")
        for one in fired
    ]


PEER = Peer("gpuconsole-run", "gpuconsole", "0.1.0", "nothing", MEANINGS, commands, read)
PROBING = Peer(
    "gpuconsole-run-probe",
    "gpuconsole",
    "0.1.0",
    "nothing",
    MEANINGS,
    partial(commands, options=("--probe",)),
    read,
)
