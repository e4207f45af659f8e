"""Shared by the rules about logging, checkpoints and evaluation: a share of step time that shrinks if the work runs less often."""

from __future__ import annotations

from gpuconsole.diagnosis.rule import Case, Interval, Threshold

SHARE = Threshold("share", 0.05, "ratio", "5 % of step time (train-doctor 2 %, gpu-idle and TraceML 5 %)")
TIMES_RARER = 20


def rarer(case: Case, knob: str) -> int:
    """The interval at which the work runs 20 times less often."""
    return max(1, int(case.knobs[knob])) * TIMES_RARER


def predicted(case: Case, share: float) -> Interval:
    """Speed-up if the work runs 20 times less often: 1 / (1 - s (1 - 1/20)), from the share in the account to the share that P3 measured."""
    removed = share * (1 - 1 / TIMES_RARER)
    estimates = [1 / (1 - removed)]
    all_side_work = sum(case.get(f"{phase}_ratio", 0.0) for phase in ("logging", "checkpoint", "eval"))
    if case.has("probe.step_no_side_work_s") and all_side_work > 0:
        by_probe = 1 - case.value("probe.step_no_side_work_s") / case.value("step_s")
        estimates.append(1 / (1 - min(0.95, max(0.0, by_probe) * share / all_side_work * (1 - 1 / TIMES_RARER))))
    low, high = min(estimates), max(estimates)
    return Interval(1 + (low - 1) * 0.85, 1 + (high - 1) * 1.15)
