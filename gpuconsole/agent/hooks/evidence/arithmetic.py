"""FLOPs of one step: how many, in which number types, and how many of them a second time.

A dispatch mode counts them in the passes of one step by torch's own formulas (torch.utils.flop_counter). It calls each operator as it is: the program's code
runs once, as ever. A model under torch.compile is not counted: torch would run it uncompiled in that step, with other rounding.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from ...clock import now
from ...loop import Signals
from ..calls import compiled
from ..guard import entry, from_outside, switch
from ..modes import has_modes, modes
from ..passes import state
from ..structure import structure
from ..watch import watch
from .attention import Scores
from .observed import AFTER_A_COPY, WAITING_OPERATORS, Waits, operator_waits

MODES = "the program has a mode on that would see how its operators are counted"
COMPILED = "the model is compiled: torch would run it uncompiled while its operators are counted"
OTHER_ROUNDING = "the backward pass of torch.prod or torch.cumprod rounds in another way while operators are counted"
PRODUCTS = ("prod", "cumprod")
"""Operators whose backward pass takes another way where any dispatch mode is on: `isTensorSubclassLike` in torch/csrc/autograd/FunctionsManual.cpp."""
MOST_NODES = 100_000
"""Of the graph of a loss, which is searched for such operators."""
INTERRUPTED = "an exception of the program ended the step whose operators were counted"
NO_FORMULA = "no operator with a known formula ran in the passes that are seen"

# --- what an operator computes -------------------------------------------------------------------------------

TYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64", "int8": "int8"}
"""Number types of the operands by the name of torch's dtype. Those with 8 and 4 bits are `fp8` and `fp4`."""
NAMESPACES = ("aten", "prim", "prims", "c10d", "c10d_functional", "_c10d_functional", "_dtensor", "fsdp", "profiler", "symm_mem")
"""Operators of torch without products of their own, beside those in UNKNOWN. An operator of another library may multiply, and nobody knows how much."""
UNKNOWN = frozenset((
    "_int_mm", "_weight_int8pack_mm", "_weight_int4pack_mm", "_weight_int4pack_mm_for_cpu", "_cslt_sparse_mm", "_sparse_mm", "_sparse_addmm",
    "_cudnn_rnn", "_cudnn_rnn_backward", "mkldnn_rnn_layer", "mkldnn_rnn_layer_backward", "miopen_rnn", "_native_multi_head_attention",
    "_transformer_encoder_layer_fwd", "_convolution_double_backward",
))  # fmt: skip
"""Operators of torch that multiply, and have no formula (torch 2.13)."""
LIKE = {
    "_scaled_dot_product_flash_attention_for_cpu": "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu_backward": "_scaled_dot_product_flash_attention_backward",
    "_scaled_dot_product_fused_attention_overrideable": "_scaled_dot_product_flash_attention",
    "_addmm_activation": "addmm",
}
"""Operators without a formula in torch that take the arguments of others with one."""
AGAIN_IN_ATTENTION = 1 / 5
"""The backward pass of fused attention makes the scores again: one of the five products in torch's formula (`sdpa_backward_flop_count`)."""


def number_type(args: Any) -> str:
    """The number type in which an operator multiplies: that of its first tensor. Empty where it has none."""
    dtype = next((str(dtype) for argument in args if (dtype := getattr(argument, "dtype", None)) is not None), "").removeprefix("torch.")
    return TYPES.get(dtype, dtype[:5].replace("float", "fp") + dtype[5:6] if dtype.startswith(("float8", "float4")) else dtype)


def grouped_product(left: Any, right: Any, *_: Any, out_val: Any, **__: Any) -> float:
    """FLOPs of a grouped matrix product (experts): of matrices with two dimensions, the groups divide their common dimension (`aten::_grouped_mm`)."""
    if left.dim() == right.dim() == 2:
        return float(2 * left.shape[0] * left.shape[1] * right.shape[1])
    return float(2 * math.prod(out_val.shape) * left.shape[-1])


