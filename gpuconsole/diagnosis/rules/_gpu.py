"""Shared by the rules about a GPU: whether the run is on a GPU, and the causes of low clocks."""

from __future__ import annotations

from gpuconsole.diagnosis.rule import Case

MOST = 0.9
"""The largest share of a step that a rule claims."""


def on_gpu(case: Case) -> bool:
    """Whether the run is on a GPU. Rules ask this first, so that runs on a CPU need no GPU signals. Raises Missing."""
    return case.value("is_gpu") > 0


def compute_ratio(case: Case) -> float:
    """Share of a step in forward and backward passes. Raises Missing."""
    return case.value("forward_ratio") + case.value("backward_ratio")


def graphs_keep_gradients(case: Case, passes: int | None = None) -> bool:
    """Whether CUDA graphs keep accumulated gradients. A replayed graph overwrites the gradients of the pass before, unless they are in DDP buckets."""
    count = int(case.knobs.get("gradient_accumulation_steps", 1)) if passes is None else passes
    return count == 1 or case.knobs.get("sharding", "none") != "none"


def clock_loss(case: Case) -> float:
    """1 - SM clock under load / highest SM clock. Raises Missing."""
    return max(0.0, 1 - case.value("hw.sm_clock_ratio"))


def held_by_power(case: Case) -> float:
    """Share of time in which a power limit or an external brake lowered the clocks. Raises Missing."""
    return max(case.value("hw.power_cap_time_ratio"), case.get("hw.power_brake_time_ratio", 0.0))


def lost_to_heat(case: Case) -> float:
    """The part of the lost clock that heat explains. Heat and power share the loss in proportion to their times. Raises Missing."""
    heat, power = (
        case.value("hw.thermal_time_ratio"),
        max(case.get("hw.power_cap_time_ratio", 0.0), case.get("hw.power_brake_time_ratio", 0.0)),
    )
    return min(MOST, clock_loss(case) * heat / (heat + power)) if heat > 0 else 0.0


def lost_to_power(case: Case) -> float:
    """The part of the lost clock that power explains. Raises Missing."""
    power, heat = held_by_power(case), case.get("hw.thermal_time_ratio", 0.0)
    return min(MOST, clock_loss(case) * power / (heat + power)) if power > 0 else 0.0
