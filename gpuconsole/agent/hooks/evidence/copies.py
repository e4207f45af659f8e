"""Copies from the host to the GPU by `Tensor.to` and `Tensor.cuda`: whether they begin in pageable memory. Watched in a few steps only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...loop import Signals
from ...protocol import Signal
from .. import tracing
from ..guard import switch, wrappers_without_level
from ..watch import recorder

STEPS = 3
"""Steps in which copies are counted. In all other steps the methods of the class are torch's own."""
METHODS = ("to", "cuda")


class CopyCount:
    """Counts from now on, until `over`. `torch.Tensor` inherits the methods, so that its own attributes can be taken away again."""

    def __init__(self) -> None:
        import torch

        self.pageable = self.pinned = 0
        self.bytes = 0.0
        """Of the copies from pageable memory."""
        self._first = recorder.index
        self._class: Any = torch.Tensor
        self._set: dict[str, Any] = {}
        for name in METHODS:
            if name not in self._class.__dict__:
                self._set[name] = self._counted(getattr(self._class, name))
                setattr(self._class, name, self._set[name])
        switch.undo.append(self.stop)

    @wrappers_without_level
    def _counted(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def method(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            made = plain(tensor, *args, **kwargs)
            if not tracing.is_compiling():
                try:
                    self._note(tensor, made)
                except Exception as problem:
                    switch.off("copies.note", problem)
            return made

        return method

    def _note(self, tensor: Any, made: Any) -> None:
        """A method has made `made` of `tensor`."""
        if made.device.type != "cuda" or tensor.device.type != "cpu":
            return
        if tensor.is_pinned():
            self.pinned += 1
        else:
            self.pageable += 1
            self.bytes += tensor.numel() * tensor.element_size()

    def over(self) -> bool:
        """Whether the steps are over. Call it after each step."""
        if recorder.index - self._first < STEPS:
            return False
        self.stop()
        return True

    def stop(self) -> None:
        for name, method in self._set.items():
            if self._class.__dict__.get(name) is method:
                delattr(self._class, name)
        self._set = {}

    def signals(self) -> Signals:
        source = f"calls of Tensor.to and Tensor.cuda in {STEPS} steps, {self.pinned} of them from page-locked memory"
        return {
            "h2d.pageable_copies": Signal(self.pageable / STEPS, "", f"{source}; copies a step from pageable memory"),
            "h2d.pageable_bytes": Signal(self.bytes / STEPS, "B", f"{source}; bytes a step from pageable memory"),
        }
