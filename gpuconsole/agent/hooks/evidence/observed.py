"""What is counted once in a job: FLOPs of one step, the memory of its parts, and the copies from the host to the GPU in a few steps.

A dispatch mode counts FLOPs in the passes of one step by torch's own formulas (torch.utils.flop_counter). It calls each operator as it is: the program's
code runs once, as ever. A model under torch.compile is not counted: torch would run it uncompiled in that step, with other rounding.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from ...loop import Signals
from ...protocol import Signal
from .. import tracing
from ..guard import switch, wrappers_without_level
from ..passes import state
from ..watch import recorder, watch

# --- FLOPs and memory ----------------------------------------------------------------------------------------

COMPILED = "the model is compiled: torch would run it uncompiled while its operators are counted"


class StepCount:
    """Counts the FLOPs of the passes of one step. `flops`: forward and backward, recomputation included; None where a formula failed."""

    def __init__(self) -> None:
        from torch.utils._python_dispatch import TorchDispatchMode
        from torch.utils.flop_counter import flop_registry

        count = self
        self.flops: float | None = 0.0
        self.samples = 0
        self._depth = 0

        class Counts(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                out = func(*args, **(kwargs or {}))
                formula = flop_registry.get(func._overloadpacket)
                if formula is not None and count.flops is not None:
                    try:
                        count.flops += formula(*args, **(kwargs or {}), out_val=out)
                    except Exception:  # a formula that does not fit these arguments: the program must not see that
                        count.flops = None
                return out

        self._mode = Counts()

    def enter(self) -> None:
        """A pass begins."""
        self._depth += 1
        if self._depth == 1:
            self._mode.__enter__()

    def leave(self) -> None:
        """The pass ends."""
        self._depth -= 1
        if self._depth == 0:
            self._mode.__exit__(None, None, None)


class Arithmetic:
    """Counts one whole step, as soon as the program runs evenly. `per_sample`: FLOPs of a sample; `reason`: why there is no figure."""

    def __init__(self) -> None:
        self.per_sample: float | None = None
        self.reason = ""
        self.done = False
        self._count: StepCount | None = None

    @property
    def under_way(self) -> bool:
        return self._count is not None

    def step_ended(self, last_samples: int) -> bool:
        """Call after each step. Returns whether the next step is being counted; such a step does not count for the times."""
        if self._count is None:
            if is_compiled():
                self.done, self.reason = True, COMPILED
                return False
            self._count = state.counting = StepCount()
            return True
        count, self._count, state.counting = self._count, None, None
        self.done = True
        if count.flops and last_samples:
            self.per_sample = count.flops / last_samples
        else:
            self.reason = "no operator with a known formula ran in the passes that are seen"
        return False


def is_compiled() -> bool:
    """Whether torch.compile has compiled anything in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["frames"]["total"])


def memory_parts() -> Signals:
    """Bytes of parameters, gradients and optimizer states, as signals. On CUDA the rest of the allocator's peak counts as activations."""
    import torch

    parameters: dict[int, Any] = {}
    states: list[Any] = []
    for optimizer in watch.alive(watch.optimizers):
        parameters.update({id(p): p for group in optimizer.param_groups for p in group["params"]})
        states += [value for values in optimizer.state.values() for value in values.values()]
    for root in watch.alive(watch.roots):
        parameters.update({id(p): p for p in root.parameters()})
    parts = {
        "memory.parameters_bytes": _bytes(parameters.values()),
        "memory.gradients_bytes": _bytes(p.grad for p in parameters.values() if p.grad is not None),
        "memory.optimizer_bytes": _bytes(value for value in states if isinstance(value, torch.Tensor)),
    }
    device = next((p.device for p in parameters.values()), None)
    if device is not None and device.type == "cuda":
        parts["memory.activations_bytes"] = max(0.0, torch.cuda.max_memory_allocated(device) - sum(parts.values()))
    source = "the tensors of the program; activations are the rest of the allocator's peak"
    return {name: Signal(value, "B", source) for name, value in parts.items() if value}


def _bytes(tensors: Iterable[Any]) -> float:
    return float(sum(tensor.numel() * tensor.element_size() for tensor in tensors))


# --- copies from the host to the GPU, by Tensor.to and Tensor.cuda -------------------------------------------

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
            result = plain(tensor, *args, **kwargs)
            if not tracing.is_compiling():
                try:
                    self._note(tensor, result)
                except Exception as problem:
                    switch.off("copies.note", problem)
            return result

        return method

    def _note(self, tensor: Any, copy: Any) -> None:
        """A method has made `made` of `tensor`."""
        if copy.device.type != "cuda" or tensor.device.type != "cpu":
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
