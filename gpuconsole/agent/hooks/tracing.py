"""What torch does now: whether it traces the program's code, to compile it and not to run it (then the hooks must leave no mark in what is traced),
and whether it keeps what gradients need."""

from __future__ import annotations

from collections.abc import Callable


def _never() -> bool:
    return False


is_compiling: Callable[[], bool] = _never
"""torch.compiler.is_compiling once torch is imported; torch.compile reads it as a constant."""


def _always() -> bool:
    return True


grad_enabled: Callable[[], bool] = _always
"""torch.is_grad_enabled once torch is imported."""


def use(torch_is_compiling: Callable[[], bool], torch_is_grad_enabled: Callable[[], bool]) -> None:
    global is_compiling, grad_enabled
    is_compiling, grad_enabled = torch_is_compiling, torch_is_grad_enabled
