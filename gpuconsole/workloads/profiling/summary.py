"""From a trace to a report: kernels of a GPU, or operators of a CPU by their own time, with FLOPs
and bytes from the shapes of a call.

This module does not import torch.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from gpuconsole.model.profile import (
    OP_CLASSES,
    CopyKind,
    Gap,
    OpClass,
    OpClassName,
    ProfileReport,
    TopOp,
)
from gpuconsole.workloads.profiling import trace
from gpuconsole.workloads.profiling.trace import (
    NAME,
    Args,
    TraceError,
    TraceEvent,
    class_of_kernel,
    class_of_op,
    on_tensor_cores,
)

# --- from a trace to a report ---------------------------------------------------------------------

TOP = 20
GAPS = 5
STEP = "ProfilerStep#"
OPTIMIZER = "Optimizer.step#"
BESIDE_PASSES = (OPTIMIZER, "Optimizer.zero_grad#", "enumerate(DataLoader)#")
"""Annotations of torch around work that belongs to no forward or backward pass."""
GPU_CLOCK = "kernels and copies on the GPU clock (CUPTI)"
CPU_CLOCK = "operators by their own time on the host clock, with profiling overhead"
NO_TENSOR_CORES = "the device is a CPU"
COMMUNICATION_NOTE = (
    "communication includes the wait for other processes and time that overlaps with other work"
)
NOT_RECORDED = (
    "the trace has no GPU kernel: CUPTI recorded nothing, possibly because another profiler (nsys,"
    " ncu) uses it"
)
NO_KERNELS = "no kernel ran in the window"
_COPY = re.compile(r"Memcpy (HtoD|DtoH|DtoD|PtoP|HtoH) \((\w+) -> (\w+)\)")


class Piece(NamedTuple):
    """One kernel, copy or operator with its own time. `computes`: counted as a kernel, not as
    dispatch. `in_passes`: it belongs to a forward or backward pass. `launched_by`: the operator
    that launched a kernel. `args`: what CUPTI says of the kernel."""

    name: str
    op_class: OpClassName
    start: float
    own: float
    work: OperatorWork
    computes: bool
    in_passes: bool
    launched_by: str = ""
    args: Args = Args()


class Update(msgspec.Struct, frozen=True):
    """Minimum bytes of one optimizer step: parameters, gradients and states are read; parameters
    and states are written."""

    elements: float = 0.0
    bytes: float = 0.0


class _OperatorSpan(msgspec.Struct):
    """An operator whose child operators are still being read."""

    event: TraceEvent
    op_class: OpClassName
    own: float
    optimizer: bool
    beside_passes: bool
    wraps: bool = False


def summarize(
    events: list[TraceEvent],
    update: Update = Update(),  # noqa: B008 (frozen)
    steps: int = 0,
    gpu: bool = False,
) -> ProfileReport:
    """The report on the steps of a trace. Raises TraceError.

    `steps`: number of steps if the trace does not mark them (passes of a probe). `gpu`: the work
    ran on a GPU, so a trace without kernels is an error.
    """
    start, end, marked = _window(events)
    on_gpu = [event for event in events if event.cat in trace.ON_GPU and event.end > start]
    if gpu and not on_gpu:
        raise TraceError(NOT_RECORDED)
    spans = _operators([event for event in events if event.cat in (trace.OP, trace.ANNOTATION)])
    if on_gpu:
        end = max(end, max(event.end for event in on_gpu))
        pieces, busy = (
            _kernels(on_gpu, spans),
            [(event.ts, event.end, event.name) for event in on_gpu],
        )
    else:
        pieces = [
            _piece(span)
            for span in spans
            if span.event.cat == trace.OP or span.op_class in ("fused", "communication")
        ]
        busy = [
            (span.event.ts, span.event.end, span.event.name)
            for span in spans
            if span.event.cat == trace.OP
        ]
        pieces = [piece for piece in pieces if start <= piece.start <= end]
        busy = [span_times for span_times in busy if start <= span_times[0] <= end]
    if not pieces or end <= start:
        raise TraceError("the trace holds no operator and no kernel")
    steps = marked or steps
    wall = end - start
    gaps, idle = _gaps(busy, start, end)
    counted = [piece for piece in pieces if piece.computes]
    ratio, note = _tensor_cores(pieces) if on_gpu else (None, NO_TENSOR_CORES)
    return ProfileReport(
        steps=steps,
        wall_s=wall * 1e-6,
        clock=GPU_CLOCK if on_gpu else CPU_CLOCK,
        busy_s=(wall - idle) * 1e-6,
        busy_ratio=(wall - idle) / wall,
        kernels=len(counted),
        kernels_per_s=len(counted) / (wall * 1e-6),
        mean_kernel_s=sum(piece.own for piece in counted) / len(counted) * 1e-6
        if counted
        else None,
        classes=_classes(pieces, update, steps),
        top=_top(pieces),
        tensor_core_ratio=ratio,
        tensor_core_note=note,
        copies=_copies(on_gpu),
        gaps=gaps,
        notes=[COMMUNICATION_NOTE]
        if any(piece.op_class == "communication" for piece in pieces)
        else [],
        pass_classes=_classes([piece for piece in pieces if piece.in_passes], Update(), steps),
        stalls=trace.stalls(events) if on_gpu else None,
        attention=_implementations(spans, start, end),
    )


def _window(events: list[TraceEvent]) -> tuple[float, float, int]:
    """Start, end and number of the steps; of all operators where no step is marked."""
    steps = [
        event for event in events if event.cat == trace.ANNOTATION and event.name.startswith(STEP)
    ]
    spans = steps or [event for event in events if event.cat in (trace.OP, *trace.ON_GPU)]
    if not spans:
        raise TraceError("the trace holds no operator and no kernel")
    return min(span.ts for span in spans), max(span.end for span in spans), len(steps)


def _operators(events: Iterable[TraceEvent]) -> list[_OperatorSpan]:
    """Every operator and annotation with its time minus the time of its children, per thread."""
    done: list[_OperatorSpan] = []
    stacks: dict[int | str, list[_OperatorSpan]] = defaultdict(list)
    for event in sorted(events, key=lambda event: (event.ts, -event.dur)):
        stack = stacks[event.tid]
        while stack and stack[-1].event.end <= event.ts:
            stack.pop()
        op_class = class_of_op(event.name)
        parent = stack[-1] if stack else None
        optimizer = event.name.startswith(OPTIMIZER) or (parent is not None and parent.optimizer)
        beside_passes = event.name.startswith(BESIDE_PASSES) or (
            parent is not None and parent.beside_passes
        )
        span = _OperatorSpan(event, op_class, event.dur, optimizer, beside_passes)
        if parent is not None:
            parent.own -= min(event.dur, parent.event.end - event.ts)
        # an operator that calls an operator of the same class is dispatch: linear around addmm
        for outer in stack:
            outer.wraps = outer.wraps or (op_class != "other" and outer.op_class == op_class)
        stack.append(span)
        done.append(span)
    return done


def _piece(span: _OperatorSpan) -> Piece:
    """A CPU operator."""
    event = span.event
    own_class: OpClassName = "other" if span.wraps else span.op_class
    op_class: OpClassName = "optimizer" if span.optimizer else own_class
    name = "code generated by torch.compile" if own_class == "fused" else event.name
    work = (
        work_of(event.name, own_class, event.args)
        if own_class not in ("other", "optimizer")
        else UNKNOWN
    )
    return Piece(
        name,
        op_class,
        event.ts,
        max(0.0, span.own),
        work,
        own_class != "other",
        not span.beside_passes,
    )


def _kernels(events: list[TraceEvent], spans: list[_OperatorSpan]) -> list[Piece]:
    """GPU kernels and copies, classified by their own name, otherwise by the operator that launched
    them."""
    launchers = {
        span.event.args.op: span
        for span in spans
        if span.event.cat == trace.OP and span.event.args.op
    }
    longest: dict[int, TraceEvent] = {}
    for event in events:
        op = event.args.op
        if op in launchers and (op not in longest or event.dur > longest[op].dur):
            longest[op] = event
    return [
        _kernel(event, launchers.get(event.args.op), longest.get(event.args.op) is event)
        for event in events
    ]


def _kernel(event: TraceEvent, launcher: _OperatorSpan | None, carries: bool) -> Piece:
    """One kernel. If one operator launched several kernels, the longest kernel gets all FLOPs and
    bytes of the operator."""
    if event.cat != trace.KERNEL:
        within = event.cat == trace.MEMSET or "DtoD" in event.name
        in_passes = within and (launcher is None or not launcher.beside_passes)
        return Piece(
            event.name,
            "copy",
            event.ts,
            event.dur,
            OperatorWork(0.0, _copied(event)),
            True,
            in_passes,
        )
    op_class, work = class_of_kernel(event.name), UNKNOWN
    if launcher is not None:
        if launcher.optimizer:
            op_class = "optimizer"
        elif op_class == "other" and launcher.op_class != "fused":
            op_class = launcher.op_class
        if op_class != "optimizer" and launcher.op_class in (op_class, "other"):
            work = work_of(launcher.event.name, op_class, launcher.event.args)
            if not carries and work.bytes is not None:
                work = OperatorWork(0.0, 0.0)
    in_passes = op_class != "optimizer" and (launcher is None or not launcher.beside_passes)
    launched_by = launcher.event.name if launcher is not None else ""
    return Piece(
        event.name, op_class, event.ts, event.dur, work, True, in_passes, launched_by, event.args
    )


def _copied(event: TraceEvent) -> float:
    """Bytes that a copy moves. A copy within the device reads and writes each byte."""
    return event.args.bytes * (2 if "DtoD" in event.name else 1)


def _classes(pieces: list[Piece], update: Update, steps: int) -> list[OpClass]:
    """The classes in the trace, the largest share first."""
    total = sum(piece.own for piece in pieces)
    by_class: dict[OpClassName, list[Piece]] = {name: [] for name in OP_CLASSES}
    for piece in pieces:
        by_class[piece.op_class].append(piece)
    classes = [_class(name, members, total) for name, members in by_class.items() if members]
    classes = [
        _with_update(op_class, update, steps)
        if op_class.name == "optimizer" and update.bytes
        else op_class
        for op_class in classes
    ]
    return sorted(classes, key=lambda op_class: -op_class.share_ratio)


def _class(name: OpClassName, members: list[Piece], total: float) -> OpClass:
    own = sum(piece.own for piece in members)
    counted = [
        piece for piece in members if piece.work.flops is not None and piece.work.bytes is not None
    ]
    return OpClass(
        name=name,
        share_ratio=own / total if total else 0.0,
        time_s=own * 1e-6,
        calls=sum(piece.computes for piece in members) or len(members),
        flops=sum(piece.work.flops or 0.0 for piece in counted) if counted else None,
        bytes=sum(piece.work.bytes or 0.0 for piece in counted) if counted else None,
        counted_s=sum(piece.own for piece in counted) * 1e-6,
    )


def _with_update(optimizer: OpClass, update: Update, steps: int) -> OpClass:
    """Set the optimizer's bytes from its states, because the trace has no shapes for lists of
    tensors."""
    return msgspec.structs.replace(
        optimizer,
        flops=update.elements * steps,
        bytes=update.bytes * steps,
        counted_s=optimizer.time_s,
    )


def _top(pieces: list[Piece]) -> list[TopOp]:
    total = sum(piece.own for piece in pieces)
    grouped: dict[tuple[str, OpClassName], list[Piece]] = defaultdict(list)
    for piece in pieces:
        grouped[piece.name[:NAME], piece.op_class].append(piece)
    longest = sorted(grouped.items(), key=lambda item: -sum(piece.own for piece in item[1]))[:TOP]
    return [_of_name(name, op_class, members, total) for (name, op_class), members in longest]


def _of_name(name: str, op_class: OpClassName, members: list[Piece], total: float) -> TopOp:
    """The calls of one kernel."""
    work = _class(op_class, members, total)
    launchers = Counter(piece.launched_by for piece in members if piece.launched_by)
    blocks = [piece.args.blocks_per_sm for piece in members if piece.args.blocks_per_sm is not None]
    occupancy = [piece.args.occupancy for piece in members if piece.args.occupancy is not None]
    return TopOp(
        name,
        op_class,
        work.time_s,
        work.share_ratio,
        len(members),
        work.flops,
        work.bytes,
        work.counted_s,
        launchers.most_common(1)[0][0] if launchers else "",
        statistics.fmean(blocks) if blocks else None,
        statistics.fmean(occupancy) / 100 if occupancy else None,
    )


ATTENTION = {
    "_scaled_dot_product_flash_attention": "flash",
    "_scaled_dot_product_efficient_attention": "memory-efficient",
    "_scaled_dot_product_cudnn_attention": "cuDNN",
    "_scaled_dot_product_attention_math": "math, without a fused kernel",
    "_scaled_dot_product_flash_attention_for_cpu": "flash for the CPU",
    "flex_attention": "flex",
}
"""The implementations of torch's attention by the operator that each of them calls."""


