"""The random generators of the program: whether code draws from them, and code that must not."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


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
