"""What is observed in a job without an experiment: FLOPs of one step, the memory of its parts, the copies from the host to the GPU and the waits of
the host for it in a few steps.

A dispatch mode counts FLOPs in the passes of one step by torch's own formulas (torch.utils.flop_counter). It calls each operator as it is:
the program's code runs once, as ever. A model under torch.compile is not counted: torch would run it uncompiled in that step, with other
rounding.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from ...clock import now
from ...loop import Signals
from ...protocol import Signal
from .. import tracing
from ..calls import compiled
from ..guard import entry, from_outside, switch, unseen, wrappers_without_level
from ..memory import tensors_of_program
from ..modes import has_modes, modes
from ..passes import state
from ..recorder import EVAL, OWN, WITHOUT_GRADIENTS, get_ident
from ..structure import parameters_of, structure
from ..watch import place_name, program_frame, recorder, watch

# --- FLOPs and memory ----------------------------------------------------------------------------------------

MODES = "the program has a mode on that would see how its operators are counted"
COMPILED = "the model is compiled: torch would run it uncompiled while its operators are counted"
OTHER_ROUNDING = "the backward pass of torch.prod or torch.cumprod rounds in another way while operators are counted"
PRODUCTS = ("prod", "cumprod")
"""Operators whose backward pass takes another way where any dispatch mode is on: `isTensorSubclassLike` in torch/csrc/autograd/FunctionsManual.cpp."""
MOST_NODES = 100_000
"""Of the graph of a loss, which is searched for such operators."""
INTERRUPTED = "an exception of the program ended the step whose operators were counted"
NO_FORMULA = "no operator with a known formula ran in the passes that are seen"


class StepCount:
    """Counts the FLOPs of the passes of one step. `flops`: forward and backward, recomputation included; None
    where they are not known, and `reason` says why.

    `convolved`: those of convolutions. `masked`: those of attention that a causal mask leaves out; `flops` counts all scores.
    """

    def __init__(self) -> None:
        from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
        from torch.utils.flop_counter import flop_registry

        count = self
        self.flops: float | None = 0.0
        self.reason = NO_FORMULA
        self.convolved = self.masked = 0.0
        self.samples = 0
        self._depth = 0
        self._counts = False
        """Whether the mode is on."""
        self._products = False
        """Whether one of PRODUCTS has run."""

        class Counts(TorchDispatchMode):
            supports_higher_order_operators = True  # else torch raises an exception where the program runs one of them

            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                out = func(*args, **(kwargs or {}))
                packet = getattr(func, "_overloadpacket", None)
                if packet is None or packet.__name__ in PRODUCTS:
                    count.note_special(packet)
                formula = flop_registry.get(packet) if packet is not None else None
                if formula is not None and count.flops is not None:
                    try:
                        count.note(func, formula(*args, **(kwargs or {}), out_val=out), args, kwargs or {})
                    except Exception as problem:  # a formula that does not fit these arguments: the program must not see that
                        if from_outside(problem):
                            raise
                        count.flops = None
                return out

        self._mode, self._newest_mode = Counts(), _get_current_dispatch_mode
        compiled.on_use = self.give_up

    def note(self, operator: Any, flops: float, args: Any, kwargs: dict[str, Any]) -> None:
        """An operator with a known formula has run."""
        self.flops = (self.flops or 0.0) + flops
        name = operator._overloadpacket.__name__
        if "convolution" in name:
            self.convolved += flops
        elif "attention" in name:
            parameters = [argument.name for argument in operator._schema.arguments]
            place = parameters.index("is_causal") if "is_causal" in parameters else len(args)
            if args[place] if place < len(args) else kwargs.get("is_causal", False):
                self.masked += flops / 2

    def note_special(self, packet: Any) -> None:
        """One of PRODUCTS has run, or an operator that calls others, which are not counted then."""
        if packet is None:
            self.flops = None
        else:
            self._products = True

    @entry("arithmetic.enter")
    def enter(self, loss: Any = None) -> None:
        """A pass begins. `loss`: that of a backward pass."""
        self._depth += 1
        if self._depth > 1:
            return
        if has_compiled():
            self.flops, self.reason = None, COMPILED
            return
        if has_modes():
            self.flops, self.reason = None, MODES
            return
        if loss is not None and (self._products or has_products(loss)):
            self.flops, self.reason = None, OTHER_ROUNDING
            return
        self._counts = modes.counting = True
        self._mode.__enter__()

    @entry("arithmetic.leave")
    def leave(self) -> None:
        """The pass ends."""
        self._depth -= 1
        if self._depth == 0:
            self._exit()

    def _exit(self) -> None:
        if self._counts and self._newest_mode() is self._mode:  # else it would end a mode of the program
            self._counts = modes.counting = False
            self._mode.__exit__(None, None, None)

    def give_up(self) -> None:
        """The program is about to compile a function, within or between the passes."""
        self.flops, self.reason = None, COMPILED
        self._exit()

    def stop(self) -> None:
        """Count nothing any longer, wherever the program is."""
        state.counting, compiled.on_use, self.flops = None, None, None
        self.reason = INTERRUPTED
        self._depth = 0
        self._exit()


def has_products(loss: Any) -> bool:
    """Whether the graph of `loss`, a tensor or several, has one of PRODUCTS; also where the graph is too large to be searched."""
    losses = loss if isinstance(loss, (tuple, list)) else [loss]
    nodes = [node for one in losses if (node := getattr(one, "grad_fn", None)) is not None]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if node.name().lower().startswith(tuple(f"{name}backward" for name in PRODUCTS)) or len(seen) > MOST_NODES:
            return True
        following = {after for after, _ in node.next_functions if after is not None} - seen
        seen |= following
        nodes.extend(following)
    return False


class Arithmetic:
    """Counts one whole step, as soon as the program runs evenly. `per_sample`: FLOPs of a sample; `reason`: why
    there is no figure."""

    def __init__(self) -> None:
        self.per_sample: float | None = None
        self.facts: dict[str, float] = {}
        """Facts of the run: FLOPs of a sample, the share of convolutions in them, and the FLOPs without the masked half of causal attention."""
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
            switch.undo_part["arithmetic"] = self._count.stop
            return True
        count, self._count, state.counting, compiled.on_use = self._count, None, None, None
        self.done = True
        if count.flops and last_samples:
            self.per_sample = count.flops / last_samples
            self.facts |= {"flops_per_sample": self.per_sample, "convolution_flops_ratio": count.convolved / count.flops}
            if count.masked:
                self.facts["causal_flops_per_sample"] = (count.flops - count.masked) / last_samples
        else:
            self.reason = count.reason
        return False


def is_compiled() -> bool:
    """Whether torch.compile has compiled anything in this process, or will do so in a later pass."""
    return has_compiled() or structure(watch).compiles


def evaluated() -> bool:
    """Whether the step under way holds passes of an evaluation."""
    return EVAL in recorder.codes or not WITHOUT_GRADIENTS.isdisjoint(recorder.codes)


def has_compiled() -> bool:
    """Whether torch.compile was used in this process. What it compiles as one graph (`fullgraph`) it does not count as a frame."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return compiled.used or (dynamo is not None and bool(dynamo.counters["frames"]["total"] or dynamo.counters["stats"]["unique_graphs"]))


