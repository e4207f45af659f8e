"""FLOPs of one step: how many, in which number types, and how many of them a second time.

A dispatch mode counts them in the passes of one step by torch's own formulas
(torch.utils.flop_counter). It calls each operator as it is: the program's code runs once, as ever.
A model under torch.compile is not counted: torch would run it uncompiled in that step, with other
rounding.

And attention that keeps its scores in memory: the bytes that operators on the matrices of scores
move in the counted step. softmax(q k^T) v, operator by operator, is a product of matrices, a
softmax over its result, and a product with the result of the softmax. Everything between them, and
the backward pass, reads and writes a T x T matrix for each head. One fused kernel (FlashAttention
and its like) never writes this matrix, and shows none of these operators.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any

from ...clock import now
from ...loop import Signals
from ...protocol import CodePlace, Signal
from ..calls import compiled
from ..guard import entry, from_outside, switch
from ..modes import has_modes, is_profiled, modes
from ..passes import state
from ..structure import structure
from ..threads import calls_are_seen
from ..watch import module_name, place_name, watch
from .decompositions import Decompositions
from .observed import AFTER_A_COPY, WAITING_OPERATORS, Waits, operator_waits
from .repeats import Repeats
from .spare import SpareWork, argument_of
from .tables import Tables

# --- the FLOPs of a step --------------------------------------------------------------------------

MODES = "the program has a mode on that would see how its operators are counted"
COMPILED = "the model is compiled: torch would run it uncompiled while its operators are counted"
OBSERVED = (
    "a profiler, a debugger or coverage of the program would see the calls that count its operators"
)
OBSERVED_S = 20.0
"""Seconds to wait for the end of such a tool."""
OTHER_ROUNDING = (
    "the backward pass of torch.prod, masked_fill or lstsq rounds differently while operators are"
    " counted"
)
PRODUCTS = ("prod", "cumprod", "linalg_lstsq")
OTHER_NODES, FILLED = (
    ("prodbackward", "cumprodbackward", "linalglstsqbackward"),
    "maskedfillbackward1",
)
"""Operators whose backward pass takes another way where any dispatch mode is on, and the nodes of
their backward passes: `isTensorSubclassLike` in torch/csrc/autograd/FunctionsManual.cpp. Found by
running 261 operators with and without such a mode. FILLED is the node of `masked_fill` with a
tensor as the value, which counts where this value has a gradient."""
MAX_NODES = 100_000
"""Of the graph of a loss, which is searched for such operators."""
INTERRUPTED = "an exception of the program ended the step whose operators were counted"
NO_FORMULA = "no operator with a known formula ran in the passes that are seen"
TYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "float64": "fp64",
    "int8": "int8",
}
"""Number types of the operands by the name of torch's dtype. Those with 8 and 4 bits are `fp8` and
`fp4`."""
NAMESPACES = (
    "aten",
    "prim",
    "prims",
    "c10d",
    "c10d_functional",
    "_c10d_functional",
    "_dtensor",
    "fsdp",
    "profiler",
    "symm_mem",
)
"""Operators of torch. An operator of another library may multiply, and nobody knows how much."""
MULTIPLY = frozenset(
    ("mm", "addmm", "bmm", "baddbmm", "rnn", "attention", "encoder", "convolution")
)
"""Words in the names of torch's operators that multiply. One of them without a formula makes the
count a lower bound (`_grouped_mm` of experts, RNNs)."""
LIKE = {
    "_scaled_dot_product_flash_attention_for_cpu": "_scaled_dot_product_flash_attention",
    (
        "_scaled_dot_product_flash_attention_for_cpu_backward"
    ): "_scaled_dot_product_flash_attention_backward",
    "_scaled_dot_product_fused_attention_overrideable": "_scaled_dot_product_flash_attention",
    "_addmm_activation": "addmm",
}
"""Operators without a formula in torch that take the arguments of others with one."""
AGAIN_IN_ATTENTION = 1 / 5
"""The backward pass of fused attention makes the scores again: one of the five products in torch's
formula (`sdpa_backward_flop_count`)."""


def number_type(args: Any) -> str:
    """Return the number type in which an operator multiplies: that of its first tensor. Empty where
    it has none."""
    dtype = next(
        (
            str(dtype)
            for argument in args
            if (dtype := getattr(argument, "dtype", None)) is not None
        ),
        "",
    ).removeprefix("torch.")
    return TYPES.get(
        dtype,
        dtype[:5].replace("float", "fp") + dtype[5:6]
        if dtype.startswith(("float8", "float4"))
        else dtype,
    )


def formulas() -> dict[str, Callable[..., float]]:
    """Return torch's formulas of operators by name, without the name of their overload, and those
    of LIKE."""
    from torch.utils.flop_counter import flop_registry

    of_torch = {
        operator.__name__: formula
        for operator, formula in flop_registry.items()
        if hasattr(operator, "__name__")
    }
    return of_torch | {name: of_torch[other] for name, other in LIKE.items() if other in of_torch}


class StepCount:
    """Counts the FLOPs of the passes of one step.

    `flops`: forward and backward, recomputation included; None where they are not known, and
    `reason` says why. `recomputed`: those of forward passes that the backward pass repeats
    (checkpoints, and the scores of fused attention, `again_in_attention`). `by_type`: FLOPs by
    the number type of the operands. `convolved`: those of convolutions. `masked`: those of
    attention that a causal mask leaves out, where it computes the scores for the first time;
    `flops` counts all scores. `operators`: how many ran. `unknown`: operators that may
    multiply, and have no formula. `waits`: operators that wait for the GPU. The host is slower than
    usual in this step, so these operators wait for a shorter time than usual. `scores`: the bytes
    that operators on the scores of attention read and write.
    """

    def __init__(self) -> None:
        import torch
        from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

        count = self
        self.flops: float | None = 0.0
        self.reason = NO_FORMULA
        self.convolved = self.masked = self.recomputed = self.again_in_attention = 0.0
        self.by_type: dict[str, float] = {}
        self.unknown = set[str]()
        self.waits, self.scores, self.tables = Waits(), Scores(), Tables()
        self.decompositions, self.repeats, self.spare = Decompositions(), Repeats(), SpareWork()
        self._before_pass = 0
        """The number of operators that ran before the current pass."""
        self.operators = 0
        self._last_end = now()
        """When the last operator has returned."""
        self._depth = 0
        self._formulas, self._records = formulas(), torch.is_grad_enabled
        self._backward = False
        """Whether the pass under way is a backward pass."""
        self._in_backward = {True: 0.0, False: 0.0}
        """FLOPs of this backward pass, by whether torch recorded gradients meanwhile: it does so
        where it repeats a forward pass."""
        self._counts = False
        """Whether the mode is on."""
        self._products = False
        """Whether one of PRODUCTS has run, or `masked_fill` with a value that has a gradient."""

        class Counts(TorchDispatchMode):
            # else torch raises an exception where the program runs one of them
            supports_higher_order_operators = True

            def __torch_dispatch__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                if types and any(kind.__module__ != "torch" for kind in types):
                    # a class of tensors goes first, as ever: its operators on plain tensors come
                    # here (DTensor: those of this rank)
                    return NotImplemented
                begun = now()
                out = func(*args, **(kwargs or {}))
                count.note(func, args, kwargs or {}, out, begun, sys._getframe(1))
                return out

        self._mode, self._newest_mode = Counts(), _get_current_dispatch_mode
        compiled.on_use = self.give_up

    @entry("arithmetic.note")
    def note(
        self,
        operator: Any,
        args: Any,
        kwargs: dict[str, Any],
        out: Any,
        begun: float,
        frame: FrameType,
    ) -> None:
        """Count an operator that has run since `begun`. `frame`: that of its caller."""
        before, self._last_end = self._last_end, now()
        self.operators += 1
        packet = getattr(operator, "_overloadpacket", None)
        if packet is None:  # it calls others, which are not counted then
            self.flops = None
            return
        name = packet.__name__
        if name in WAITING_OPERATORS and operator_waits(name, args, kwargs, out):
            self.waits.note(
                begun - before if name == AFTER_A_COPY else self._last_end - begun, frame
            )
        if operator.namespace == "aten":
            self.scores.see(operator, args, out, frame)
            self.tables.see(name, args)
        if not self._backward:
            self.repeats.see(name, args, out)
            self.decompositions.called(name, frame)
        plain = name.rstrip("_")
        learned = plain == "masked_fill" and getattr(args[2], "requires_grad", False)
        self._products = self._products or learned or plain in PRODUCTS
        formula = self._formulas.get(name) if operator.namespace == "aten" else None
        flops = 0.0
        if formula is not None and self.flops is not None:
            try:
                flops = formula(*args, **kwargs, out_val=out)
                self._add(operator, flops, args, kwargs)
            except Exception as problem:  # a formula that does not fit these arguments
                if from_outside(problem):
                    raise
                self.flops = None
        elif formula is None and (
            operator.namespace not in NAMESPACES or not MULTIPLY.isdisjoint(name.split("_"))
        ):
            self.unknown.add(f"{operator.namespace}::{name}")
        if operator.namespace == "aten":
            self.spare.see(operator, args, kwargs, out, flops, frame)

    def _add(self, operator: Any, flops: float, args: Any, kwargs: dict[str, Any]) -> None:
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
            self.again_in_attention += again
            if not records and argument_of(operator, args, kwargs, "is_causal"):
                self.masked += (flops - again) / 2

    @entry("arithmetic.called")
    def called(self, frame: FrameType) -> None:
        """Handle a call of a module within a forward pass. `frame`: the frame of the call."""
        if self._counts:
            names = frame.f_locals
            operators = self.operators - self._before_pass
            self.repeats.called(names["self"], names["args"], names["kwargs"], operators, frame)

    @entry("arithmetic.enter")
    def enter(self, loss: Any = None, adds: bool = True, call: Any = None) -> None:
        """A pass begins. `loss`: that of a backward pass. `adds`: the backward pass adds its
        gradients to those of the parameters. `call`: the module of a forward pass, and its
        arguments."""
        self._depth += 1
        if self._depth > 1:
            return
        nodes = nodes_of(loss) if loss is not None else []
        rounds = loss is not None and (self._products or has_products(nodes))
        reason = (
            COMPILED
            if has_compiled()
            else MODES
            if has_modes()
            else OTHER_ROUNDING
            if rounds
            else OBSERVED
            if is_observed()
            else ""
        )
        if reason:
            self.flops, self.reason = None, reason
            return
        self._backward, self._before_pass = loss is not None, self.operators
        self.decompositions.see(nodes)
        if loss is not None:
            self.spare.begin_backward(nodes, adds)
        elif call is not None:
            self.spare.begin_pass(*call)
        self._counts = modes.counting = True
        self._mode.__enter__()

    @entry("arithmetic.leave")
    def leave(self) -> None:
        """The pass ends."""
        self._depth -= 1
        if self._depth == 0:
            self._exit()
            self.spare.end_pass()
            if not self._backward:
                self.repeats.end_pass(self.operators - self._before_pass)
            # else the backward pass itself records gradients: the program differentiates it again
            if self._in_backward[False]:
                self.recomputed += self._in_backward[True]
            self._in_backward = {True: 0.0, False: 0.0}

    def _exit(self) -> None:
        # else it would end a mode of the program
        if self._counts and self._newest_mode() is self._mode:
            self._counts = modes.counting = False
            self._mode.__exit__(None, None, None)

    @entry("arithmetic.stepped")
    def stepped(self, optimizer: Any) -> None:
        """An optimizer is about to step."""
        self.spare.stepped(optimizer)

    def give_up(self) -> None:
        """The program is about to compile a function, within or between the passes."""
        self.flops, self.reason = None, COMPILED
        self._exit()

    def stop(self) -> None:
        """Count nothing any longer, wherever the program is."""
        state.counting, compiled.on_use = None, None
        self.flops, self.reason, self._depth = None, INTERRUPTED, 0
        self.spare = SpareWork()
        self._exit()


def nodes_of(loss: Any) -> list[Any]:
    """Return the nodes of the graph of `loss` (one tensor or several), but not many more than
    MAX_NODES."""
    losses = loss if isinstance(loss, (tuple, list)) else [loss]
    nodes = [node for tensor in losses if (node := getattr(tensor, "grad_fn", None)) is not None]
    seen = dict.fromkeys(nodes)
    while nodes and len(seen) <= MAX_NODES:
        after = [node for node, _ in nodes.pop().next_functions if node is not None]
        following = [node for node in dict.fromkeys(after) if node not in seen]
        seen |= dict.fromkeys(following)
        nodes.extend(following)
    return list(seen)


def has_products(nodes: list[Any]) -> bool:
    """Return whether a node of the graph rounds differently while operators are counted. Return
    True if the graph is too large to search."""
    return len(nodes) > MAX_NODES or any(map(_rounds_otherwise, nodes))


def _rounds_otherwise(node: Any) -> bool:
    """Return whether a node of a graph is one of OTHER_NODES, or FILLED with a value that has a
    gradient."""
    name = node.name().lower()
    if name == FILLED:
        return node.next_functions[1][0] is not None
    return bool(name.startswith(OTHER_NODES))


class Arithmetic:
    """Counts one whole step, as soon as the program runs evenly. `done`: it is counted, or cannot
    be. `reason`: why there is no figure. `waits`: those of operators in the passes of this step.
    `signals`: what the step says of attention.

    `facts`: FLOPs of a sample without recomputation, that of recomputation, and without the masked
    half of causal attention; shares of all FLOPs of convolutions and of each number type; the
    number of operators, and of those that may multiply and have no formula.
    """

    def __init__(self) -> None:
        self.facts: dict[str, float] = {}
        self.waits = Waits()
        self.signals: Signals = {}
        self.reason = ""
        self.done = False
        self._waits_until = 0.0
        self._count: StepCount | None = None

    @property
    def under_way(self) -> bool:
        return self._count is not None

    def step_ended(self, last_samples: int, steps: int = 1) -> bool:
        """Call after each step. Returns whether the next step is being counted; such a step does
        not count for the times. `last_samples`: those of the last step. `steps`: the steps that
        were counted; of several, which may differ, no figure is known for a sample."""
        if self._count is None:
            if is_compiled():
                self.done, self.reason = True, COMPILED
                return False
            if is_observed():  # it may end: wait
                self._waits_until = self._waits_until or now() + OBSERVED_S
                if now() >= self._waits_until:
                    self.done, self.reason = True, OBSERVED
                return False
            self._count = state.counting = StepCount()
            switch.undo_part["arithmetic"] = self._count.stop
            return True
        count, self._count, state.counting, compiled.on_use = self._count, None, None, None
        # no weak reference to a tensor stays: torch.utils.swap_tensors refuses such tensors
        spare, count.spare = count.spare, SpareWork()
        if count.reason == OBSERVED:
            return False
        self.done, self.waits, self.reason = (
            True,
            count.waits,
            "" if count.flops and last_samples else count.reason,
        )
        if count.operators:
            self.facts["operators_per_step"] = count.operators / steps
        if count.flops:
            self._note(count, count.flops, last_samples if steps == 1 else 0)
            self.signals = count.scores.signals()
            if state.sees_modules:
                self.signals |= count.repeats.signals()
            self.signals["recomputed.flops_ratio"] = Signal(
                (count.recomputed - count.again_in_attention) / count.flops,
                "ratio",
                "operators of the counted step: FLOPs of forward passes that are made again, not"
                " those of fused attention",
            )
            self.signals |= count.decompositions.signals(count.flops)
            self.signals |= spare.signals(count.flops, count.operators)
            self.facts |= count.tables.facts()
        return False

    def _note(self, count: StepCount, flops: float, samples: int) -> None:
        """Take the facts from a counted step."""
        shares = {name: counted / flops for name, counted in count.by_type.items()}
        watch.counted_precision = max(shares, key=shares.__getitem__)
        self.facts |= {f"flops_{name}_ratio": share for name, share in shares.items() if name}
        if samples:
            model = flops - count.recomputed
            self.facts |= {
                "flops_per_sample": model / samples,
                "convolution_flops_ratio": count.convolved / flops,
            }
            more = {
                "recomputed_flops_per_sample": count.recomputed / samples,
                "causal_flops_per_sample": (model - count.masked) / samples
                if count.masked
                else 0.0,
                "operators_without_formula": float(len(count.unknown)),
            }
            self.facts |= {name: value for name, value in more.items() if value}


def is_observed() -> bool:
    """Return whether a profiler, a debugger or coverage of the program sees calls of Python
    functions. Such a tool would see the calls that count operators."""
    return (
        sys.getprofile() is not None
        or sys.gettrace() is not None
        or calls_are_seen()
        or is_profiled()
    )


def is_compiled() -> bool:
    """Return whether torch.compile has compiled anything in this process, or will do so in a later
    pass."""
    return has_compiled() or bool(structure(watch).compiled)


def has_compiled() -> bool:
    """Return whether torch.compile was used in this process. What it compiles as one graph
    (`fullgraph`) it does not count as a frame."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return compiled.used or (
        dynamo is not None
        and bool(dynamo.counters["frames"]["total"] or dynamo.counters["stats"]["unique_graphs"])
    )


