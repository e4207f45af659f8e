"""Attention that keeps its scores in memory: the bytes that operators on the matrices of scores move in the counted step.

softmax(q k^T) v, operator by operator, is a product of matrices, a softmax over its result, and a product with the result of the softmax. Everything between them, and
the backward pass, reads and writes a T x T matrix for each head. One fused kernel (FlashAttention and its like) never writes this matrix, and shows none of these operators.
"""

from __future__ import annotations

import sys
from collections import Counter
from types import FrameType
from typing import Any

from ...loop import Signals
from ...protocol import Signal
from ..watch import module_name, place_name

LEAST = 2**24
"""Elements of a matrix of scores. A smaller one may stay in the L2 cache between two operators (32 MB in bf16, twice for what an operator reads and writes; an H100 has 50 MB)."""
LEAST_KEYS = 2
"""Keys over the width of a head. The plain formula moves the scores 19 times in a step, and a fused kernel moves q, k, v, the result and their gradients about 12 times: with fewer keys
(windows of an image) a fused kernel saves less than two thirds of the traffic."""
PRODUCTS = ("bmm", "baddbmm")
SOFTMAX = ("_softmax", "_safe_softmax")
NO_TRAFFIC = ("_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
BETWEEN = ("torch._compile", "torch._dynamo", "torch.utils._python_dispatch", "torch._ops")
"""Modules of torch between a dispatch mode and the code that calls the operator."""
BY_TORCH, WRITTEN_OUT = "torch's scaled_dot_product_attention without a fused kernel", "written out"


def caller(frame: FrameType | None, beside: tuple[str, ...] = BETWEEN) -> FrameType | None:
    """The frame of the innermost code outside of these modules, from `frame` outwards."""
    while frame is not None and module_name(frame).startswith(beside):
        frame = frame.f_back
    return frame


class Scores:
    """Finds attention among the operators of one step. `bytes`: how many bytes the operators read and wrote, for each kind of matrix (`kind_of`)."""

    def __init__(self) -> None:
        self.bytes = Counter[tuple[int, int]]()
        self.matrices = set[tuple[int, int]]()
        """The elements and the last dimension of matrices of scores, and of their transposes."""
        self.places = Counter[tuple[str, str]]()
        self._product: tuple[int, int] | None = None
        self._weights: tuple[int, int] | None = None
        """The last product that may be scores, and the softmax of it."""
        self._calls = set[Any]()
        """The places in the code that made this product and this softmax: one place, where one function of torch makes both."""

    def see(self, operator: Any, args: Any, out: Any, frame: FrameType) -> None:
        """An operator has run. `frame`: that of its caller."""
        outs = out if isinstance(out, (tuple, list)) else (out,)
        kind = sys.modules["torch"].Tensor
        tensors = [each for each in (*args, *outs) if isinstance(each, kind) and not each.is_nested and each.numel() >= LEAST]
        if not tensors or is_view(operator):
            return
        name = operator._overloadpacket.__name__
        if name in NO_TRAFFIC:
            return
        for tensor in tensors:
            self.bytes[kind_of(tensor)] += tensor.numel() * tensor.element_size()
        if name in PRODUCTS:
            self._see_product(args[0 if name == "bmm" else 1], out, frame)
        elif name in SOFTMAX and kind_of(out) == self._product and args[1] in (-1, out.dim() - 1):
            self._weights = self._product
            self._calls.add(call_at(frame))

    def _see_product(self, left: Any, out: Any, frame: FrameType) -> None:
        if out.shape[-1] >= LEAST_KEYS * left.shape[-1] and out.numel() >= LEAST:
            self._product, self._weights, self._calls = kind_of(out), None, {call_at(frame)}
        elif self._weights is not None and kind_of(left) == self._weights:
            elements, keys = self._weights
            self.matrices |= {(elements, keys), (elements, left.shape[-2])}
            self._calls.add(call_at(frame))
            where = caller(frame, ("torch.", "torchvision."))
            place = place_name(where.f_code.co_filename, where.f_lineno) if where is not None else ""
            self.places[BY_TORCH if len(self._calls) == 1 else WRITTEN_OUT, place] += 1
            self._product = self._weights = None

    def signals(self) -> Signals:
        """Return the bytes of the step as a signal; its source says how attention is computed, and where most of it."""
        moved = sum(self.bytes[matrix] for matrix in self.matrices)
        source = "operators on the scores of attention in the counted step"
        if self.places:
            how, place = max(self.places, key=self.places.__getitem__)
            source += f": {how}" + (f" at {place}" if place else "")
        return {"attention.scores_bytes": Signal(float(moved), "B", source)}


def kind_of(tensor: Any) -> tuple[int, int]:
    """The elements and the last dimension of a tensor: views of a matrix of scores, with batch and heads apart or together, have the same."""
    return tensor.numel(), tensor.shape[-1] if tensor.dim() else 1


def call_at(frame: FrameType) -> Any:
    """The instruction that called an operator of torch."""
    code = caller(frame)
    return (code.f_code, code.f_lasti) if code is not None else None


def is_view(operator: Any) -> bool:
    """Whether an operator only returns another view of its operand."""
    aliases = [argument.alias_info for argument in operator._schema.arguments if argument.alias_info is not None]
    return bool(aliases) and not any(alias.is_write for alias in aliases)
