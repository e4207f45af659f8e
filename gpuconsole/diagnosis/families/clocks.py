"""Shared by the rules about clocks: how much of the SM clock is lost, and to what."""

from __future__ import annotations

from gpuconsole.diagnosis.rule import MOST, Case

CAPPED_TIME = 0.10
"""Share of time: a power cap that works for less than this is not why the mean clock is low (survey T39, as `hw.power`)."""


def clock_loss(case: Case) -> float:
    """1 - SM clock under load / the clock that the card should have: NVML's maximum, or the boost clock of a graphics card. Raises Missing."""
    return max(0.0, 1 - case.value("hw.sm_clock_ratio"))


def loss_is_sure(case: Case) -> bool:
    """Whether the clock is compared with one that the card reaches at full load. For a graphics card without a known boost clock it is not."""
    return not case.get("hw.clock_unsure", 0.0)


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


def capped_clock(case: Case) -> float:
    """The SM clock under load over the datasheet's, as far as the power cap lowers it; 1 where it does not, or where one of both is not known.

    An L4 of 72 W or a T4 of 70 W reaches the datasheet's clock in no large product, so no program reaches their peak.
    """
    held, heat = case.get("hw.power_cap_time_ratio", 0.0), case.get("hw.thermal_time_ratio", 0.0)
    lost = max(0.0, 1 - case.get("hw.datasheet_clock_ratio", 1.0))
    return 1 - min(MOST, lost) * held / (heat + held) if lost and held >= CAPPED_TIME else 1.0
