"""What the rules on communication share."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case, Threshold

EXPOSED = Threshold("exposed", 0.10, "ratio", "10 % of a step warns, 20 % is serious (PyTorch profiler 10 %, gpuprof 20 %)")
LATE = Threshold("late", 1.10, "x", "a process 10 % slower than the others' median warns, 20 % is serious (TraceML; alloc 20 %)")

LATE_OUTSIDE = Threshold("late_outside", 1.20, "x", "20 %: the account's times are less exact than the probe's")


def several(case: Case) -> bool:
    """Whether the run's processes exchange anything."""
    return case.knobs.get("sharding", "none") != "none" or int(case.knobs.get("tensor_parallel", 1)) > 1


def step_s(case: Case) -> float:
    """Seconds of a step as the clock on the wall has it: whoever waits for others waits through their delays too."""
    return case.value("step_s")


def exposed_ratio(case: Case) -> float:
    """Share of a step that is communication nothing hides: probe P7's difference, one exchange a step."""
    return min(0.95, case.value("comm.exposed_s") / step_s(case))


def late_ratio(case: Case) -> float:
    """How much longer the slowest process takes than the others, beyond doubt: in a pass by itself (P8), or outside of passes (account)."""
    by_itself = case.value("comm.straggler_ratio")
    sure = by_itself if by_itself - case.get("comm.straggler_spread", 0.0) >= LATE.value else 1.0
    outside = case.get("ranks.busy_ratio", 1.0)
    return max(sure, outside if outside >= LATE_OUTSIDE.value else 1.0)
