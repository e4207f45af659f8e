"""Median and standard deviation. Python's `statistics` is not used: `import torch` does not load that module, and a program may have a `statistics.py` of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def median(values: Iterable[float]) -> float:
    """The median of values, at least one. Raises IndexError without values."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def standard_deviation(values: Sequence[float]) -> float:
    """The standard deviation of a sample of two values or more. Raises ZeroDivisionError with one value."""
    mean = sum(values) / len(values)
    return float((sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5)
