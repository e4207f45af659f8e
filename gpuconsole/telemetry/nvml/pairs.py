"""Values of a GPU that contradict each other: each is plausible by itself, and at least one of the two is wrong."""

from __future__ import annotations

from collections.abc import Mapping

from gpuconsole.model.units import percent

HIGHEST_POWER = 1.5
"""A board may draw more than its limit for some ms, but not so many times its limit (a laptop with a limit of 160 W reported 590 W: beszel issue 1589)."""
WORKS_RATIO = 0.02
"""Above this utilization a GPU surely runs."""
NO_TOTAL = "the driver reports a memory of 0 bytes"
MORE_THAN_ALL = "the driver reports more used than total memory"
BELOW_ZERO = "the driver reports a temperature below 0"

_MEMORY = ("gpu.hbm_used_bytes", "gpu.hbm_free_bytes", "gpu.hbm_reserved_bytes", "gpu.hbm_total_bytes")
_NOT_ZERO_AT_WORK = {
    "gpu.power_w": "0 W",
    "gpu.sm_clock_hz": "an SM clock of 0",
    "gpu.memory_clock_hz": "a memory clock of 0",
    "gpu.temperature_c": "0 degrees",
}


def contradictions(values: Mapping[str, float], limit_w: float = 0.0) -> dict[str, str]:
    """The metrics in `values` that cannot be true beside the others, with the reason. `limit_w`: the power limit, which is read rarely; 0: not known."""
    found: dict[str, str] = {}
    total = values.get("gpu.hbm_total_bytes")
    if total == 0:
        found |= dict.fromkeys(_MEMORY, NO_TOTAL)
    elif total is not None and values.get("gpu.hbm_used_bytes", 0.0) > total:
        found |= dict.fromkeys(_MEMORY[:3], MORE_THAN_ALL)
    for metric in ("gpu.power_w", "gpu.power_instant_w"):
        if limit_w > 0 and (power := values.get(metric, 0.0)) > HIGHEST_POWER * limit_w:
            found[metric] = f"the driver reports {power:.0f} W at a limit of {limit_w:.0f} W"
    if values.get("gpu.temperature_c", 0.0) < 0:
        found["gpu.temperature_c"] = BELOW_ZERO
    share = values.get("gpu.utilization_ratio", 0.0)
    if share > WORKS_RATIO:
        said = {
            metric: f"the driver reports {zero} at a utilization of {percent(share).strip()}" for metric, zero in _NOT_ZERO_AT_WORK.items()
        }
        found |= {metric: why for metric, why in said.items() if values.get(metric) == 0}
    return {metric: why for metric, why in found.items() if metric in values}
