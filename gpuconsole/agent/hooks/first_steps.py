"""The first steps after a change of the model or the optimizer: an allocation on the GPU that fails in them is a consequence of the change."""

from __future__ import annotations

from collections.abc import Callable

from .guard import from_outside
from .watch import recorder

FIRST_STEPS = 2
"""Steps after a change of the model or the optimizer in which an allocation that fails is taken for a consequence of the change."""


class FirstSteps:
    """The first steps of the newest change that may need memory of the GPU."""

    def __init__(self) -> None:
        self._change = self._failed = ""
        self._take_back: Callable[[], object] = lambda: None
        self._end = 0

    def begin(self, change: str, take_back: Callable[[], object]) -> None:
        """`change`: `precision=bf16`. `take_back` takes it back."""
        self._change, self._take_back, self._failed, self._end = change, take_back, "", recorder.index + FIRST_STEPS

    def end(self) -> None:
        """The program's own setting is back."""
        self._change = self._failed = ""

    @property
    def under_way(self) -> bool:
        return bool(self._change) and recorder.index < self._end

    def failed(self, problem: str) -> str:
        """An allocation has failed. The change goes at once: the program may try again, and would fail again. Returns the change; empty where its first
        steps are over."""
        if not self.under_way:
            return ""
        self._failed = problem.partition("\n")[0]
        try:
            self._take_back()
        except Exception as own:  # there is no room for that either: `why_failed` tells that the change has failed
            if from_outside(own):
                raise
        return self._change

    def why_failed(self) -> str:
        """Why the change failed, once; empty where no allocation has failed in its first steps."""
        if not self._failed:
            return ""
        why = f"out of memory in the first steps with {self._change}: {self._failed}"
        self.end()
        return why


first_steps = FirstSteps()
