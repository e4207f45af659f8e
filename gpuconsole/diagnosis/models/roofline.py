"""The roofline model (Williams et al. 2009): memory limits a computation below the ridge, arithmetic limits it above."""

from __future__ import annotations

from typing import Literal

Side = Literal["memory", "compute"]


def ridge(peak_flops_per_s: float, bytes_per_s: float) -> float:
    """The lowest intensity in FLOP/byte at which the peak is attainable."""
    return peak_flops_per_s / bytes_per_s


def attainable(intensity: float, peak_flops_per_s: float, bytes_per_s: float) -> float:
    """Maximum FLOP/s at this intensity."""
    return min(peak_flops_per_s, intensity * bytes_per_s)


def side(intensity: float, peak_flops_per_s: float, bytes_per_s: float) -> Side:
    """What limits a computation of this intensity."""
    return "memory" if intensity < ridge(peak_flops_per_s, bytes_per_s) else "compute"
