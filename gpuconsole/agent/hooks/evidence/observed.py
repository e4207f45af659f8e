"""What is observed in a job without an experiment: the memory of its parts, the copies from the
host to the GPU and the waits of the host for it in a few steps."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from ...clock import now
from ...loop import Signals
from ...protocol import CodePlace, Signal
from .. import graphs, tracing
from ..guard import entry, switch, unseen, wrappers_without_level
from ..memory import OwnerCounts, counted, emptied, tensors_of_program
from ..recorder import EVAL, OWN, WITHOUT_GRADIENTS, get_ident
from ..structure import parameters_of
from ..watch import place_name, program_frame, recorder, watch

# --- memory of the parts --------------------------------------------------------------------------


@unseen
def memory_parts() -> Signals:
    """Bytes of parameters, gradients and optimizer states, as signals. On CUDA the rest of the
    allocator's peak counts as activations."""
    roots = watch.alive(watch.roots)
    tensors = tensors_of_program(roots)
    parts = {
        "memory.parameters_bytes": tensors.parameters,
        "memory.gradients_bytes": tensors.gradients,
        "memory.optimizer_bytes": tensors.optimizer,
    }
    groups = (
        group["params"]
        for optimizer in watch.alive(watch.optimizers)
        for group in optimizer.param_groups
    )
    device = next(
        (p.device for parameters in (*map(parameters_of, roots), *groups) for p in parameters), None
    )
    source = "the tensors of the program"
    signals = {name: Signal(value, "B", source) for name, value in parts.items() if value}
    return (
        signals
        if device is None or device.type != "cuda"
        else signals | peaks(figures := counted(device.index), sum(parts.values())) | state(figures)
    )


def peaks(figures: OwnerCounts, states: float) -> Signals:
    """Return signals of the memory: the peaks of torch's allocator since the start of the program.
    `states`: the bytes of parameters, gradients and optimizer states. The rest of the peak counts
    as activations."""
    values = {
        "memory.activations_bytes": max(0.0, figures.peak - states),
        "memory.allocated_peak_bytes": figures.peak,
        "memory.reserved_peak_bytes": figures.reserved_peak,
    }
    source = (
        "torch's allocator, the peaks of the run (since the program reset them, if it does);"
        " activations are what is neither parameter nor gradient nor optimizer state"
    )
    return {name: Signal(value, "B", source) for name, value in values.items()}


def state(figures: OwnerCounts) -> Signals:
    """Return signals of the memory that hold whoever made its peaks: the free parts of the segments
    in use, the retries of torch's allocator, the size of the GPU's memory and what other processes
    hold of it."""
    values = {
        "memory.inactive_split_bytes": figures.split,
        "memory.limit_bytes": figures.total,
        "memory.others_bytes": figures.others,
    }
    source = "torch's allocator and the driver"
    signals = {name: Signal(value, "B", source) for name, value in values.items()}
    signals["memory.alloc_retries"] = Signal(figures.retries, "", "torch's allocator")
    if figures.was_reset:
        signals["memory.peaks_reset"] = Signal(1.0, "", "1: the program has reset the peaks")
    if graphs.are_there():
        source = "1: CUDA graphs exist; the free parts of their pools are for their replays"
        signals["memory.graph_pools"] = Signal(1.0, "", source)
    return signals


# --- copies from the host to the GPU, and waits of the host for it --------------------------------

STEPS = 3
"""Steps in which copies and waits are counted. In all other steps the methods of the class are
torch's own."""
COPIES = ("to", "cuda", "copy_")
WAITS = ("item", "tolist", "cpu", "nonzero", "__bool__", "__int__", "__float__", "__index__")
"""Methods of a tensor on a GPU that wait until the GPU has computed its values. `to` waits where it
copies to the host."""


WAITING_OPERATORS = frozenset(
    (
        "_local_scalar_dense",
        "nonzero",
        "masked_select",
        "_unique2",
        "unique_dim",
        "unique_consecutive",
        "bincount",
        "equal",
        "index",
        "_to_copy",
        "copy_",
        "lift_fresh",
    )
)
"""Operators of torch that may wait for the GPU, by name: the sizes of their results, or their
results, are values."""
AFTER_A_COPY = "lift_fresh"
"""The operator that ends `torch.tensor(number, device="cuda")`. The copy before this operator waits
for the GPU, and no dispatch mode sees the copy."""


