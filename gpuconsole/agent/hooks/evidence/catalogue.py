"""The probes that a user's job allows, and why the others are refused."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from ...loop import Signals
from . import passes, stacks, updates

Probe = Callable[[Any], Generator[None, None, Signals]]

PROBES: dict[str, Probe] = {
    "script_lines": lambda loop: stacks.script_lines(loop.account.times),
    "cached_batch": passes.cached_batch,
    "batch_elasticity": passes.batch_elasticity,
    "swap_optim": updates.swap_optim,
}
"""By name. A probe is a generator: it yields where it waits for further steps of the program, and returns signals."""

NEVER = {
    "side_work_off": "the program's own logging, checkpoints and evaluation are never left out",
    "exposed_communication": "processes of a job wait for each other; a probe in one of them would stop them all",
    "exchange_sizes": "processes of a job wait for each other; a probe in one of them would stop them all",
    "swap_threads": "the threads of the program stay as they are; a trial can change them",
    "swap_attention": "the attention of the program is its own code",
}
UNKNOWN = "not possible in a job of your own"


def why_refused(probe: str) -> str:
    """Why this probe never runs in a user's job; empty where it may."""
    return "" if probe in PROBES else NEVER.get(probe, UNKNOWN)
