"""Shared by rules about CPU cores: whether threads of the job wait for a core."""

from __future__ import annotations

import math

from gpuconsole.diagnosis.rule import Case, Threshold

DELAY = Threshold("run_queue", 0.15, "ratio", "15 % of step time on the run queue; below that the other rules need no correction")


def waits_for_core(case: Case) -> bool:
    """Whether the training thread spends too much time on the run queue."""
    return case.get("runq_ratio", 0.0) >= DELAY


def threads_wait_for_each_other(case: Case) -> bool:
    """Whether threads of the job wait for a core, and the job has more threads than there are cores without other programs.

    The fixed cost of a step is then the time that threads wait for each other. If others use half a core or more, it counts as a whole core.
    """
    left = case.get("cores", math.inf)
    if case.has("host.others_cpu_ratio", "cores"):
        left -= round(case.value("host.others_cpu_ratio") * left)
    return waits_for_core(case) and case.get("threads", 0.0) > left