def _implementations(spans: Iterable[_OperatorSpan], start: float, end: float) -> list[str]:
    """The implementations of attention that ran in the window, the most frequent first."""
    names = (span.event.name.rpartition("::")[2] for span in spans if start <= span.event.ts <= end)
    return [
        name
        for name, _ in Counter(ATTENTION[name] for name in names if name in ATTENTION).most_common()
    ]


def _tensor_cores(pieces: list[Piece]) -> tuple[float | None, str]:
    """The share of kernel time in tensor core kernels, by their names. It is not the activity of
    the tensor cores."""
    kernels = [piece for piece in pieces if not piece.name.startswith(("Memcpy", "Memset"))]
    total = sum(piece.own for piece in kernels)
    if not total:
        return None, NO_KERNELS
    return sum(
        piece.own for piece in kernels if on_tensor_cores(piece.name)
    ) / total, "share of kernel time in tensor core kernels, by name"


def _copies(events: list[TraceEvent]) -> list[CopyKind]:
    grouped: dict[tuple[str, str], list[TraceEvent]] = defaultdict(list)
    for event in events:
        match = _COPY.match(event.name) if event.cat == trace.MEMCPY else None
        if match is None:
            continue
        kind = match[1].replace("to", "2").upper()
        host = match[2] if kind.startswith("H") else match[3] if kind.endswith("H") else ""
        grouped[kind, host.lower()].append(event)
    copies = [
        CopyKind(
            kind,
            memory,
            len(group),
            sum(event.args.bytes for event in group),
            sum(event.dur for event in group) * 1e-6,
        )
        for (kind, memory), group in grouped.items()
    ]
    return sorted(copies, key=lambda copy: -copy.time_s)


