"""Numbers in plain text."""

from __future__ import annotations


def si(value: float, unit: str) -> str:
    """`18.2 k tokens/s`: three significant digits with an SI prefix."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            close = unit in ("FLOP", "FLOP/s", "B", "B/s")
            return f"{value / factor:.3g} {prefix}{unit}" if close else f"{value / factor:.3g} {prefix} {unit}"
    return f"{value:.3g} {unit}"


def seconds(value: float) -> str:
    """`1.35 ms`: three significant digits."""
    for factor, prefix in ((1.0, ""), (1e-3, "m"), (1e-6, "µ")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}s"
    return f"{value * 1e9:.3g} ns" if value else "0 s"
