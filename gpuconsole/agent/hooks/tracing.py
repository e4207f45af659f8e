"""What torch does now: whether it traces the program's code, to compile it and not to run it (then
the hooks must leave no mark in what is traced), whether it keeps what gradients need, and whether
it captures a CUDA graph (then a call that waits, queries an event or allocates host memory would
break the capture, and with it the program)."""

from __future__ import annotations

import sys
from collections.abc import Callable

from ..forks import in_forked_children


def _never() -> bool:
    return False


is_compiling: Callable[[], bool] = _never
"""torch.compiler.is_compiling once torch is imported; torch.compile reads it as a constant."""


def _always() -> bool:
    return True


grad_enabled: Callable[[], bool] = _always
"""torch.is_grad_enabled once torch is imported."""


def _find_out() -> bool:
    """The first call: a torch without CUDA has a stand-in that raises."""
    global capturing
    capturing = _torch_is_capturing
    try:
        return _torch_is_capturing()
    except RuntimeError:
        capturing = _never
        return False


_torch_is_capturing: Callable[[], bool] = _never
capturing: Callable[[], bool] = _never
"""torch.cuda.is_current_stream_capturing once torch is imported. It makes no context."""


def forked() -> None:
    """In a forked child: where the parent has used CUDA, the child must not ask it."""
    global capturing
    torch = sys.modules.get("torch")
    if torch is not None:
        capturing = _never if torch.cuda._is_in_bad_fork() else _find_out


in_forked_children(forked)


def use(
    torch_is_compiling: Callable[[], bool],
    torch_is_grad_enabled: Callable[[], bool],
    torch_is_capturing: Callable[[], bool],
) -> None:
    """Take torch's own functions."""
    global is_compiling, grad_enabled, capturing, _torch_is_capturing
    is_compiling, grad_enabled, _torch_is_capturing = (
        torch_is_compiling,
        torch_is_grad_enabled,
        torch_is_capturing,
    )
    capturing = _find_out
