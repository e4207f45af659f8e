"""The median. Python's `statistics` is not used: `import torch` does not load that module, and a program may have a `statistics.py` of its own."""

from __future__ import annotations

from collections.abc import Iterable


def median(values: Iterable[float]) -> float:
    """Return the median of one value or more. Raises IndexError without values."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
