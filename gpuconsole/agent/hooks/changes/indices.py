"""The indices of an epoch: one stream, from which all servers draw in turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from .random_state import RandomState

CHECKS = 3
"""Draws of a sampler that are checked for draws from the program's random generators."""
UNKNOWN = object()
"""An index that was drawn before the stream was followed."""


class Indices:
    """The one stream of indices. What was only looked at, or was drawn in vain, is drawn again.

    `random`: the sampler draws from the program's random generators for single batches, so that it must not be asked earlier than the program
    would ask it.
    """

    def __init__(self, draws: Iterator[Any], begun: bool) -> None:
        """`begun`: the first index has been drawn. The first draw is not checked, because most samplers draw their seed then."""
        self._draws = draws
        self._ahead: deque[Any] = deque()
        self._error: Exception | None = None
        self._unchecked = 0 if begun else 1
        self._checks = 0
        self.random = False

    @property
    def checked(self) -> bool:
        return self._checks >= CHECKS

    def __iter__(self) -> Indices:
        return self

    def __next__(self) -> Any:
        return self._ahead.popleft() if self._ahead else self._draw()

    def peek(self, count: int) -> list[Any]:
        """The next indices, at most `count`; they stay in the stream. An error of the sampler is raised when its index is due."""
        while len(self._ahead) < count:
            try:
                self._ahead.append(self._draw())
            except StopIteration:
                break
            except Exception as error:
                self._error = error
                break
        return list(self._ahead)[:count]

    def give_back(self, drawn: list[Any]) -> None:
        """Put what was drawn in front again."""
        self._ahead.extendleft(reversed(drawn))

    def _draw(self) -> Any:
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self._unchecked:
            self._unchecked -= 1
            return next(self._draws)
        if self.checked:
            return next(self._draws)
        before = RandomState()
        index = next(self._draws)
        self._checks += 1
        self.random = self.random or before != RandomState()
        return index


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
        self.drawn.append(index)
        return index