def operator_waits(name: str, args: Any, kwargs: Any, out: Any) -> bool:
    """Whether a call of one of WAITING_OPERATORS has waited for the GPU: for numbers that it reads,
    for a mask, or for a copy from or to the host."""
    if name in ("_to_copy", "copy_"):
        target, source = (out, args[0]) if name == "_to_copy" else args[:2]
        ahead = kwargs.get("non_blocking", False) or (name == "copy_" and len(args) > 2 and args[2])
        return bool(
            source.is_cuda != target.is_cuda
            and not ahead
            and "meta" not in (source.device.type, target.device.type)
        )
    if name == "index" and not any(
        str(getattr(index, "dtype", "")) in ("torch.bool", "torch.uint8") for index in args[1]
    ):
        return False
    return bool(args[0].is_cuda)


class Waits:
    """Calls that wait for the GPU: how many, and seconds of the host by line of the program."""

    def __init__(self) -> None:
        self.calls = 0
        self.seconds: dict[str, float] = {}

    def note(self, seconds: float, frame: FrameType) -> None:
        """Add a call that has waited. `frame`: the frame of its caller."""
        program = program_frame(frame)
        place = (
            place_name(program.f_code.co_filename, program.f_lineno) if program is not None else ""
        )
        self.calls += 1
        self.seconds[place] = self.seconds.get(place, 0.0) + seconds

    def total_s(self) -> float:
        """Return the seconds in all calls."""
        return sum(self.seconds.values())

    def where(self) -> CodePlace | None:
        """Return the program's line that takes most of the seconds; None if no line is known."""
        place = max(self.seconds, key=self.seconds.__getitem__, default="")
        return CodePlace(place) if place else None

    def signals(self, steps: int, source: str) -> Signals:
        """Return the calls and the seconds of a step as signals. `steps`: the steps that were
        watched. `source`: their description."""
        return {
            "sync.calls": Signal(self.calls / steps, "", f"{source}; calls a step"),
            "sync.wait_s": Signal(
                self.total_s() / steps, "s", f"{source}; seconds of the host a step", self.where()
            ),
        }


def evaluated() -> bool:
    """Whether the step under way holds passes of an evaluation."""
    return EVAL in recorder.codes or not WITHOUT_GRADIENTS.isdisjoint(recorder.codes)


def why_unpatched() -> str:
    """Why methods of torch.Tensor must not be replaced in this program, not even for a few steps;
    empty where they may.

    A subclass with a `__torch_function__` of its own gets the method that it must handle from the
    attribute of torch.Tensor, and compares it with the one that it has seen at its import:
    quantized weights and annotated images would lose their meaning. And torch's warnings of
    synchronisations name the frame that calls the method.
    """
    import torch

    if torch.cuda.is_initialized() and getattr(torch._C, "_cuda_get_sync_debug_mode", lambda: 0)():
        return "the program asks torch for warnings of synchronisations"
    torchs_own = (
        getattr(torch.Tensor.__torch_function__, "__func__", None),
        torch._C._disabled_torch_function_impl,
    )
    waiting = list[Any](torch.Tensor.__subclasses__())
    while waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        function = cls.__torch_function__
        if (
            getattr(function, "__func__", function) not in torchs_own
            and cls.__module__.partition(".")[0] != "torch"
        ):
            return (
                f"{cls.__module__}.{cls.__qualname__} handles the methods of torch.Tensor in its"
                " own way"
            )
    return ""