def _gaps(
    busy: list[tuple[float, float, str]], start: float, end: float
) -> tuple[list[Gap], float]:
    """The longest idle times, and the sum of all idle times, in µs."""
    gaps: list[Gap] = []
    idle, reached, last = 0.0, start, "the window's begin"
    for begin, finish, name in [*sorted(busy), (end, math.inf, "the window's end")]:
        if begin > reached:
            idle += begin - reached
            gaps.append(
                Gap((reached - start) * 1e-6, (begin - reached) * 1e-6, last[:NAME], name[:NAME])
            )
        if finish > reached:
            reached, last = finish, name
    return sorted(gaps, key=lambda gap: -gap.duration_s)[:GAPS], idle


# --- FLOPs and bytes of one operator call, from the shapes in the trace ---------------------------

_ITEM_BYTES = {
    "double": 8, "long int": 8, "c10::complex<float>": 8, "float": 4, "int": 4, "c10::Half": 2,
    "c10::BFloat16": 2, "short": 2, "short int": 2, "signed char": 1, "unsigned char": 1,
    "bool": 1, "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1,
}  # fmt: skip
_WRITE_ONLY = ("fill_", "zero_", "bernoulli_", "arange")


class TensorArgument(NamedTuple):
    """A tensor argument. `stored` is the number of elements in memory; it is smaller than the
    product of `size` for an expanded tensor."""

    size: tuple[int, ...]
    stored: int
    item_bytes: int

    @property
    def elements(self) -> int:
        return math.prod(self.size)

    @property
    def bytes(self) -> float:
        return float(self.stored * self.item_bytes)


