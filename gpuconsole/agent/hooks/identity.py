"""What is known of objects of the program, by their identity: their classes may have `__eq__` and
`__hash__` of their own, which must not be called."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator
from typing import Any


class ByIdentity:
    """A value for each object that still exists. Holds no object. (Not a generic class: `typing`
    keeps the types of such a class for ever.)"""

    def __init__(self) -> None:
        self._of: dict[int, tuple[weakref.ref[Any], Any]] = {}

    def get(self, target: Any) -> Any:
        """The value of an object; None where it has none."""
        known = self._of.get(id(target))
        return known[1] if known is not None and known[0]() is target else None

    def put(self, target: Any, value: Any) -> None:
        """Give an object a value. Raises TypeError where its class has no weak references."""
        key = id(target)
        # The callback is no function of Python. Python drops an exception that a signal handler or
        # another thread raises within such a callback.
        self._of[key] = weakref.ref(target, functools.partial(self._of.pop, key)), value

    def pop(self, target: Any) -> Any:
        """Take the value of an object away, and return it."""
        value = self.get(target)
        if value is not None:
            del self._of[id(target)]
        return value

    def __len__(self) -> int:
        return len(self._of)

    def __iter__(self) -> Iterator[Any]:
        """The objects."""
        return iter([target for ref, _ in list(self._of.values()) if (target := ref()) is not None])
