"""Live changes of how the model computes: precision, torch.compile, memory layout, and cuDNN's choice of algorithms."""

from __future__ import annotations

import gc
import logging
import sys
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...caches import NotPrivate, PrivateCaches
from ...counters import compile_counters
from ...protocol import Value
from .. import graphs
from ..guard import from_outside, switch, unseen
from ..structure import parameters_of, structure
from .change import CHANGES_NUMERICS, SAME_SAMPLES, Change, Refused, TriedChange, on_this_device, require_room, why_bound

if TYPE_CHECKING:
    from ..watch import Watch

COMPILE_STEPS = 2
"""Steps after which torch.compile has compiled forward and backward, and what follows from a second shape."""
IDLE_S = 60.0
"""What was compiled is kept for this time: a trial needs it again within seconds."""
COMPILED_BYTES = 0.3e9
"""The room that kernels, and the measurements of their variants, are to have: a guess."""
BACKWARD_AT_ONCE = "force_non_lazy_backward_lowering"
"""The setting of `torch._functorch.config` by which torch compiles the backward pass together with the forward pass, and not within it."""
WITH_GRAPHS = ("reduce-overhead", "max-autotune")
"""Modes of torch.compile that replay CUDA graphs."""
COMPILED_NOTHING = "the change had no effect in this program: torch.compile compiled nothing"
LOST_GRADIENTS = "each pass writes its gradients to the same memory, so that those of the pass before are lost"
HALF = ("torch.bfloat16", "torch.float16")


def _roots(watch: Watch) -> list[Any]:
    return [root for ref in watch.roots if (root := ref()) is not None]


def device_of(watch: Watch) -> str:
    """`cpu` or `cuda`, where the parameters of the model are."""
    for root in _roots(watch):
        parameter = next(parameters_of(root), None)
        if parameter is not None:
            return str(parameter.device.type)
    return ""


class MatmulPrecision:
    """TF32 for matrix products in fp32. torch 2.9 has a second interface for it, and each raises where the program has used the other."""

    @staticmethod
    def is_tf32() -> bool:
        """Torch 2.9 warns where the former interface is read, and has a second one."""
        import torch

        present = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
        return bool(torch.get_float32_matmul_precision() != "highest") if present is None else str(present) == "tf32"

    @staticmethod
    def set_tf32(on: bool) -> Callable[[], None]:
        """Switch it on or off by the interface that the program uses. Returns what puts it back."""
        import torch

        try:
            before = torch.get_float32_matmul_precision()
        except RuntimeError:
            matmul = torch.backends.cuda.matmul
            former = matmul.fp32_precision
            matmul.fp32_precision = "tf32" if on else "ieee"
            return lambda: setattr(matmul, "fp32_precision", former)
        torch.set_float32_matmul_precision("high" if on else "highest")
        return lambda: torch.set_float32_matmul_precision(before)


def convolutions_in_tf32() -> bool:
    """Whether cuDNN may use TF32 for convolutions in fp32: torch's default."""
    import torch

    convolutions = getattr(torch.backends.cudnn, "conv", None)  # torch 2.9, as above
    return bool(torch.backends.cudnn.allow_tf32) if convolutions is None else str(convolutions.fp32_precision) == "tf32"


def _of_passes(watch: Watch) -> str:
    """`bf16` or `fp16` where the passes compute in it: by the counted step, or by autocast around them."""
    counted = watch.counted_precision if watch.counted_precision in ("bf16", "fp16") else ""
    return counted or watch.autocast