class OperatorWork(NamedTuple):
    flops: float | None
    bytes: float | None


UNKNOWN = OperatorWork(None, None)


def work_of(op: str, op_class: OpClassName, args: Args) -> OperatorWork:
    """FLOPs and bytes of the operator `op` (its name in the trace) with these arguments."""
    name = op.rpartition("::")[2]
    tensors = _tensors(args)
    if not tensors:
        return UNKNOWN
    if name.startswith("triton_"):  # its arguments are both inputs and outputs
        return OperatorWork(
            float(max(tensor.elements for tensor in tensors)),
            sum(tensor.bytes for tensor in tensors),
        )
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
            return OperatorWork(0.0, _pointwise(name, tensors).bytes)
        case "elementwise":
            return _pointwise(name, tensors)
        case "normalization":
            return _normalization(tensors)
        case "reduction":
            return _reduction(name, tensors)
    return UNKNOWN


def _tensors(args: Args) -> list[TensorArgument]:
    """Return the tensor arguments. Return none if an argument is a list of tensors: the trace does
    not record the sizes of all tensors in a list."""
    if "TensorList" in args.types:
        return []
    arguments = zip(args.types, args.dims, args.strides or [[]] * len(args.dims), strict=False)
    return [
        _tensor(size, strides, _ITEM_BYTES[kind])
        for kind, size, strides in arguments
        if kind in _ITEM_BYTES
    ]


