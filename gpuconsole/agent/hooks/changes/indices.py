"""The indices of an epoch: one stream, from which all servers draw in turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from ..guard import from_outside

UNKNOWN = object()
"""An index that was drawn before the stream was followed."""


class Indices:
    """The one stream of indices. What was drawn in vain is drawn again. `error`: of the sampler. It is raised after the last batch of the indices before it,
    as without workers."""

    def __init__(self, draws: Iterator[Any]) -> None:
        self._draws = draws
        self._ahead: deque[Any] = deque()
        self._ended = False
        self.error: Exception | None = None

    def __iter__(self) -> Indices:
        return self

    def __next__(self) -> Any:
        if self._ahead:
            return self._ahead.popleft()
        if self._ended:
            raise StopIteration
        try:
            return next(self._draws)
        except StopIteration:
            self._ended = True
            raise
        except Exception as problem:
            if from_outside(problem):
                raise
            self.error, self._ended = problem, True
            raise StopIteration from None

    def give_back(self, drawn: list[Any]) -> None:
        """Put what was drawn in front again."""
        self._ahead.extendleft(reversed(drawn))

    def rest(self) -> Iterator[Any]:
        """What the program's own iterator draws from when nothing is changed any longer."""
        return self if self._ahead or self._ended else self._draws


class Feed:
    """The indices that one server may draw. `drawn`: those whose batch it has not delivered yet, in order."""

    def __init__(self, indices: Iterator[Any], drawn: int = 0) -> None:
        """`drawn`: how many indices the server drew before its draws were followed."""
        self._indices = indices
        self.drawn: deque[Any] = deque([UNKNOWN] * drawn)
        self.closed = False

    def __iter__(self) -> Feed:
        return self

    def __next__(self) -> Any:
        if self.closed:
            raise StopIteration
        index = next(self._indices)
        if type(index) is list:  # a sampler may fill one list again and again, and the queue of a worker pickles it later
            index = list(index)
        self.drawn.append(index)
        return index