# --- attention that keeps its scores in memory ----------------------------------------------------

MIN_SCORES = 2**24
"""Elements of a matrix of scores. A smaller one may stay in the L2 cache between two operators (32
MB in bf16, twice for what an operator reads and writes; an H100 has 50 MB)."""
MIN_KEYS_RATIO = 2
"""Keys over the width of a head. The plain formula moves the scores 19 times in a step, and a fused
kernel moves q, k, v, the result and their gradients about 12 times: with fewer keys (windows of an
image) a fused kernel saves less than two thirds of the traffic."""
BATCHED_PRODUCTS = {"bmm": 0, "baddbmm": 1}
"""Products of batches of matrices, with the place of their left operand."""
SOFTMAX = ("_softmax", "_safe_softmax")
NO_TRAFFIC = (
    "_unsafe_view",
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
)
BETWEEN = ("torch._compile", "torch._dynamo", "torch.utils._python_dispatch", "torch._ops")
"""Modules of torch between a dispatch mode and the code that calls the operator."""
SCORES = "attention.scores_bytes"

Kind = tuple[int, int]
"""The elements and the last dimension of a tensor: views of a matrix of scores, with batch and
heads apart or together, have the same."""


def caller(frame: FrameType | None, beside: tuple[str, ...] = BETWEEN) -> FrameType | None:
    """Return the frame of the innermost code outside of these modules, from `frame` outwards."""
    while frame is not None and module_name(frame).startswith(beside):
        frame = frame.f_back
    return frame