def _tensor(size: Any, strides: Any, item_bytes: int) -> TensorArgument:
    sizes = tuple(int(n) for n in size)
    stored = (
        math.prod(n for n, stride in zip(sizes, strides, strict=True) if stride)
        if len(strides) == len(sizes)
        else math.prod(sizes)
    )
    return TensorArgument(sizes, stored, item_bytes)


def _gemm(name: str, tensors: list[TensorArgument]) -> OperatorWork:
    matrices = [tensor for tensor in tensors if len(tensor.size) >= 2]
    if len(matrices) < 2 and name not in ("mv", "addmv", "dot", "vdot"):
        return UNKNOWN
    # addmm and similar operators take the addend first, then the two factors, and possibly an
    # `out`.
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
    return OperatorWork(
        2.0 * out * k, sum(tensor.bytes for tensor in tensors[: first + 2]) + out * a.item_bytes
    )


def _convolution(name: str, tensors: list[TensorArgument], args: Args) -> OperatorWork:
    """Forward: 2 x outputs x weights per output channel. Backward: the same for each requested
    gradient (input, weights)."""
    if "backward" in name:
        if len(tensors) < 3:
            return UNKNOWN
        out, source, weight = tensors[0].size, tensors[1], tensors[2]
        wanted = next((value for value in reversed(args.values) if "True" in value), "[True, True]")
        passes = wanted.split(",")[:2]
        factor = sum("True" in gradient for gradient in passes)
    elif len(tensors) >= 2 and len(tensors[1].size) == len(tensors[0].size) >= 3:
        source, weight, factor = tensors[0], tensors[1], 1
        out = _convolved(name, source.size, weight.size, args)
    else:
        return UNKNOWN
    if not out:
        return UNKNOWN
    elements = math.prod(out)
    flops = 2.0 * elements * weight.elements / max(1, weight.size[0])
    return OperatorWork(
        factor * flops, factor * (source.bytes + weight.bytes + elements * source.item_bytes)
    )


