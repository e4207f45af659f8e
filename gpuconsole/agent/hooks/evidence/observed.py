"""What is observed in a job without an experiment: FLOPs of one step, the memory of its parts, the copies from the host to the GPU and the waits of
the host for it in a few steps, and whether the processes that load data compute or wait.

A dispatch mode counts FLOPs in the passes of one step by torch's own formulas (torch.utils.flop_counter). It calls each operator as it is:
the program's code runs once, as ever. A model under torch.compile is not counted: torch would run it uncompiled in that step, with other
rounding.

Of the loader only /proc and the clocks are read. The probe of a loader of ours (`workloads/training/probes/loader.py`) measures another
thing: the rate of a second loader that runs alone. A dataset of a user is never opened a second time.
"""

from __future__ import annotations

import functools
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

from ...clock import ThreadTimes, now, process_cpu_s
from ...loop import Signals
from ...protocol import Signal
from .. import tracing
from ..changes.loader import worker_pids
from ..guard import entry, switch, wrappers_without_level
from ..memory import tensors_of_program
from ..passes import state
from ..recorder import NO_GRAD, OWN, get_ident
from ..watch import program_frame, recorder, watch

# --- FLOPs and memory ----------------------------------------------------------------------------------------

COMPILED = "the model is compiled: torch would run it uncompiled while its operators are counted"


class StepCount:
    """Counts the FLOPs of the passes of one step. `flops`: forward and backward, recomputation included; None where a formula failed.

    `convolved`: those of convolutions. `masked`: those of attention that a causal mask leaves out; `flops` counts all scores.
    """

    def __init__(self) -> None:
        from torch.utils._python_dispatch import TorchDispatchMode
        from torch.utils.flop_counter import flop_registry

        count = self
        self.flops: float | None = 0.0
        self.convolved = self.masked = 0.0
        self.samples = 0
        self._depth = 0

        class Counts(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                out = func(*args, **(kwargs or {}))
                formula = flop_registry.get(func._overloadpacket)
                if formula is not None and count.flops is not None:
                    try:
                        count.note(func, formula(*args, **(kwargs or {}), out_val=out), args, kwargs or {})
                    except Exception:  # a formula that does not fit these arguments: the program must not see that
                        count.flops = None
                return out

        self._mode = Counts()

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

    @entry("arithmetic.enter")
    def enter(self) -> None:
        """A pass begins."""
        self._depth += 1
        if self._depth == 1:
            self._mode.__enter__()

    @entry("arithmetic.leave")
    def leave(self) -> None:
        """The pass ends."""
        self._depth -= 1
        if self._depth == 0:
            self._mode.__exit__(None, None, None)

    def stop(self) -> None:
        """Count nothing any longer, wherever the program is."""
        state.counting = None
        if self._depth > 0:
            self._depth = 0
            self._mode.__exit__(None, None, None)


class Arithmetic:
    """Counts one whole step, as soon as the program runs evenly. `per_sample`: FLOPs of a sample; `reason`: why there is no figure."""

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
        count, self._count, state.counting = self._count, None, None
        self.done = True
        if count.flops and last_samples:
            self.per_sample = count.flops / last_samples
            self.facts = {"flops_per_sample": self.per_sample, "convolution_flops_ratio": count.convolved / count.flops}
            if count.masked:
                self.facts["causal_flops_per_sample"] = (count.flops - count.masked) / last_samples
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

    roots = watch.alive(watch.roots)
    tensors = tensors_of_program(roots)
    parts = {
        "memory.parameters_bytes": tensors.parameters,
        "memory.gradients_bytes": tensors.gradients,
        "memory.optimizer_bytes": tensors.optimizer,
    }
    groups = (group["params"] for optimizer in watch.alive(watch.optimizers) for group in optimizer.param_groups)
    device = next((p.device for parameters in (*(root.parameters() for root in roots), *groups) for p in parameters), None)
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
        torch.cuda.synchronize = self._counted_synchronize(torch.cuda.synchronize)
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

        return method

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
        if tracing.capturing() or NO_GRAD in recorder.codes:
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
        if recorder.thread != get_ident() or recorder.stack[-1] == OWN or NO_GRAD in recorder.codes:
            return
        frame = program_frame(sys._getframe(1))
        place = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}" if frame is not None else ""
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
        if self._plain_synchronize is not None:
            sys.modules["torch"].cuda.synchronize = self._plain_synchronize
            self._plain_synchronize = None  # type: ignore[assignment]

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


# --- the processes that load data, and the starts of epochs --------------------------------------------------

SAMPLE_EVERY_S = 0.04
"""Seconds between two batches whose CPU time is read in the training thread: two readings take 2 to 80 µs."""


