"""Imported by vLLM, in its own Python, by `--scheduler-cls gpuconsole_caps.scheduler`: vLLM's scheduler, with limits that can be lowered
while it serves.

The limits stand in a file of two 64-bit integers, most sequences and most tokens per iteration (0: as started), which is mapped into
memory: looking at it costs nothing beside an iteration. Nothing here needs gpuconsole.
"""

import mmap
import os
import struct

VARIABLE = "GPUCONSOLE_CAPS"
LAYOUT = struct.Struct("=qq")


class Caps:
    """Goes before a scheduler class of vLLM: its own schedule, under the smaller of its limits and ours."""

    running: list  # type: ignore[type-arg]
    max_num_scheduled_tokens: int

    def __init__(self, *args, **kwargs) -> None:  # type: ignore[no-untyped-def]
        super().__init__(*args, **kwargs)
        with open(os.environ[VARIABLE], "rb") as file:
            self._caps = mmap.mmap(file.fileno(), LAYOUT.size, access=mmap.ACCESS_READ)
        # newer versions (0.32 has it) tell admission from the number of seats that the model runner has
        self._seats = "max_num_active_reqs" if hasattr(self, "max_num_active_reqs") else "max_num_running_reqs"
        self._most_seats, self._most_tokens = getattr(self, self._seats), self.max_num_scheduled_tokens

    def schedule(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        seats, tokens = LAYOUT.unpack_from(self._caps)
        # never below what runs already: no more are admitted, and those that are there come to their end
        setattr(self, self._seats, min(self._most_seats, max(seats, len(self.running))) if seats else self._most_seats)
        self.max_num_scheduled_tokens = min(self._most_tokens, tokens) if tokens else self._most_tokens
        return super().schedule(*args, **kwargs)  # type: ignore[misc]


def scheduler(*args, **kwargs):  # type: ignore[no-untyped-def]
    """The scheduler that vLLM would have made, with Caps before it. vLLM calls it as it calls a class."""
    if getattr(kwargs["vllm_config"].scheduler_config, "async_scheduling", False):
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler as Base
    else:
        from vllm.v1.core.sched.scheduler import Scheduler as Base
    return type("CappedScheduler", (Caps, Base), {})(*args, **kwargs)
