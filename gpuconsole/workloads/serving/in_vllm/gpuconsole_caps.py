"""vLLM imports this module in its own Python by `--scheduler-cls gpuconsole_caps.scheduler`: vLLM's scheduler with limits that can
change while the server runs.

A memory-mapped file of 64-bit integers holds the limits: maximum sequences and maximum tokens per iteration (0: the values of the
start). After them stand the values of the start, which vLLM may have chosen itself: this module writes them for the console. Reading the file takes much less time than an iteration. This module does not import gpuconsole.
"""

import mmap
import os
import struct

VARIABLE = "GPUCONSOLE_CAPS"
LAYOUT = struct.Struct("=qq")


class Caps:
    """A mixin before a scheduler class of vLLM: the schedule of vLLM under the smaller of vLLM's limits and these limits."""

    running: list
    max_num_scheduled_tokens: int

    def __init__(self, *args, **kwargs) -> None:  # type: ignore[no-untyped-def]
        super().__init__(*args, **kwargs)
        with open(os.environ[VARIABLE], "r+b") as file:
            self._caps = mmap.mmap(file.fileno(), 2 * LAYOUT.size)
        # newer versions (0.32) separate admission from the number of slots of the model runner
        self._seats = "max_num_active_reqs" if hasattr(self, "max_num_active_reqs") else "max_num_running_reqs"
        self._most_seats, self._most_tokens = getattr(self, self._seats), self.max_num_scheduled_tokens
        LAYOUT.pack_into(self._caps, LAYOUT.size, self._most_seats, self._most_tokens)

    def schedule(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        seats, tokens = LAYOUT.unpack_from(self._caps)
        # never below the number of running sequences: the scheduler admits no more, and running sequences continue to their end
        setattr(self, self._seats, min(self._most_seats, max(seats, len(self.running))) if seats else self._most_seats)
        self.max_num_scheduled_tokens = min(self._most_tokens, tokens) if tokens else self._most_tokens
        return super().schedule(*args, **kwargs)  # type: ignore[misc]


def scheduler(*args, **kwargs):  # type: ignore[no-untyped-def]
    """The scheduler that vLLM would create, with the mixin Caps. vLLM calls this function like a class."""
    if getattr(kwargs["vllm_config"].scheduler_config, "async_scheduling", False):
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler as Base
    else:
        from vllm.v1.core.sched.scheduler import Scheduler as Base
    return type("CappedScheduler", (Caps, Base), {})(*args, **kwargs)
