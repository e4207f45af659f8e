"""Modes of torch that slow each step: anomaly mode, a running profiler, deterministic algorithms.

The agent reads a few attributes of torch at the start of a backward pass, because a program may
turn a mode on only for its passes (`with torch.autograd.detect_anomaly()`). The agent counts these
readings, and the readings that find a mode. The console uses the increase of both counts. So a mode
that the program has turned off again does not explain later steps.
"""

from __future__ import annotations

import sys
from typing import Any

from ..clock import now
from ..forks import in_forked_children
from ..protocol import COUNTS
from .guard import unseen
from .recorder import OWN
from .structure import parameters_of
from .watch import recorder

EVERY_S = 0.4
"""Seconds between two looks at least. A look takes 2 µs."""
FORGOTTEN_AFTER = 1000
"""Steps after which a mode that no look has found again is gone: a program may count its operators
in the first steps only."""

BY_DTYPE = {"torch.bfloat16": "bf16", "torch.float16": "fp16"}
OPERATORS_SEEN = "the program has a mode on that sees each operator: it would see other operators"


class Modes:
    """`due`: when the next look is. `counting`: whether the agent's own mode is on, which counts
    FLOPs."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """As in a process that has not trained yet."""
        self.due = 0.0
        self._looks = self._sent = 0
        self._found: dict[str, int] = {}
        self._seen: int | None = None
        """The last step in which a mode of the program saw each operator."""
        self.counting = False

    def why_fixed(self) -> str:
        """Say why a mode of the program forbids a change of the model or the optimizer: the mode
        would see other operators. Empty where no look has found such a mode in the last steps."""
        self._note()
        return (
            OPERATORS_SEEN
            if self._seen is not None and recorder.index - self._seen < FORGOTTEN_AFTER
            else ""
        )

    def _note(self) -> None:
        if not self.counting and has_modes():
            self._seen = recorder.index

    def look(self) -> None:
        """Look which modes are on, at the start of a backward pass of the program."""
        if OWN not in recorder.stack:
            self._count()

    def read(self) -> dict[str, float]:
        """The counters: all looks, and those that have found each mode. A program without backward
        passes of torch.autograd has no look in one: the modes between two steps count then."""
        if self._looks == self._sent and now() >= self.due:
            self._count()
        self._sent = self._looks
        return {
            "mode.looks": float(self._looks),
            **{f"mode.{name}": float(count) for name, count in self._found.items()},
        }

    def _count(self) -> None:
        """Not in steps of a probe or a trial: a profiler there may be ours."""
        self.due = now() + EVERY_S
        if recorder.kind != COUNTS or recorder.arm:
            return
        self._looks += 1
        self._note()
        for name in _present():
            self._found[name] = self._found.get(name, 0) + 1


@unseen
def _present() -> list[str]:
    """The modes that are on in this thread."""
    torch = sys.modules["torch"]
    found = {
        "anomaly": torch.is_anomaly_enabled(),
        "check_nan": torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled(),
        "profiler": is_profiled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cudnn_deterministic": recorder.on_stream and torch.backends.cudnn.deterministic,
    }
    return [name for name, is_on in found.items() if is_on]


@unseen
def autocast_around(module: Any) -> str:
    """Return `bf16` or `fp16` where a pass of `module` that begins now is within autocast; empty
    otherwise."""
    import torch

    parameter = next(parameters_of(module), None)
    kind = parameter.device.type if parameter is not None else "cpu"
    return (
        BY_DTYPE.get(str(torch.get_autocast_dtype(kind)), "")
        if torch.is_autocast_enabled(kind)
        else ""
    )


def is_profiled() -> bool:
    """Return whether a profiler of torch records the operators of this thread."""
    # no public way to this flag (torch 2.13)
    enabled = getattr(sys.modules["torch"]._C._autograd, "_profiler_enabled", None)
    return enabled is not None and bool(enabled())


def has_modes() -> bool:
    """Return whether a mode is on that sees each operator, or each function of torch. That of
    `torch.set_default_device` does not count."""
    import torch

    own: Any = torch._C
    if own._len_torch_dispatch_stack():
        return True
    return any(
        type(own._get_function_stack_at(n)).__name__ != "DeviceContext"
        for n in range(own._len_torch_function_stack())
    )


modes = Modes()
in_forked_children(modes.reset)
