"""What logging and checkpoint rules share: a share of step time that shrinks when it happens less often."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case
from gpuconsole.diagnosis.rule import Threshold
from gpuconsole.model.finding import Interval

SHARE = Threshold("share", 0.05, "ratio", "5 % of step time; train-doctor warns at 2 %, gpu-idle and TraceML at 5 %")
TIMES_RARER = 20


def rarer(case: Case, knob: str) -> int:
    """The interval that makes the work 20 times rarer."""
    return max(1, int(case.knobs[knob])) * TIMES_RARER


def predicted(case: Case, share: float) -> Interval:
    """Speed-up of doing it 20 times more rarely: 1 / (1 - s (1 - 1/20)), between the account's share and what P3 measured."""
    removed = share * (1 - 1 / TIMES_RARER)
    estimates = [1 / (1 - removed)]
    all_side_work = sum(case.get(f"{phase}_ratio", 0.0) for phase in ("logging", "checkpoint", "eval"))
    if case.has("probe.step_no_side_work_s") and all_side_work > 0:
        by_probe = 1 - case.value("probe.step_no_side_work_s") / case.value("step_s")
        estimates.append(1 / (1 - min(0.95, max(0.0, by_probe) * share / all_side_work * (1 - 1 / TIMES_RARER))))
    low, high = min(estimates), max(estimates)
    return Interval(1 + (low - 1) * 0.85, 1 + (high - 1) * 1.15)
