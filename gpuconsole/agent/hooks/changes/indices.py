"""The indices of an epoch: one stream, from which all servers draw in turn; and the random generators of the program, from which nothing
may draw here."""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..guard import from_outside
from .state import State

# --- the random generators of the program --------------------------------------------------------------------


class RandomState:
    """The states of the global generators of Python, torch (CPU) and numpy at one moment."""

    def __init__(self) -> None:
        import torch

        self._python = random.getstate()
        self._torch = torch.get_rng_state()
        numpy = sys.modules.get("numpy")
        self._numpy: Any = numpy.random.get_state() if numpy is not None else None

    def __eq__(self, other: object) -> bool:
        import torch

        if not isinstance(other, RandomState):
            return NotImplemented
        same = self._python == other._python and torch.equal(self._torch, other._torch)
        if not same or self._numpy is None or other._numpy is None:
            return same
        return bool(self._numpy[2] == other._numpy[2] and (self._numpy[1] == other._numpy[1]).all())

    __hash__ = None  # type: ignore[assignment]  # two states are compared, never looked up

    def restore(self) -> None:
        import torch

        random.setstate(self._python)
        torch.set_rng_state(self._torch)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)


class OwnRandom:
    """Generators for code that runs in the program's process but must not draw from the program's generators."""

    def __init__(self, seed: int) -> None:
        self._state: RandomState | None = None
        self._seed = seed

    @contextmanager
    def in_force(self) -> Iterator[None]:
        import torch

        program = RandomState()
        try:
            if self._state is not None:
                self._state.restore()
            else:
                random.seed(self._seed)
                torch.default_generator.manual_seed(self._seed)
                if "numpy" in sys.modules:
                    sys.modules["numpy"].random.seed(self._seed % 2**32)
            yield
        finally:
            self._state = RandomState()
            program.restore()


# --- indices -------------------------------------------------------------------------------------------------

CHECKS = 3
"""Draws of a sampler that are checked for draws from the program's random generators."""
UNKNOWN = object()
"""An index that was drawn before the stream was followed."""


class Indices:
    """The one stream of indices. What was only looked at, or was drawn in vain, is drawn again.

    `random`: the sampler draws from the program's random generators for single batches, so that it must not be asked earlier than the program
    would ask it.
    """

    def __init__(
        self,
        draws: Iterator[Any],
        generators: list[Any],
        look: Callable[[bool], State | None],
        drawn: int = 0,
        delivered: int = 0,
        depth: int = 0,
    ) -> None:
        """`generators`: generators of the program's own from which the sampler may draw. `look`: returns the state of the program's own samplers, whole or
        not. `drawn`, `delivered`: indices that were drawn, and batches that the program got, before. `depth`: how far the program's own loader draws
        ahead. The first draw is not checked, because most samplers draw their seed then."""
        self._draws = draws
        self._ahead: deque[Any] = deque()
        self._error: Exception | None = None
        self._ended = False
        self._drawn, self._delivered, self._depth = drawn, delivered, depth
        self._generators = generators
        self._states: deque[tuple[int, list[Any]]] = deque()
        self._remember()
        self._unchecked = 0 if drawn else 1
        self._checks = 0
        self._after: list[Any] | None = None
        """The states of the generators after the last draw, as long as draws are checked."""
        self.random = False
        self._look = look
        self._sampler: State | None = None
        self._whole: State | None = None
        self.sampler_changes = False
        """Whether the program has changed its sampler, or what the sampler uses, between two draws."""
        self.sampler_unknown = False
        """Whether the program may have changed it unseen: it holds too much to be compared."""

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
                if from_outside(error):
                    raise
                self._error = error
                break
        return list(self._ahead)[:count]

    def give_back(self, drawn: list[Any]) -> None:
        """Put what was drawn in front again."""
        self._ahead.extendleft(reversed(drawn))

    def delivered(self) -> None:
        """The program got one more batch."""
        self._delivered += 1

    def rewind(self) -> None:
        """The program leaves the epoch before its end: put its generators where they would be, had no index been drawn earlier.

        RandomSampler, for example, draws once more at its end. Where the program itself has drawn since, nothing is changed.
        """
        import torch

        if not self._generators or not all(map(torch.equal, self._states[-1][1], self._now())):
            return
        states = [states for drawn, states in self._states if drawn <= self._delivered + self._depth]
        for generator, state in zip(self._generators, states[-1] if states else (), strict=False):
            generator.set_state(state)
        self._generators = []

    def _now(self) -> list[Any]:
        return [generator.get_state() for generator in self._generators]

    def _remember(self) -> None:
        """Keep the states of the generators after each draw that the program's own loader has not made yet."""
        self._states.append((self._drawn, self._now()))
        while len(self._states) > 1 and self._states[1][0] <= self._delivered + self._depth:
            self._states.popleft()

    def _draw(self) -> Any:
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self._ended:
            raise StopIteration
        self._compare_sampler()
        try:
            return self._checked_draw()
        except StopIteration:
            self._ended = True
            raise
        finally:
            self._drawn += 1
            if self._generators:
                self._remember()
            if not self._ended:
                self._look_at_sampler()

    def _look_at_sampler(self) -> None:
        """Note the state of the sampler after a draw. While draws are checked, long lists and arrays are noted as a whole."""
        self._sampler = self._look(False)
        self._whole = self._look(True) if self._sampler is not None and not self.checked else None

    def _compare_sampler(self) -> None:
        """Whether the program has changed the sampler since the last draw."""
        if self._sampler is None or self.sampler_changes:
            return
        state = self._look(False)
        self.sampler_changes = state is None or state.print != self._sampler.print
        if self._whole is not None and not self.sampler_changes:
            whole = self._look(True)
            self.sampler_changes = whole is None or whole.print != self._whole.print
            self.sampler_unknown = whole is None or not whole.complete

    def _checked_draw(self) -> Any:
        if self._unchecked:
            self._unchecked -= 1
            return next(self._draws)
        if self.checked:
            return next(self._draws)
        before, own = RandomState(), self._now()
        if self._after is not None and not all(map(_equal, self._after, own)):
            self.random = True  # the program draws from the sampler's generator too, between two batches
        index = next(self._draws)
        self._after = self._now()
        self._checks += 1
        self.random = self.random or before != RandomState()
        return index


def _equal(state: Any, other: Any) -> bool:
    import torch

    return torch.equal(state, other)


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
