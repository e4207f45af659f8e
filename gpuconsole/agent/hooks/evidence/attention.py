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
PRODUCTS = {"bmm": 0, "baddbmm": 1}
"""Products of batches of matrices, with the place of their left operand."""
SOFTMAX = ("_softmax", "_safe_softmax")
NO_TRAFFIC = ("_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
BETWEEN = ("torch._compile", "torch._dynamo", "torch.utils._python_dispatch", "torch._ops")
"""Modules of torch between a dispatch mode and the code that calls the operator."""
BY_TORCH, WRITTEN_OUT = "torch's scaled_dot_product_attention without a fused kernel", "written out"

Kind = tuple[int, int]
"""The elements and the last dimension of a tensor: views of a matrix of scores, with batch and heads apart or together, have the same."""


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
        self._places = Counter[tuple[str, str]]()
        self._product: Kind | None = None
        self._weights: Kind | None = None
        """The last product that may be scores, and the softmax of it."""
        self._calls = set[Any]()
        """The instructions that made this product and this softmax: one, where one function of torch makes both."""

    def see(self, operator: Any, args: Any, out: Any, frame: FrameType) -> None:
        """Look at an operator that has run. `frame`: that of its caller."""
        name = operator._overloadpacket.__name__
        outs, tensor_type = out if isinstance(out, (tuple, list)) else (out,), sys.modules["torch"].Tensor
        tensors = [each for each in (*args, *outs) if isinstance(each, tensor_type) and not each.is_nested and each.numel() >= LEAST]
        if not tensors or name in NO_TRAFFIC or is_view(operator):
            return
        for tensor in tensors:
            self._bytes[kind_of(tensor)] += tensor.numel() * tensor.element_size()
        if name in PRODUCTS:
            self._see_product(args[PRODUCTS[name]], out, frame)
        elif name in SOFTMAX and kind_of(out) == self._product and args[1] in (-1, out.dim() - 1):
            self._weights = self._product
            self._calls.add(call_at(frame))

    def _see_product(self, left: Any, out: Any, frame: FrameType) -> None:
        if out.shape[-1] >= LEAST_KEYS * left.shape[-1] and out.numel() >= LEAST:
            self._product, self._weights, self._calls = kind_of(out), None, {call_at(frame)}
        elif self._weights is not None and kind_of(left) == self._weights:
            elements, keys = self._weights
            self._matrices |= {(elements, keys), (elements, left.shape[-2])}
            self._calls.add(call_at(frame))
            where = caller(frame, ("torch.", "torchvision."))
            place = place_name(where.f_code.co_filename, where.f_lineno) if where is not None else ""
            self._places[BY_TORCH if len(self._calls) == 1 else WRITTEN_OUT, place] += 1
            self._product = self._weights = None

    def signals(self) -> Signals:
        """Return the bytes of the step as a signal; its source says how attention is computed, and where most of it."""
        moved = sum(self._bytes[matrix] for matrix in self._matrices)
        source = "operators on the scores of attention in the counted step"
        for (how, place), _ in self._places.most_common(1):
            source += f": {how}" + (f" at {place}" if place else "")
        return {"attention.scores_bytes": Signal(float(moved), "B", source)}


def kind_of(tensor: Any) -> Kind:
    return tensor.numel(), tensor.shape[-1] if tensor.dim() else 1


def call_at(frame: FrameType) -> Any:
    """Return the instruction that called an operator of torch."""
    code = caller(frame)
    return (code.f_code, code.f_lasti) if code is not None else None


def is_view(operator: Any) -> bool:
    """Return whether an operator only returns another view of its operand."""
    aliases = [argument.alias_info for argument in operator._schema.arguments if argument.alias_info is not None]
    return bool(aliases) and not any(alias.is_write for alias in aliases)
