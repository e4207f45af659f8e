"""How long a program of a report runs, how fast it is, and what share of its time the slow part takes.

A program makes one step each time `goes_on` is true. Without the fault it runs with `--fixed`. At its end a line of JSON on stderr says: `rate` in steps a
second, `share` of the time within `part`, the `steps` and `seconds` that are counted, and `cpu`, the CPU seconds of this process for a step, which a busy
machine changes less than the rate. The first WARM_S seconds after the first step are left out.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator

FIXED = "--fixed" in sys.argv
SECONDS = float(os.environ.get("SECONDS", "20"))
WARM_S = float(os.environ.get("WARM_S", "3"))

begun = 0.0
"""When the second step began: the first imports parts of torch."""
calls = 0
counted = 0
within = 0.0
counting = 0.0
"""When counting began; 0 before."""
cpu = 0.0
"""The CPU time of this process when counting began."""


def goes_on() -> bool:
    """Whether there is time for one more step; to be called once for each step."""
    global begun, calls, counted, within, counting, cpu
    now = time.perf_counter()
    calls += 1
    if calls <= 2:
        begun = now
    if now - begun >= SECONDS:
        say(now)
        return False
    if counting:
        counted += 1
    elif now - begun >= WARM_S:
        counting, within, cpu = now, 0.0, time.process_time()
    return True


def steps_left(steps: int) -> bool:
    """Whether a step is left, for programs with several ranks, which must make the same number of steps."""
    global counted, counting, cpu
    now = time.perf_counter()
    if not counting:
        counting, cpu = now, time.process_time()
    if counted >= steps:
        say(now)
        return False
    counted += 1
    return True


def say(now: float) -> None:
    seconds = now - counting
    told = {"rate": counted / seconds, "share": within / seconds, "steps": counted, "seconds": seconds}
    print(
        json.dumps({**told, "cpu": (time.process_time() - cpu) / max(counted, 1)}),
        file=sys.stderr,
        flush=True,
    )


@contextlib.contextmanager
def part() -> Iterator[None]:
    """Counts the time of the slow part."""
    global within
    start = time.perf_counter()
    yield
    within += time.perf_counter() - start