class CopyCount:
    """Counts from now on, until `over`. `in_passes`: the waits of all operators in the passes of
    the step before. `torch.Tensor` inherits the methods, so that its own attributes can be taken
    away again. Make one only where `why_unpatched` is empty."""

    def __init__(self, in_passes: Waits) -> None:
        import torch

        self._in_passes = in_passes
        self.pageable = self.pinned = 0
        self.bytes = self.pinned_bytes = 0.0
        """Of the copies from pageable and from page-locked memory."""
        self.waits, self.emptied = Waits(), Waits()
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
        emptied.note = self._note_emptied
        self._synchronize = torch.cuda.synchronize = self._counted_synchronize(
            torch.cuda.synchronize
        )
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
            seconds = now() - begun
            if name == "copy_":
                self._note_filled(tensor, args, kwargs, seconds)
            else:
                self._note(tensor, result, copies, waits, seconds)
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
        """A method of `tensor` has returned. Copies and waits of an evaluation are not those of a
        step."""
        if tracing.capturing() or evaluated():
            return
        if copies:
            self._note_copy(tensor, result)
        if tensor.is_cuda and (waits or not result.is_cuda):
            self._note_wait(seconds)

    @entry("copies.filled")
    def _note_filled(self, target: Any, args: Any, kwargs: Any, seconds: float) -> None:
        """Handle the return of `target.copy_(source, non_blocking)`. The copy is like that of
        `Tensor.to`, but into memory that exists already."""
        source = args[0] if args else next(iter(kwargs.values()))
        ahead = kwargs.get("non_blocking", False) or args[1:2] == (True,)
        if not tracing.capturing() and not evaluated() and type(source) in self._plain_types:
            self._note_copy(source, target)
            if source.is_cuda and not target.is_cuda and not ahead:
                self._note_wait(seconds)

    def _note_copy(self, tensor: Any, copy: Any) -> None:
        """A method has made `copy` of `tensor`."""
        if copy.device.type != "cuda" or tensor.device.type != "cpu":
            return
        if tensor.is_pinned():
            self.pinned += 1
            self.pinned_bytes += tensor.numel() * tensor.element_size()
        else:
            self.pageable += 1
            self.bytes += tensor.numel() * tensor.element_size()

    @entry("copies.wait")
    def _note_wait(self, seconds: float) -> None:
        """A call of the training thread has waited for the GPU."""
        if recorder.thread != get_ident() or recorder.stack[-1] == OWN or evaluated():
            return
        self.waits.note(seconds, sys._getframe(1))

    def _note_emptied(self, seconds: float) -> None:
        """The program has emptied the cache of the allocator."""
        if recorder.thread == get_ident() and recorder.stack[-1] != OWN and not evaluated():
            self.emptied.note(seconds, sys._getframe(1))

    def over(self) -> bool:
        """Whether the steps are over. Call it after each step."""
        if recorder.index - self._first < STEPS:
            return False
        self.stop()
        return True

    def stop(self) -> None:
        emptied.note = None
        for (target, name), method in self._set.items():
            if target.__dict__.get(name) is method:
                delattr(target, name)
        self._set = {}
        # the program may have put another function in its place
        if sys.modules["torch"].cuda.synchronize is self._synchronize:
            sys.modules["torch"].cuda.synchronize = self._plain_synchronize

    def signals(self) -> Signals:
        copies = (
            f"calls of Tensor.to, Tensor.cuda and Tensor.copy_ in {STEPS} steps, {self.pinned} of"
            " them from page-locked memory"
        )
        cache = f"calls of torch.cuda.empty_cache in {STEPS} steps{self.emptied.where()}"
        waits = self.waits.signals(
            STEPS, f"calls that wait for the GPU in {STEPS} steps (Tensor.item and the like)"
        )
        if self._in_passes.calls > self.waits.calls / STEPS:
            waits = self._in_passes.signals(
                1, "operators that wait for the GPU in the passes of one step"
            )
        return {
            "h2d.pageable_copies": Signal(
                self.pageable / STEPS, "", f"{copies}; copies a step from pageable memory"
            ),
            "h2d.pageable_bytes": Signal(
                self.bytes / STEPS, "B", f"{copies}; bytes a step from pageable memory"
            ),
            "h2d.pinned_bytes": Signal(
                self.pinned_bytes / STEPS, "B", f"{copies}; bytes a step from page-locked memory"
            ),
            **waits,
            "cache.emptied_calls": Signal(self.emptied.calls / STEPS, "", f"{cache}; calls a step"),
            "cache.emptied_s": Signal(
                self.emptied.total_s() / STEPS,
                "s",
                f"{cache}; seconds of the host a step",
                self.emptied.where(),
            ),
        }