@unseen
def memory_parts() -> Signals:
    """Bytes of parameters, gradients and optimizer states, as signals. On CUDA the rest of the allocator's peak counts as activations."""
    import torch

    roots = watch.alive(watch.roots)
    tensors = tensors_of_program(roots)
    parts = {
        "memory.parameters_bytes": tensors.parameters,
        "memory.gradients_bytes": tensors.gradients,
        "memory.optimizer_bytes": tensors.optimizer,
    }
    groups = (group["params"] for optimizer in watch.alive(watch.optimizers) for group in optimizer.param_groups)
    device = next((p.device for parameters in (*map(parameters_of, roots), *groups) for p in parameters), None)
    if device is not None and device.type == "cuda":
        peak = float(torch.cuda.max_memory_allocated(device))
        parts["memory.activations_bytes"] = max(0.0, peak - sum(parts.values()))
        parts["memory.allocated_peak_bytes"] = peak
        parts["memory.reserved_peak_bytes"] = float(torch.cuda.max_memory_reserved(device))
        parts["memory.limit_bytes"] = float(torch.cuda.get_device_properties(device).total_memory)
    source = "the tensors of the program, and torch's allocator; activations are the rest of the allocator's peak"
    return {name: Signal(value, "B", source) for name, value in parts.items() if value}


# --- copies from the host to the GPU, and waits of the host for it ------------------------------------------

STEPS = 3
"""Steps in which copies and waits are counted. In all other steps the methods of the class are torch's own."""
COPIES = ("to", "cuda")
WAITS = ("item", "tolist", "cpu", "nonzero", "__bool__", "__int__", "__float__", "__index__")
"""Methods of a tensor on a GPU that wait until the GPU has computed its values. `to` waits where it copies to the host."""


def why_unpatched() -> str:
    """Why methods of torch.Tensor must not be replaced in this program, not even for a few steps; empty where they may.

    A subclass with a `__torch_function__` of its own gets the method that it must handle from the attribute of torch.Tensor, and compares it with the
    one that it has seen at its import: quantized weights and annotated images would lose their meaning. And torch's warnings of synchronisations
    name the frame that calls the method.
    """
    import torch

    if torch.cuda.is_initialized() and getattr(torch._C, "_cuda_get_sync_debug_mode", lambda: 0)():
        return "the program asks torch for warnings of synchronisations"
    torchs_own = (getattr(torch.Tensor.__torch_function__, "__func__", None), torch._C._disabled_torch_function_impl)
    waiting = list[Any](torch.Tensor.__subclasses__())
    while waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        function = cls.__torch_function__
        if getattr(function, "__func__", function) not in torchs_own and cls.__module__.partition(".")[0] != "torch":
            return f"{cls.__module__}.{cls.__qualname__} handles the methods of torch.Tensor in its own way"
    return ""