class Precision(TriedChange):
    """bf16: autocast around the call of the model, with outputs in fp32, as accelerate does it. tf32: for matrix products."""

    knob, effect = "precision", CHANGES_NUMERICS

    def __init__(self) -> None:
        self._value = ""
        self._put_back: Callable[[], None] | None = None
        self._watch: Watch | None = None
        """Of the change to bf16."""
        self._begins = self._under_way = False
        """The first step with bf16 shows whether its outputs can be fp32."""
        self._stays_half = ""
        """Why bf16 is not possible: the class of an output."""

    def read(self, watch: Watch) -> Value | None:
        import torch

        if self._value:
            return self._value
        if found := _of_passes(watch):
            return found
        parameter = next((weight for root in _roots(watch) for weight in parameters_of(root)), None)
        if parameter is not None and str(parameter.dtype) in HALF:
            return "bf16" if parameter.dtype is torch.bfloat16 else "fp16"
        if parameter is not None and parameter.dtype is torch.float64:
            return "fp64"
        return "tf32" if device_of(watch) == "cuda" and MatmulPrecision.is_tf32() else "fp32"

    def why_fixed(self, watch: Watch) -> str:
        if not _roots(watch):
            return "no call of a model was seen"
        if reason := why_bound():
            return reason
        if watch.autocast and not self._value:
            return "the program calls its model inside autocast: the precision is set there"
        if (found := _of_passes(watch)) and not self._value:
            return f"the passes of the model compute in {found}: the precision is set within the model"
        if (bits := 8 * next(weight for root in _roots(watch) for weight in parameters_of(root)).dtype.itemsize) != 32:
            return f"the weights of the model are in {bits} bits: the precision was chosen when the model was made"
        return ""

    @unseen
    def set(self, watch: Watch, value: Value) -> None:
        if reason := self.why_fixed(watch):
            raise Refused(reason)
        before = self.read(watch)
        if value == "fp16":
            raise Refused("fp16 needs a GradScaler in the program; bf16 does not")
        if value == "tf32" and device_of(watch) != "cuda":
            raise Refused("only a GPU has TF32")
        if value == "bf16" and self._stays_half:
            raise Refused(self._stays_half)
        if value == before:
            return
        if value == "bf16":  # autocast keeps a copy of each weight in 16 bits during a pass
            weights = structure(watch).parameters
            require_room(sum(2 * on_this_device(weight).numel() for weight in weights), weights[0].device, "copies of the weights in bf16")
        self._undo(watch)
        if value == "tf32":
            self._put_back = MatmulPrecision.set_tf32(True)
        elif value == "bf16":
            self._watch, watch.wrap_forward = watch, self.in_bf16
            self._begins = self._under_way = True
        elif before == "tf32" and MatmulPrecision.is_tf32():  # the program's own setting
            self._put_back = MatmulPrecision.set_tf32(False)
        self._value = str(value)

    def pending(self, watch: Watch) -> bool:
        """The first step with bf16 is under way."""
        first = super().pending(watch)
        begins, under_way = self._begins, self._under_way
        self._begins, self._under_way = False, begins
        if under_way and self._stays_half:
            raise Refused(self._stays_half)
        return begins or first

    def _undo(self, watch: Watch) -> None:
        if watch.wrap_forward == self.in_bf16:
            watch.wrap_forward = None
        if self._put_back is not None:
            self._put_back()
        self._value, self._put_back, self._watch = "", None, None

    def in_bf16(self, call: Any, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a model in autocast to bf16. Its outputs are fp32 again; with one that cannot be, the change ends."""
        import torch

        parameter = next(parameters_of(module), None)
        with torch.autocast(parameter.device.type if parameter is not None else "cpu", torch.bfloat16):
            output = call(*args, **kwargs)
        try:
            return in_fp32(output)
        except Exception as problem:  # a class of the program's own
            if from_outside(problem):
                raise
            self._stays_half = f"the output of the model is of the class {type(output).__name__}, whose tensors cannot be put back to fp32"
            if self._watch is not None:
                self._undo(self._watch)
            return output


def in_fp32(value: Any) -> Any:
    """`value` with all 16-bit tensors in fp32. Raises as `mapped`."""
    return mapped(value, lambda tensor: tensor.float() if str(tensor.dtype) in HALF else tensor)


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """`value` with `change` applied to each tensor. A mapping, and a list of the program's own class, are altered in place, and a tuple of such a class
    is made without a call of that class: each keeps its class. Raises where that fails."""
    import torch

    if isinstance(value, torch.Tensor):
        return change(value)
    if type(value) in (tuple, list):
        return type(value)(mapped(item, change) for item in value)
    if isinstance(value, list):
        for place, item in enumerate(value):
            value[place] = mapped(item, change)
    elif isinstance(value, tuple):
        parts = [mapped(item, change) for item in value]
        if hasattr(value, "n_sequence_fields"):  # what torch.max returns: it is made of one sequence only
            return type(value)(parts)
        made = tuple.__new__(type(value), parts)
        if hasattr(value, "__dict__"):
            made.__dict__.update(value.__dict__)
        return made
    elif isinstance(value, dict):
        for key in list(value):
            value[key] = mapped(value[key], change)
    return value


class TorchCompile(TriedChange):
    """torch.compile of the modules that the program calls, in place. Dropout draws other random numbers then."""

    knob, effect = "torch_compile", CHANGES_NUMERICS

    def __init__(self) -> None:
        self._compiled: dict[int, tuple[weakref.ref[Any], Any]] = {}
        self._mode = ""
        self._steps_left = 0
        self._settings: list[Callable[[], None]] = []
        """What puts settings of torch.compile back."""
        self._caches = PrivateCaches()
        self._graphs_before = 0.0
        self._works: set[str] = set()
        """The modes that have compiled something. A second change to one of them takes what was compiled before."""
        self._codes_before: set[int] | None = None
        """What torch.compile had compiled before the first change, by the identity of its code. None: nothing is left of a change."""
        self._off_since = 0.0

    def read(self, watch: Watch) -> Value | None:
        if self._mode:
            return self._mode
        return "default" if any(map(_is_compiled, _roots(watch))) else "off"

    def why_fixed(self, watch: Watch) -> str:
        roots = _roots(watch)
        if not roots:
            return "no call of a model was seen"
        if reason := why_bound():
            return reason
        if not self._mode and any(map(_is_compiled, roots)):
            return "the program compiles its model itself"
        if not all(hasattr(root, "_compiled_call_impl") and hasattr(root, "compile") for root in roots):
            return "this version of torch has no Module.compile"
        return ""

    @unseen
    def set(self, watch: Watch, value: Value) -> None:
        if reason := self.why_fixed(watch):
            raise Refused(reason)
        if value == self.read(watch):
            return
        if value in WITH_GRAPHS and watch.most_micro_batches > 1 and device_of(watch) == "cuda":
            raise Refused(
                f"{value} uses CUDA graphs, and the program adds up gradients over {watch.most_micro_batches} passes: {LOST_GRADIENTS}"
            )
        if value != "off":
            _require_room_to_compile(watch, str(value))
            try:
                self._caches.begin(watch.compiled_folder)
            except NotPrivate as problem:
                raise Refused(str(problem)) from None
        import torch._dynamo

        for ref, before in self._compiled.values():
            root = ref()
            if root is not None:
                root._compiled_call_impl = before
        self._compiled.clear()
        while self._settings:
            self._settings.pop()()
        self._mode = ""
        if value == "off":
            self._off_since = time.monotonic()
            self._caches.end()
            return
        if self._codes_before is None:
            self._codes_before = {id(code) for code in _compiled_codes()}
            switch.undo.append(lambda: self.tidy(0.0))
        self._settings.append(_set(torch._dynamo.config, "suppress_errors"))  # what cannot be compiled runs as before
        self._settings.append(_without_words())
        if hasattr(torch._functorch.config, BACKWARD_AT_ONCE):  # else an error of the backward pass would reach the program
            self._settings.append(_set(torch._functorch.config, BACKWARD_AT_ONCE))
        self._graphs_before = compile_counters()["compile.graphs"]
        for root in _roots(watch):
            self._compiled[id(root)] = weakref.ref(root), root._compiled_call_impl
            compile_in_place(root, str(value))
            if value in WITH_GRAPHS:
                root._compiled_call_impl = _with_own_outputs(root._compiled_call_impl)
        self._mode, self._steps_left = str(value), COMPILE_STEPS + 1

    def pending(self, watch: Watch) -> bool:
        """The next steps compile. Raises Refused where they have compiled nothing: a trial would compare two equal sides."""
        super().pending(watch)
        self._steps_left = max(0, self._steps_left - 1)
        if not self._mode or self._steps_left:
            return bool(self._mode)
        if self._mode not in self._works and compile_counters()["compile.graphs"] <= self._graphs_before:
            raise Refused(COMPILED_NOTHING)
        self._works.add(self._mode)
        return False

    def tidy(self, after_s: float = IDLE_S) -> None:
        """Once no side of a trial has been compiled for this time: free what the changes have compiled, and the memory that their CUDA graphs keep. What
        the program itself has compiled stays. Where the program has compiled something, the graphs of the changes stay too: torch keeps all graphs together."""
        before = self._codes_before
        if self._mode or before is None or time.monotonic() - self._off_since < after_s:
            return
        self._codes_before = None
        self._works.clear()
        import torch._dynamo

        reset_code: Any = torch._C._dynamo.eval_frame.reset_code
        for code in _compiled_codes():
            if id(code) not in before:
                reset_code(code)
        trees = sys.modules.get("torch._inductor.cudagraph_trees")
        if not before and torch.cuda.is_initialized():
            if trees is not None:
                trees.reset_cudagraph_trees()
            gc.collect()
            torch.cuda.empty_cache()


def _compiled_codes() -> list[Any]:
    """The code that torch.compile has compiled in this process, and that it has made for it."""
    import torch._dynamo

    frames: Any = torch._dynamo.convert_frame
    return [code for tracker in (frames.input_codes, frames.output_codes) for ref in tracker.seen if (code := ref()) is not None]


def _set(config: Any, name: str) -> Callable[[], None]:
    """Switch a setting of torch on. Returns what puts it back."""
    before = getattr(config, name)
    setattr(config, name, True)
    return lambda: setattr(config, name, before)


def _is_not_about_us(record: logging.LogRecord) -> bool:
    """Whether a record of torch's log is not about a function that could not be compiled for our change: the program did not ask for that."""
    return not str(record.msg).startswith("WON'T CONVERT")


def _without_words() -> Callable[[], None]:
    """Keep those records from the program's output. Returns what lets them pass again."""
    log = logging.getLogger("torch._dynamo.convert_frame")
    log.addFilter(_is_not_about_us)
    return lambda: log.removeFilter(_is_not_about_us)


def _require_room_to_compile(watch: Watch, mode: str) -> None:
    """Raises Refused where the GPU has no room for what compiling takes: CUDA graphs keep the memory of a whole pass in a pool of their own."""
    if device_of(watch) != "cuda":
        return
    import torch

    device = structure(watch).parameters[0].device
    allocated = torch.cuda.memory_stats_as_nested_dict(device)["allocated_bytes"]["all"]
    graphs = allocated["peak"] - allocated["current"] if mode in WITH_GRAPHS else 0
    require_room(COMPILED_BYTES + graphs, device, "CUDA graphs" if graphs else "compiled kernels")


def _with_own_outputs(call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, which replays CUDA graphs, with outputs in memory of their own: the program may keep an output until after the next replay, which writes
    to the memory of the former one. An output of a class of the program's own that cannot be copied stays as it is."""

    def compiled(*args: Any, **kwargs: Any) -> Any:
        output = call(*args, **kwargs)
        try:
            return mapped(output, lambda tensor: tensor.clone())
        except Exception as problem:
            if from_outside(problem):
                raise
            return output

    return compiled


def compile_in_place(root: Any, mode: str) -> None:
    root.compile(mode=None if mode == "default" else mode)


def _is_compiled(root: Any) -> bool:
    return type(root).__name__ == "OptimizedModule" or getattr(root, "_compiled_call_impl", None) is not None


class ChannelsLast(Change):
    """NHWC layout of the convolutions' weights. Never changed here: the strides of a weight would differ, and `weight.view(-1)` of the program would fail."""

    knob, effect = "channels_last", SAME_SAMPLES

    def read(self, watch: Watch) -> Value | None:
        weights = _weights_of_convolutions(watch)
        return None if not weights else all(map(_is_channels_last, weights))

    def why_fixed(self, watch: Watch) -> str:
        return (
            "the weights would have other strides, and code such as weight.view(-1) would fail: model.to(memory_format=torch.channels_last)"
        )

    def set(self, watch: Watch, value: Value) -> None:
        raise Refused(self.why_fixed(watch))


def _weights_of_convolutions(watch: Watch) -> list[Any]:
    """The weights whose layout matters: 1x1 convolutions with one channel are the same in both layouts."""
    return [weight for weight in structure(watch).images if weight.shape[1] > 1 and weight.shape[2] * weight.shape[3] > 1]


def _is_channels_last(weight: Any) -> bool:
    import torch

    return bool(weight.is_contiguous(memory_format=torch.channels_last))


class CudnnBenchmark(TriedChange):
    """cuDNN times its algorithms for each new shape and takes the fastest. Another algorithm may round in another way."""

    knob, effect = "cudnn_benchmark", SAME_SAMPLES

    def read(self, watch: Watch) -> Value | None:
        torch = sys.modules.get("torch")
        if torch is None or not _weights_of_convolutions(watch):
            return None
        return bool(torch.backends.cudnn.benchmark)

    def why_fixed(self, watch: Watch) -> str:
        if device_of(watch) != "cuda":
            return "no GPU: cuDNN is not used"
        import torch

        return "the program asks for deterministic algorithms" if torch.backends.cudnn.deterministic else graphs.why_fixed()

    @unseen
    def set(self, watch: Watch, value: Value) -> None:
        import torch

        if reason := self.why_fixed(watch):
            raise Refused(reason)
        torch.backends.cudnn.benchmark = bool(value)