def _convolved(
    name: str, source: tuple[int, ...], weight: tuple[int, ...], args: Args
) -> tuple[int, ...]:
    """The size of the output; empty where the arguments do not determine it."""
    lists = [_numbers(value) for value in args.values if value.startswith("[")]
    if len(lists) < 3 or not all(lists[:3]):
        return ()
    first, second, dilation = lists[:3]
    # the general operator takes stride, padding, dilation; the operators of cuDNN, MIOpen and
    # oneDNN take padding, stride, dilation
    stride, padding = (
        (second, first) if name.startswith(("cudnn_", "miopen_", "mkldnn_")) else (first, second)
    )
    spatial = []
    for n, (size, kernel) in enumerate(zip(source[2:], weight[2:], strict=True)):
        s, p, d = (numbers[min(n, len(numbers) - 1)] for numbers in (stride, padding, dilation))
        spatial.append((size + 2 * p - d * (kernel - 1) - 1) // max(1, s) + 1)
    return (source[0], weight[0], *spatial)


def _attention(name: str, tensors: list[TensorArgument], args: Args) -> OperatorWork:
    """Forward: two products of queries x keys x head size. Backward: five such products (the scores
    are recomputed)."""
    backward = "backward" in name
    q, k, v = tensors[1:4] if backward and len(tensors) > 3 else (tensors + tensors[:1] * 3)[:3]
    if len(q.size) != 4 or len(k.size) != 4 or len(v.size) != 4:
        return UNKNOWN
    # q: batch, heads, queries, head size; one product with every key
    product = 2.0 * q.elements * k.size[2]
    half = 0.5 if "True" in args.values[:9] and q.size[2] > 1 else 1.0
    moved = q.bytes + k.bytes + v.bytes
    if backward:
        return OperatorWork(5 * product * half, 2 * moved + 2 * q.bytes)
    return OperatorWork(2 * product * half, moved + q.bytes)


def _lookup(name: str, tensors: list[TensorArgument]) -> OperatorWork:
    """Bytes of the rows read and written, and of the indices. The rest of the table does not
    move."""
    table, others = tensors[0], tensors[1:]
    indices = [tensor for tensor in others if tensor.item_bytes in (4, 8)]
    if not others or not indices:
        return UNKNOWN
    if "backward" in name or "put" in name or "add" in name or "scatter" in name:
        values = (
            max(tensors, key=lambda tensor: tensor.elements) if "backward" in name else tensors[-1]
        )
        # read the gradient; read and write the rows
        return OperatorWork(float(values.elements), 3 * values.bytes + indices[0].bytes)
    row = table.size[-1] if len(table.size) > 1 else 1
    picked = indices[0].elements * row
    return OperatorWork(
        float(picked) if "bag" in name else 0.0, 2.0 * picked * table.item_bytes + indices[0].bytes
    )


def _pointwise(name: str, tensors: list[TensorArgument]) -> OperatorWork:
    if name in _WRITE_ONLY:
        return OperatorWork(0.0, tensors[0].bytes)
    read = sum(tensor.bytes for tensor in tensors)
    if name == "copy_":
        return OperatorWork(0.0, read)  # its first argument is written and not read
    largest = max(tensors, key=lambda tensor: tensor.elements)
    written = (
        tensors[0].bytes if name.endswith("_") else float(largest.elements * largest.item_bytes)
    )
    return OperatorWork(float(largest.elements), read + written)


def _normalization(tensors: list[TensorArgument]) -> OperatorWork:
    largest = max(tensors, key=lambda tensor: tensor.elements)
    return OperatorWork(
        float(largest.elements), sum(tensor.bytes for tensor in tensors) + largest.bytes
    )


def _reduction(name: str, tensors: list[TensorArgument]) -> OperatorWork:
    largest = max(tensors, key=lambda tensor: tensor.elements)
    same_size_out = "softmax" in name or "backward" in name or "cumsum" in name or "sort" in name
    return OperatorWork(
        float(largest.elements),
        sum(tensor.bytes for tensor in tensors) + (largest.bytes if same_size_out else 0.0),
    )


def _numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.strip("[]").split(",")]
    return (
        [int(part) for part in parts if part.lstrip("-").isdigit()]
        if all(part.lstrip("-").isdigit() for part in parts)
        else []
    )