class CopyCount:
    """Counts from now on, until `over`. `torch.Tensor` inherits the methods, so that its own attributes can be taken away again. Make one only where
    `why_unpatched` is empty."""

    def __init__(self) -> None:
        import torch

        self.pageable = self.pinned = 0
        self.bytes = 0.0
        """Of the copies from pageable memory."""
        self.waits = 0
        self.wait_s: dict[str, float] = {}
        """Seconds of the host in calls that wait for the GPU, by line of the program."""
        self._first = recorder.index
        self._inside = False
        self._class: Any = torch.Tensor
        self._plain_types = (torch.Tensor, torch.nn.Parameter)
        self._set: dict[tuple[Any, str], Any] = {}
        self._plain_synchronize = torch.cuda.synchronize
        for name in (*COPIES, *WAITS):
            if name not in self._class.__dict__ and hasattr(self._class, name):
                self._set[self._class, name] = self._counted(name, getattr(self._class, name))
        for (target, name), method in self._set.items():
            setattr(target, name, method)
        self._synchronize = torch.cuda.synchronize = self._counted_synchronize(torch.cuda.synchronize)
        switch.undo.append(self.stop)
        switch.undo_part["copies"] = self.stop

    @wrappers_without_level
    def _counted(self, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        copies, waits = name in COPIES, name in WAITS

        def method(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if tracing.is_compiling() or self._inside or type(tensor) not in self._plain_types:
                return plain(tensor, *args, **kwargs)
            begun, self._inside = now(), True
            try:
                result = plain(tensor, *args, **kwargs)
            finally:
                self._inside = False
            self._note(tensor, result, copies, waits, now() - begun)
            return result

        return functools.update_wrapper(method, plain)

    @wrappers_without_level
    def _counted_synchronize(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def synchronize(*args: Any, **kwargs: Any) -> Any:
            if tracing.is_compiling():
                return plain(*args, **kwargs)
            begun = now()
            plain(*args, **kwargs)
            self._note_wait(now() - begun)

        return functools.update_wrapper(synchronize, plain)

    @entry("copies.note")
    def _note(self, tensor: Any, result: Any, copies: bool, waits: bool, seconds: float) -> None:
        """A method of `tensor` has returned. Copies and waits of an evaluation are not those of a step."""
        if tracing.capturing() or evaluated():
            return
        if copies:
            self._note_copy(tensor, result)
        if tensor.is_cuda and (waits or not result.is_cuda):
            self._note_wait(seconds)

    def _note_copy(self, tensor: Any, copy: Any) -> None:
        """A method has made `copy` of `tensor`."""
        if copy.device.type != "cuda" or tensor.device.type != "cpu":
            return
        if tensor.is_pinned():
            self.pinned += 1
        else:
            self.pageable += 1
            self.bytes += tensor.numel() * tensor.element_size()

    @entry("copies.wait")
    def _note_wait(self, seconds: float) -> None:
        """A call of the training thread has waited for the GPU."""
        if recorder.thread != get_ident() or recorder.stack[-1] == OWN or evaluated():
            return
        frame = program_frame(sys._getframe(1))
        place = place_name(frame.f_code.co_filename, frame.f_lineno) if frame is not None else ""
        self.waits += 1
        self.wait_s[place] = self.wait_s.get(place, 0.0) + seconds

    def over(self) -> bool:
        """Whether the steps are over. Call it after each step."""
        if recorder.index - self._first < STEPS:
            return False
        self.stop()
        return True

    def stop(self) -> None:
        for (target, name), method in self._set.items():
            if target.__dict__.get(name) is method:
                delattr(target, name)
        self._set = {}
        if sys.modules["torch"].cuda.synchronize is self._synchronize:  # the program may have put another function in its place
            sys.modules["torch"].cuda.synchronize = self._plain_synchronize

    def signals(self) -> Signals:
        copies = f"calls of Tensor.to and Tensor.cuda in {STEPS} steps, {self.pinned} of them from page-locked memory"
        place = max(self.wait_s, key=self.wait_s.__getitem__, default="")
        waits = f"calls that wait for the GPU in {STEPS} steps (Tensor.item and the like)" + (f", most of it at {place}" if place else "")
        return {
            "h2d.pageable_copies": Signal(self.pageable / STEPS, "", f"{copies}; copies a step from pageable memory"),
            "h2d.pageable_bytes": Signal(self.bytes / STEPS, "B", f"{copies}; bytes a step from pageable memory"),
            "sync.calls": Signal(self.waits / STEPS, "", f"{waits}; calls a step"),
            "sync.wait_s": Signal(sum(self.wait_s.values()) / STEPS, "s", f"{waits}; seconds of the host a step"),
        }
