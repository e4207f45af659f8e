"""Shared by the two rules that call a training run healthy: no phase except the passes may take too much time."""

from __future__ import annotations

from gpuconsole.diagnosis.rule import Case, Evidence, percent
from gpuconsole.diagnosis.rules import _input, _side_work

LIMITS = {"data_wait_ratio": _input.WAIT, "logging_ratio": _side_work.SHARE, "checkpoint_ratio": _side_work.SHARE}


def lost_beside_passes(case: Case) -> tuple[tuple[Evidence, ...], str]:
    """Evidence of the phases within their limits, and the first phase beyond its limit in words ("" if none). Raises Missing."""
    evidence: tuple[Evidence, ...] = ()
    for signal, limit in LIMITS.items():
        if case.value(signal) >= limit:
            return evidence, f"{signal} is {percent(case.value(signal))}"
        evidence += case.evidence((signal, limit))
    return evidence, ""
