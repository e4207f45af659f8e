"""What the agent does where this process forks.

Python keeps the functions of `os.register_at_fork` until the process ends. `gpuconsole.watch` loads
the agent anew for each block, so this module stays loaded between the blocks, registers one
function for all agents, and keeps none of them alive.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from types import MethodType

_before: list[weakref.ref[Callable[[], None]]] = []
_in_child: list[weakref.ref[Callable[[], None]]] = []


def before_forks(function: Callable[[], None]) -> None:
    """Call `function` before each fork, as long as something else keeps it alive."""
    _add(_before, function)


def in_forked_children(function: Callable[[], None]) -> None:
    """Call `function` in each forked child, as long as something else keeps it alive."""
    _add(_in_child, function)


def _add(functions: list[weakref.ref[Callable[[], None]]], function: Callable[[], None]) -> None:
    functions[:] = [ref for ref in functions if ref() is not None]
    functions.append(
        weakref.WeakMethod(function) if isinstance(function, MethodType) else weakref.ref(function)
    )


def _call(functions: list[weakref.ref[Callable[[], None]]]) -> None:
    for ref in functions:
        function = ref()
        if function is not None:
            function()


os.register_at_fork(before=lambda: _call(_before), after_in_child=lambda: _call(_in_child))
