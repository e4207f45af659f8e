"""Whether torch traces the program's code now: to compile it, not to run it. Then the hooks must leave no mark in what is traced."""

from __future__ import annotations

from collections.abc import Callable


def _never() -> bool:
    return False


is_compiling: Callable[[], bool] = _never
"""torch.compiler.is_compiling once torch is imported; torch.compile reads it as a constant."""


def use(torch_is_compiling: Callable[[], bool]) -> None:
    global is_compiling
    is_compiling = torch_is_compiling