class Scores:
    """Finds attention among the operators of one step."""

    def __init__(self) -> None:
        self._bytes = Counter[Kind]()
        """What the operators read and wrote."""
        self._matrices = set[Kind]()
        """Matrices of scores, and their transposes."""
        self._places = Counter[tuple[bool, str]]()
        """Whether torch computes the attention, and the program's line that calls the attention."""
        self._product: Kind | None = None
        self._weights: Kind | None = None
        """The last product that may be scores, and the softmax of it."""
        self._calls = set[Any]()
        """The instructions that made this product and this softmax: one, where one function of
        torch makes both."""

    def see(self, operator: Any, args: Any, out: Any, frame: FrameType) -> None:
        """Look at an operator that has run. `frame`: that of its caller."""
        name = operator._overloadpacket.__name__
        outs, tensor_type = (
            out if isinstance(out, (tuple, list)) else (out,),
            sys.modules["torch"].Tensor,
        )
        tensors = [
            each
            for each in (*args, *outs)
            if isinstance(each, tensor_type) and not each.is_nested and each.numel() >= MIN_SCORES
        ]
        if not tensors or name in NO_TRAFFIC or is_view(operator):
            return
        for tensor in tensors:
            self._bytes[kind_of(tensor)] += tensor.numel() * tensor.element_size()
        if name in BATCHED_PRODUCTS:
            self._see_product(args[BATCHED_PRODUCTS[name]], out, frame)
        elif name in SOFTMAX and kind_of(out) == self._product and args[1] in (-1, out.dim() - 1):
            self._weights = self._product
            self._calls.add(call_at(frame))

    def _see_product(self, left: Any, out: Any, frame: FrameType) -> None:
        if out.shape[-1] >= MIN_KEYS_RATIO * left.shape[-1] and out.numel() >= MIN_SCORES:
            self._product, self._weights, self._calls = kind_of(out), None, {call_at(frame)}
        elif self._weights is not None and kind_of(left) == self._weights:
            elements, keys = self._weights
            self._matrices |= {(elements, keys), (elements, left.shape[-2])}
            self._calls.add(call_at(frame))
            where = caller(frame, ("torch.", "torchvision."))
            place = (
                place_name(where.f_code.co_filename, where.f_lineno) if where is not None else ""
            )
            self._places[len(self._calls) == 1, place] += 1
            self._product = self._weights = None

    def signals(self) -> Signals:
        """Return the bytes of the step, and whether torch or the program makes most of the calls of
        attention."""
        moved = sum(self._bytes[matrix] for matrix in self._matrices)
        source = "operators on the scores of attention in the counted step"
        scores = Signal(float(moved), "B", source)
        for (by_torch, place), _ in self._places.most_common(1):
            scores = replace(scores, place=CodePlace(place) if place else None)
            if by_torch:
                source = "attention is torch's scaled_dot_product_attention without a fused kernel"
                return {SCORES: scores, "attention.by_torch": Signal(1.0, "", source)}
        return {SCORES: scores}


def kind_of(tensor: Any) -> Kind:
    return tensor.numel(), tensor.shape[-1] if tensor.dim() else 1


def call_at(frame: FrameType) -> Any:
    """Return the instruction that called an operator of torch."""
    code = caller(frame)
    return (code.f_code, code.f_lasti) if code is not None else None


def is_view(operator: Any) -> bool:
    """Return whether an operator only returns another view of its operand."""
    aliases = [
        argument.alias_info
        for argument in operator._schema.arguments
        if argument.alias_info is not None
    ]
    return bool(aliases) and not any(alias.is_write for alias in aliases)
