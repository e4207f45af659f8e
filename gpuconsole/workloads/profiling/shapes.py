"""FLOPs and bytes of one operator call, from the shapes in the trace. None where the shapes do not determine a figure.

Matrix products count 2mnk, convolutions and attention in the same way, attention with a causal mask half of it (its kernels skip the
masked half). Every other operator counts one FLOP per element of its largest operand: a lower bound.
Bytes are a minimum: each input is read once, each output is written once, an expanded tensor counts its stored elements.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from gpuconsole.model.profile import OpClassName
from gpuconsole.workloads.profiling.trace import Args

_ITEM_BYTES = {
    "double": 8, "long int": 8, "c10::complex<float>": 8, "float": 4, "int": 4, "c10::Half": 2, "c10::BFloat16": 2, "short": 2, "short int": 2,
    "signed char": 1, "unsigned char": 1, "bool": 1, "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1,
}  # fmt: skip
_WRITE_ONLY = ("fill_", "zero_", "bernoulli_", "arange")


class Tensor(NamedTuple):
    """A tensor argument. `stored` is the number of elements in memory; it is smaller than the product of `size` for an expanded tensor."""

    size: tuple[int, ...]
    stored: int
    item_bytes: int

    @property
    def elements(self) -> int:
        return math.prod(self.size)

    @property
    def bytes(self) -> float:
        return float(self.stored * self.item_bytes)


class Work(NamedTuple):
    flops: float | None
    bytes: float | None


UNKNOWN = Work(None, None)


def work_of(op: str, op_class: OpClassName, args: Args) -> Work:
    """FLOPs and bytes of the operator `op` (its name in the trace) with these arguments."""
    name = op.rpartition("::")[2]
    tensors = _tensors(args)
    if not tensors:
        return UNKNOWN
    if name.startswith("triton_"):  # its arguments are both inputs and outputs
        return Work(float(max(tensor.elements for tensor in tensors)), sum(tensor.bytes for tensor in tensors))
    match op_class:
        case "gemm":
            return _gemm(name, tensors)
        case "convolution":
            return _convolution(name, tensors, args)
        case "attention":
            return _attention(name, tensors, args)
        case "embedding":
            return _lookup(name, tensors)
        case "copy":
            return Work(0.0, _pointwise(name, tensors).bytes)
        case "elementwise":
            return _pointwise(name, tensors)
        case "normalization":
            return _normalization(tensors)
        case "reduction":
            return _reduction(name, tensors)
    return UNKNOWN


def _tensors(args: Args) -> list[Tensor]:
    """The tensor arguments. Empty with a list of tensors, because the trace does not record all sizes of a list."""
    if "TensorList" in args.types:
        return []
    known = zip(args.types, args.dims, args.strides or [[]] * len(args.dims), strict=False)
    return [_tensor(size, strides, _ITEM_BYTES[kind]) for kind, size, strides in known if kind in _ITEM_BYTES]


def _tensor(size: Any, strides: Any, item_bytes: int) -> Tensor:
    sizes = tuple(int(n) for n in size)
    stored = math.prod(n for n, stride in zip(sizes, strides, strict=True) if stride) if len(strides) == len(sizes) else math.prod(sizes)
    return Tensor(sizes, stored, item_bytes)


def _gemm(name: str, tensors: list[Tensor]) -> Work:
    matrices = [tensor for tensor in tensors if len(tensor.size) >= 2]
    if len(matrices) < 2 and name not in ("mv", "addmv", "dot", "vdot"):
        return UNKNOWN
    # addmm and similar operators take the addend first, then the two factors, and possibly an `out`.
    first = 1 if name.startswith(("addm", "baddb", "addb", "_addmm")) else 0
    if len(tensors) < first + 2:
        return UNKNOWN
    a, b = tensors[first], tensors[first + 1]
    if not a.size or not b.size or a.size[-1] not in b.size:
        return UNKNOWN
    k = a.size[-1]
    transposed = name in ("mkldnn_linear", "_linear_pointwise", "linear") or b.size[-2:][0] != k
    n = (b.size[-2] if transposed else b.size[-1]) if len(b.size) >= 2 else 1
    out = a.elements // k * n if k else 0
    return Work(2.0 * out * k, sum(tensor.bytes for tensor in tensors[: first + 2]) + out * a.item_bytes)


def _convolution(name: str, tensors: list[Tensor], args: Args) -> Work:
    """Forward: 2 x outputs x weights per output channel. Backward: the same for each requested gradient (input, weights)."""
    if "backward" in name:
        if len(tensors) < 3:
            return UNKNOWN
        out, source, weight = tensors[0].size, tensors[1], tensors[2]
        wanted = next((value for value in reversed(args.values) if "True" in value), "[True, True]")
        passes = wanted.split(",")[:2]
        factor = sum("True" in one for one in passes)
    elif len(tensors) >= 2 and len(tensors[1].size) == len(tensors[0].size) >= 3:
        source, weight, factor = tensors[0], tensors[1], 1
        out = _convolved(name, source.size, weight.size, args)
    else:
        return UNKNOWN
    if not out:
        return UNKNOWN
    elements = math.prod(out)
    flops = 2.0 * elements * weight.elements / max(1, weight.size[0])
    return Work(factor * flops, factor * (source.bytes + weight.bytes + elements * source.item_bytes))


def _convolved(name: str, source: tuple[int, ...], weight: tuple[int, ...], args: Args) -> tuple[int, ...]:
    """The size of the output; empty where the arguments do not determine it."""
    lists = [_numbers(value) for value in args.values if value.startswith("[")]
    if len(lists) < 3 or not all(lists[:3]):
        return ()
    first, second, dilation = lists[:3]
    # the general operator takes stride, padding, dilation; the operators of cuDNN, MIOpen and oneDNN take padding, stride, dilation
    stride, padding = (second, first) if name.startswith(("cudnn_", "miopen_", "mkldnn_")) else (first, second)
    spatial = []
    for n, (size, kernel) in enumerate(zip(source[2:], weight[2:], strict=True)):
        s, p, d = (one[min(n, len(one) - 1)] for one in (stride, padding, dilation))
        spatial.append((size + 2 * p - d * (kernel - 1) - 1) // max(1, s) + 1)
    return (source[0], weight[0], *spatial)


def _attention(name: str, tensors: list[Tensor], args: Args) -> Work:
    """Forward: two products of queries x keys x head size. Backward: five such products (the scores are recomputed)."""
    backward = "backward" in name
    q, k, v = tensors[1:4] if backward and len(tensors) > 3 else (tensors + tensors[:1] * 3)[:3]
    if len(q.size) != 4 or len(k.size) != 4 or len(v.size) != 4:
        return UNKNOWN
    product = 2.0 * q.elements * k.size[2]  # q: batch, heads, queries, head size; one product with every key
    half = 0.5 if "True" in args.values[:9] and q.size[2] > 1 else 1.0
    moved = q.bytes + k.bytes + v.bytes
    if backward:
        return Work(5 * product * half, 2 * moved + 2 * q.bytes)
    return Work(2 * product * half, moved + q.bytes)


def _lookup(name: str, tensors: list[Tensor]) -> Work:
    """Bytes of the rows read and written, and of the indices. The rest of the table does not move."""
    table, others = tensors[0], tensors[1:]
    indices = [tensor for tensor in others if tensor.item_bytes in (4, 8)]
    if not others or not indices:
        return UNKNOWN
    if "backward" in name or "put" in name or "add" in name or "scatter" in name:
        values = max(tensors, key=lambda tensor: tensor.elements) if "backward" in name else tensors[-1]
        return Work(float(values.elements), 3 * values.bytes + indices[0].bytes)  # read the gradient; read and write the rows
    row = table.size[-1] if len(table.size) > 1 else 1
    picked = indices[0].elements * row
    return Work(float(picked) if "bag" in name else 0.0, 2.0 * picked * table.item_bytes + indices[0].bytes)


def _pointwise(name: str, tensors: list[Tensor]) -> Work:
    if name in _WRITE_ONLY:
        return Work(0.0, tensors[0].bytes)
    read = sum(tensor.bytes for tensor in tensors)
    if name == "copy_":
        return Work(0.0, read)  # its first argument is written and not read
    largest = max(tensors, key=lambda tensor: tensor.elements)
    written = tensors[0].bytes if name.endswith("_") else float(largest.elements * largest.item_bytes)
    return Work(float(largest.elements), read + written)


def _normalization(tensors: list[Tensor]) -> Work:
    largest = max(tensors, key=lambda tensor: tensor.elements)
    return Work(float(largest.elements), sum(tensor.bytes for tensor in tensors) + largest.bytes)


def _reduction(name: str, tensors: list[Tensor]) -> Work:
    largest = max(tensors, key=lambda tensor: tensor.elements)
    same_size_out = "softmax" in name or "backward" in name or "cumsum" in name or "sort" in name
    return Work(float(largest.elements), sum(tensor.bytes for tensor in tensors) + (largest.bytes if same_size_out else 0.0))


def _numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.strip("[]").split(",")]
    return [int(part) for part in parts if part.lstrip("-").isdigit()] if all(part.lstrip("-").isdigit() for part in parts) else []