def scaled_product(left: Any, right: Any, *_: Any, **__: Any) -> float:
    """FLOPs of a product of two matrices in 8 or 4 bits (`aten::_scaled_mm_v2`)."""
    return float(2 * left.shape[0] * left.shape[1] * right.shape[1])


def formulas() -> dict[str, Callable[..., float]]:
    """The formulas of operators by name, without the name of their overload: torch's own, and those of operators that torch leaves out."""
    from torch.utils.flop_counter import flop_registry

    of_torch = {operator.__name__: formula for operator, formula in flop_registry.items() if hasattr(operator, "__name__")}
    like_others = {name: of_torch[other] for name, other in LIKE.items() if other in of_torch}
    own = {"_grouped_mm": grouped_product, "_scaled_grouped_mm": grouped_product, "_scaled_grouped_mm_v2": grouped_product}
    return {**own, "_scaled_mm_v2": scaled_product, **like_others, **of_torch}


# --- one step ------------------------------------------------------------------------------------------------


class StepCount:
    """Counts the FLOPs of the passes of one step. `flops`: forward and backward, recomputation included; None
    where they are not known, and `reason` says why.

    `recomputed`: those of forward passes that the backward pass repeats (checkpoints, and the scores of fused attention). `by_type`: FLOPs by the number type
    of the operands. `convolved`: those of convolutions. `masked`: those of attention that a causal mask leaves out, where it computes the scores for the first
    time; `flops` counts all scores. `operators`: how many ran. `unknown`: operators that may multiply, and have no formula. `waits`: operators that wait for the GPU. The host is slower
    than usual in this step, so these operators wait for less time than usual. `scores`: the bytes that operators on the scores of attention read and write.
    """

    def __init__(self) -> None:
        import torch
        from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

        count, formula_of = self, formulas()
        self.flops: float | None = 0.0
        self.reason = NO_FORMULA
        self.convolved = self.masked = self.recomputed = 0.0
        self.by_type: dict[str, float] = {}
        self.unknown = set[str]()
        self.waits = Waits()
        self.scores = Scores()
        self.operators = 0
        self.last_end = now()
        """When the last operator has returned."""
        self._depth = 0
        self._records: Callable[[], bool] = torch.is_grad_enabled
        self._backward = False
        """Whether the pass under way is a backward pass."""
        self._in_backward = {True: 0.0, False: 0.0}
        """FLOPs of this backward pass, by whether torch recorded gradients meanwhile: it does so where it repeats a forward pass."""
        self._counts = False
        """Whether the mode is on."""
        self._products = False
        """Whether one of PRODUCTS has run."""

        class Counts(TorchDispatchMode):
            supports_higher_order_operators = True  # else torch raises an exception where the program runs one of them

            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                if types and any(kind.__module__ != "torch" for kind in types):
                    return NotImplemented  # a class of tensors goes first, as ever: its operators on plain tensors come here (DTensor: those of this rank)
                count.operators += 1
                before, begun = count.last_end, now()
                out = func(*args, **(kwargs or {}))
                count.last_end = now()
                packet = getattr(func, "_overloadpacket", None)
                if packet is not None and packet.__name__ in WAITING_OPERATORS:
                    waited = begun - before if packet.__name__ == AFTER_A_COPY else count.last_end - begun
                    count.note_wait(packet.__name__, args, kwargs or {}, out, waited)
                if packet is not None and func.namespace == "aten":
                    count.note_scores(func, args, out, sys._getframe(1))
                if packet is None or packet.__name__ in PRODUCTS:
                    count.note_special(packet)
                elif count.flops is not None:
                    formula = formula_of.get(packet.__name__) if func.namespace == "aten" else None
                    if formula is None:
                        if func.namespace not in NAMESPACES or packet.__name__ in UNKNOWN:
                            count.unknown.add(f"{func.namespace}::{packet.__name__}")
                        return out
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
        kind, name = number_type(args), operator._overloadpacket.__name__
        self.by_type[kind] = self.by_type.get(kind, 0.0) + flops
        records = self._backward and self._records()
        if self._backward:
            self._in_backward[records] += flops
        if "convolution" in name:
            self.convolved += flops
        elif "attention" in name:
            again = flops * AGAIN_IN_ATTENTION if name.endswith("_backward") else 0.0
            self.recomputed += again
            parameters = [argument.name for argument in operator._schema.arguments]
            place = parameters.index("is_causal") if "is_causal" in parameters else len(args)
            if not records and (args[place] if place < len(args) else kwargs.get("is_causal", False)):
                self.masked += (flops - again) / 2

    @entry("copies.in_passes")
    def note_wait(self, name: str, args: Any, kwargs: Any, out: Any, seconds: float) -> None:
        """Count a call of one of WAITING_OPERATORS, if the call has waited for the GPU."""
        if operator_waits(name, args, kwargs, out):
            self.waits.note(seconds, sys._getframe(1))

    @entry("arithmetic.scores")
    def note_scores(self, operator: Any, args: Any, out: Any, frame: FrameType) -> None:
        """Count what an operator on the scores of attention moves. `frame`: that of the operator's caller."""
        self.scores.see(operator, args, out, frame)

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
        self._backward = loss is not None
        self._counts = modes.counting = True
        self._mode.__enter__()

    @entry("arithmetic.leave")
    def leave(self) -> None:
        """The pass ends."""
        self._depth -= 1
        if self._depth == 0:
            self._exit()
            if self._in_backward[False]:  # else the backward pass itself records gradients: the program differentiates it again
                self.recomputed += self._in_backward[True]
            self._in_backward = {True: 0.0, False: 0.0}

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
    nodes = [node for tensor in losses if (node := getattr(tensor, "grad_fn", None)) is not None]
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
        """Facts of the run. FLOPs of a sample: without recomputation, that of recomputation, and without the masked half of causal attention. Shares of all
        FLOPs: of convolutions, and of each number type. The number of operators, and of those that may multiply and have no formula."""
        self.waits = Waits()
        """The waits of operators in the passes of the counted step."""
        self.signals: Signals = {}
        """What the counted step says of attention."""
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
        self.done, self.waits = True, count.waits
        if count.operators:
            self.facts["operators_per_step"] = float(count.operators)
        if count.flops:
            self._note(count, count.flops, last_samples)
            self.signals = count.scores.signals()
        if not self.per_sample:
            self.reason = count.reason
        return False

    def _note(self, count: StepCount, flops: float, samples: int) -> None:
        """Take the facts from a counted step."""
        shares = {name: counted / flops for name, counted in count.by_type.items()}
        watch.counted_precision = max(shares, key=shares.__getitem__)
        self.facts |= {f"flops_{name}_ratio": share for name, share in shares.items() if name}
        if samples:
            model = flops - count.recomputed
            self.per_sample = model / samples
            self.facts |= {"flops_per_sample": self.per_sample, "convolution_flops_ratio": count.convolved / flops}
            if count.recomputed:
                self.facts["recomputed_flops_per_sample"] = count.recomputed / samples
            if count.masked:
                self.facts["causal_flops_per_sample"] = (model - count.masked) / samples
            if count.unknown:
                self.facts["operators_without_formula"] = float(len(count.unknown))


def is_compiled() -> bool:
    """Whether torch.compile has compiled anything in this process, or will do so in a later pass."""
    return has_compiled() or structure(watch).compiles


def has_compiled() -> bool:
    """Whether torch.compile was used in this process. What it compiles as one graph (`fullgraph`) it does not count as a frame."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return compiled.used or (dynamo is not None and bool(dynamo.counters["frames"]["total"] or dynamo.counters["stats"]["unique_graphs"]))
