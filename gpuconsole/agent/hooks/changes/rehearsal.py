"""A rehearsal: a new server makes batches that the present server makes too. What does not work, or differs in one bit, is found out before
it matters."""

from __future__ import annotations

import copy
import queue
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from ..guard import from_outside
from .change import Refused
from .indices import Feed
from .servers import Server, in_one_line

# --- batches -------------------------------------------------------------------------------------------------


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


# --- rehearsals ----------------------------------------------------------------------------------------------

LIMIT_S = 15.0
"""The new workers must have made their batches within this time."""
IMPORTING_S = 60.0
"""The same where each worker imports the modules of the program first: torch alone takes seconds, and all workers do it at a time."""
COMPARED = 2
"""Batches that are compared."""


class Rehearsal:
    """`server` makes the batches of `indices`. They are compared with the batches of the present server, and thrown away."""

    def __init__(self, server: Server, indices: list[Any], longer_s: float = 0.0) -> None:
        """`longer_s`: time beyond the limit, where batches take long."""
        self.server = server
        self.limit_s = (IMPORTING_S if server.imports else LIMIT_S) + longer_s
        self.began = time.monotonic()
        self.same = True
        self._indices = indices
        self._compared = 0
        self._mine: dict[int, Any] = {}
        self._theirs: dict[int, Any] = {}
        self._missing = len(indices)
        self._left: deque[int] = deque(range(len(indices)))
        server.begin(Feed(iter(indices)))

    def poll(self) -> bool:
        """Whether all batches are there and some of them were compared. Does not wait. Raises Refused where a batch cannot be made."""
        if not self.server.settings.num_workers:
            self._make_here()
        else:
            self._collect()
        return not self._missing and self._compared >= min(COMPARED, len(self._indices))

    def over(self) -> str:
        """Why the rehearsal must end without a result; empty while it may go on."""
        if self._missing and time.monotonic() - self.began > self.limit_s:
            return f"the new workers made no batch within {self.limit_s:.0f} s"
        return ""

    def served(self, index: Any, batch: Any) -> None:
        """The present server delivers `batch`."""
        for position, rehearsed in enumerate(self._indices[:COMPARED]):
            if rehearsed is index and position not in self._theirs:
                self._theirs[position] = batch if position in self._mine else copied(batch)
                self._compare(position)

    def _collect(self) -> None:
        iterator = self.server.iterator
        while self._missing:
            try:
                position, data = iterator._data_queue.get(block=False)
            except queue.Empty:
                if not all(worker.is_alive() for worker in iterator._workers) and iterator._data_queue.empty():
                    raise Refused("a new worker died before it had made a batch") from None
                return
            except Exception as problem:
                if from_outside(problem):
                    raise
                raise Refused(f"a batch could not be received from the new workers: {in_one_line(problem)}") from None
            if hasattr(data, "exc_type"):
                text = str(data.exc_msg).strip().splitlines()
                raise Refused(f"the dataset does not work in a worker: {text[-1] if text else data.exc_type.__name__}")
            self._made(position, data)

    def _make_here(self) -> None:
        while self._missing:
            try:
                _, batch = self.server.next()
            except Exception as problem:
                if from_outside(problem):
                    raise
                raise Refused(f"the dataset does not work in the program's own process: {in_one_line(problem)}") from None
            self._made(self._left[0], batch)

    def _made(self, position: int, batch: Any) -> None:
        self._left.remove(position)
        self._missing -= 1
        if position < COMPARED:
            self._mine[position] = batch
            self._compare(position)

    def _compare(self, position: int) -> None:
        if position in self._mine and position in self._theirs:
            self._compared += 1
            self.same = self.same and same_bits(self._mine[position], self._theirs[position])
            self._mine[position] = self._theirs[position] = None
