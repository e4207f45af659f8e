"""The roofline: below the ridge memory limits a computation, above it arithmetic does (Williams et al. 2009)."""

from __future__ import annotations

from typing import Literal

Side = Literal["memory", "compute"]


def ridge(peak_flops_per_s: float, bytes_per_s: float) -> float:
    """The intensity, in FLOP/byte, from which on the peak can be reached."""
    return peak_flops_per_s / bytes_per_s


def attainable(intensity: float, peak_flops_per_s: float, bytes_per_s: float) -> float:
    """FLOP/s at this intensity, at most."""
    return min(peak_flops_per_s, intensity * bytes_per_s)


def side(intensity: float, peak_flops_per_s: float, bytes_per_s: float) -> Side:
    """What limits a computation of this intensity."""
    return "memory" if intensity < ridge(peak_flops_per_s, bytes_per_s) else "compute"
