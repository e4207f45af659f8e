"""What the rules about a GPU share: silence without one, and what holds its clocks down."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case

MOST = 0.9
"""No share of a step that a rule claims is larger."""


def on_gpu(case: Case) -> bool:
    """Asked first, so that a run on a CPU is told nothing of GPUs. Raises Missing."""
    return case.value("is_gpu") > 0


def compute_ratio(case: Case) -> float:
    """Share of a step in forward and backward passes. Raises Missing."""
    return case.value("forward_ratio") + case.value("backward_ratio")


def graphs_keep_gradients(case: Case, passes: int | None = None) -> bool:
    """A replayed CUDA graph overwrites the gradients that the one before it left, unless they are in the buckets of several processes."""
    count = int(case.knobs.get("gradient_accumulation_steps", 1)) if passes is None else passes
    return count == 1 or case.knobs.get("sharding", "none") != "none"


def clock_loss(case: Case) -> float:
    """Share of the highest SM clock that the device lacks under load. Raises Missing."""
    return max(0.0, 1 - case.value("hw.sm_clock_ratio"))


def held_by_power(case: Case) -> float:
    """Share of time in which a power limit, or a brake from outside, held clocks down. Raises Missing."""
    return max(case.value("hw.power_cap_time_ratio"), case.get("hw.power_brake_time_ratio", 0.0))


def lost_to_heat(case: Case) -> float:
    """Heat and power may hold clocks down at one time: the loss is shared out by how long each did. Raises Missing."""
    heat, power = (
        case.value("hw.thermal_time_ratio"),
        max(case.get("hw.power_cap_time_ratio", 0.0), case.get("hw.power_brake_time_ratio", 0.0)),
    )
    return min(MOST, clock_loss(case) * heat / (heat + power)) if heat > 0 else 0.0


def lost_to_power(case: Case) -> float:
    """The rest of it. Raises Missing."""
    power, heat = held_by_power(case), case.get("hw.thermal_time_ratio", 0.0)
    return min(MOST, clock_loss(case) * power / (heat + power)) if power > 0 else 0.0
