"""Shared by rules whose probe P5 runs a pass in another way: the share of a step that this way would save."""

from __future__ import annotations

from gpuconsole.diagnosis.rule import Case, Confidence, Evidence, Interval, Threshold, speedup_interval
from gpuconsole.diagnosis.rules import _gpu

GAIN = Threshold("recoverable", 0.05, "ratio", "a gain below 5 % of the step counts as none")
LEAST_ERROR = 0.15
"""Least relative error of a predicted gain: a timed pass is not exactly a step."""
UNKNOWN_SPREAD = 0.1


def saves(case: Case, way: str) -> float:
    """Share of a step that the other way saves, from `probe.{way}_speedup`; below 0 where it is slower. Raises Missing."""
    compute = _gpu.compute_ratio(case)
    return compute * (1 - 1 / case.value(f"probe.{way}_speedup"))


def evidence(case: Case, way: str) -> tuple[Evidence, ...]:
    """The figures of the probe, and the shares of the step that they apply to. Raises Missing."""
    least = 1 / (1 - min(0.9, GAIN / max(_gpu.compute_ratio(case), 0.1)))
    return (
        case.evidence((f"probe.{way}_speedup", least))
        + case.if_known(f"probe.{way}_spread")
        + case.evidence("forward_ratio", "backward_ratio")
    )


def confidence(case: Case, way: str) -> Confidence:
    """High if the lower end of the measured interval is also enough. Raises Missing."""
    at_least = max(1.0, case.value(f"probe.{way}_speedup") - _spread(case, way))
    return "high" if _gpu.compute_ratio(case) * (1 - 1 / at_least) >= GAIN else "medium"


def error(case: Case, way: str) -> float:
    """Relative error of the gain that the probe measured. Raises Missing."""
    faster = case.value(f"probe.{way}_speedup")
    return min(1.0, _spread(case, way) / (faster - 1)) if faster > 1 else 1.0


def predicted(case: Case, way: str) -> Interval:
    """The speed-up of a step, with the probe's error or LEAST_ERROR. Raises Missing."""
    return speedup_interval(1 / (1 - saves(case, way)), max(LEAST_ERROR, error(case, way)))


def _spread(case: Case, way: str) -> float:
    return case.get(f"probe.{way}_spread", UNKNOWN_SPREAD)
