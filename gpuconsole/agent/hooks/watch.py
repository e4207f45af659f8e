"""What the hooks have seen of the program in this process."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


class Watch:
    """One per process. The hooks write, and the changes read.

    `iterators`: DataLoader iterators, the newest last. `optimizers`: those that have stepped. `roots`: modules that the program called itself.
    `wrap_forward`: runs around the call of a root module as `(call, module, args, kwargs)`; None: nothing does.
    """

    def __init__(self) -> None:
        self.iterators: list[weakref.ref[Any]] = []
        self.optimizers: list[weakref.ref[Any]] = []
        self.roots: list[weakref.ref[Any]] = []
        self.wrap_forward: Callable[..., Any] | None = None
        self.last_inputs: tuple[Any, ...] | None = None
        self.keep_inputs = False
