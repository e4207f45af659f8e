"""Whether two batches are equal, bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any


def same_bits(first: Any, second: Any) -> bool:
    """Whether two batches hold the same values in the same places. Objects of unknown classes count as equal if they are of one class."""
    if type(first) is not type(second):
        return False
    if hasattr(first, "data_ptr"):
        return _same_tensor(first, second)
    if hasattr(first, "__array_interface__"):
        return first.shape == second.shape and first.dtype == second.dtype and first.tobytes() == second.tobytes()
    if isinstance(first, Mapping):
        return list(first) == list(second) and all(same_bits(first[key], second[key]) for key in first)
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(same_bits, first, second))
    if isinstance(first, (str, bytes, int, bool, type(None))):
        return bool(first == second)
    if isinstance(first, float):
        return first == second or (first != first and second != second)  # nan
    fields = getattr(first, "__dict__", None)
    return fields is None or same_bits(dict(fields), dict(second.__dict__))


def _same_tensor(first: Any, second: Any) -> bool:
    import torch

    if first.shape != second.shape or first.dtype != second.dtype or first.layout != second.layout:
        return False
    if first.layout != torch.strided:
        return bool(torch.equal(first.to_dense(), second.to_dense()))
    if first.is_floating_point() or first.is_complex():
        return bool(torch.equal(_bytes(first), _bytes(second)))
    return bool(torch.equal(first.cpu(), second.cpu()))


def _bytes(tensor: Any) -> Any:
    import torch

    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def copied(batch: Any) -> Any:
    """A copy of `batch` that the program cannot alter."""
    return copy.deepcopy(batch)