class Loading:
    """Totals since the start. `here_*`: the training thread within sampled `next()` calls; `workers_*`: the loader's processes.

    The totals are those of the loader with the most batches: an evaluation has a loader of its own.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """As in a process that has loaded nothing yet."""
        self.loader: weakref.ref[Any] | None = None
        self.count = 0
        """Batches of `loader`."""
        self._batches: dict[int, int] = {}
        """Batches of each loader; that of `loader` is out of date."""
        self._epochs: dict[int, tuple[int, float]] = {}
        """For each loader: epochs begun, and the seconds until each of them after the first had its first batch."""
        self.opened: dict[int, float] = {}
        """For each loader whose epoch has no batch yet: the seconds that its start has taken so far."""
        self._times: ThreadTimes | None = None
        self.due = 0.0
        """When the next batch is sampled."""
        self.began: tuple[float, float, float] | None = None
        self._here = [0.0, 0.0, 0.0]
        self._workers = [0.0, 0.0, 0.0]
        self._last: dict[int, tuple[float, float, float]] = {}
        self._last_read: dict[str, float] = {}

    def epoch_opened(self, loader: Any, seconds: float) -> None:
        """`iter(loader)` has taken so long."""
        key = id(loader)
        epochs, spent = self._epochs.get(key, (int(key in self._batches), 0.0))
        self._epochs[key] = epochs + 1, spent
        self.opened[key] = seconds

    def batch_begins(self, t: float) -> None:
        """The training thread asks for a batch at `t`, which is `due` or later."""
        if self._times is None:
            self._times = ThreadTimes()
        self.began = (t, *self._times.cpu_and_runq_s())

    def batch_ends(self, ref: weakref.ref[Any] | None, begun: float) -> None:
        """The training thread has its batch, or the epoch is over. `ref`: the loader, None where it is not known. `begun`: when it asked."""
        if ref is self.loader:
            self.count += 1
        elif not self._takes_over(ref):
            self._first_of_epoch(ref, begun)
            return
        if self.opened and self._first_of_epoch(ref, begun):
            return
        if self.began is not None and self._times is not None:
            t = now()
            self.due = t + SAMPLE_EVERY_S
            cpu, runq = self._times.cpu_and_runq_s()
            for i, gained in enumerate((t - self.began[0], cpu - self.began[1], runq - self.began[2])):
                self._here[i] += gained
            self.began = None

    def _takes_over(self, ref: weakref.ref[Any] | None) -> bool:
        """Whether another loader than the present one, which has a batch, has the most batches now. The totals then begin anew."""
        loader = ref() if ref is not None else None
        if ref is None or loader is None:  # the program has dropped it
            return False
        count = self._batches[id(loader)] = self._batches.get(id(loader), 0) + 1
        current = self.loader() if self.loader is not None else None
        if current is not None:
            self._batches[id(current)] = self.count
            if count <= self.count:
                return False
        self.loader, self.count = ref, count
        self._here, self._workers, self._last = [0.0, 0.0, 0.0], [0.0, 0.0, 0.0], {}
        return True

    def _first_of_epoch(self, ref: weakref.ref[Any] | None, begun: float) -> bool:
        """Whether this is the first batch of an epoch, which counts for the starts of epochs."""
        key = id(ref()) if ref is not None else 0
        opened = self.opened.pop(key, None)
        if opened is None:
            return False
        epochs, spent = self._epochs.get(key, (1, 0.0))
        if epochs > 1:
            self._epochs[key] = epochs, spent + opened + now() - begun
        return True

    def read(self) -> dict[str, float]:
        """The counters; empty before the first batch of a DataLoader, the last ones after the program has dropped its loader.

        Reads the loader's processes, which takes 5 µs each.
        """
        loader = self.loader() if self.loader is not None else None
        if loader is None:
            return self._last_read
        self._read_workers()
        epochs, restart_s = self._epochs.get(id(loader), (1, 0.0))
        counters = {"loader.restarts": float(max(0, epochs - 1)), "loader.restart_s": restart_s}
        for who, totals in (("here", self._here), ("workers", self._workers)):
            counters |= {f"loader.{who}_{name}": total for name, total in zip(("s", "cpu_s", "runq_s"), totals, strict=True)}
        self._last_read = counters
        return counters

    def _read_workers(self) -> None:
        t, present = now(), {}
        for pid in worker_pids(watch):
            try:
                present[pid] = (t, *process_cpu_s(pid))
            except (OSError, IndexError, ValueError):  # it has ended since
                continue
        for pid, reading in present.items():
            last = self._last.get(pid)
            if last is not None:
                for i in range(3):
                    self._workers[i] += reading[i] - last[i]
        self._last = present


loading = Loading()
