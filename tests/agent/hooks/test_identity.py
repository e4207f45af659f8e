"""What is known of objects by their identity."""

from __future__ import annotations

import gc
import sys
import weakref
from types import FrameType
from typing import Any

from gpuconsole.agent.hooks.identity import ByIdentity


class Odd:
    """An object whose class has an `__eq__` and a `__hash__` that must not be called."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError

    def __hash__(self) -> int:
        raise AssertionError


def test_the_value_of_an_object_goes_with_the_object() -> None:
    known, value = ByIdentity(), Odd()
    left = weakref.ref(value)
    first, second = Odd(), Odd()
    known.put(first, value)
    known.put(second, 2)
    assert known.get(first) is value and known.get(second) == 2 and known.get(Odd()) is None
    del value, first
    assert left() is None and len(known) == 1 and next(iter(known)) is second
    known.put(second, 3)
    assert known.get(second) == 3 and known.pop(second) == 3 and len(known) == 0


def test_no_function_of_python_runs_as_an_object_goes() -> None:
    """An exception of a signal handler that comes within such a function would be lost."""
    known, called = ByIdentity(), list[str]()

    def seen(frame: FrameType, event: str, given: Any) -> None:
        # others may be called by garbage of other tests
        if event == "call" and "gpuconsole" in frame.f_code.co_filename:
            called.append(frame.f_code.co_qualname)

    alone, in_cycle = Odd(), Odd()
    in_cycle.itself = in_cycle  # type: ignore[attr-defined]
    known.put(alone, 1)
    known.put(in_cycle, 2)
    sys.setprofile(seen)
    try:
        del alone, in_cycle
        gc.collect()
    finally:
        sys.setprofile(None)
    assert called == [] and len(known) == 0
