"""From a trace to a report: kernels of a GPU, or operators of a CPU by their own time. This module does not import torch."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from gpuconsole.model.profile import OP_CLASSES, CopyKind, Gap, OpClass, OpClassName, ProfileReport, TopOp
from gpuconsole.workloads.profiling import trace
from gpuconsole.workloads.profiling.classes import class_of_kernel, class_of_op, on_tensor_cores
from gpuconsole.workloads.profiling.shapes import UNKNOWN, Work, work_of
from gpuconsole.workloads.profiling.trace import TraceError, TraceEvent

TOP = 20
GAPS = 5
NAME = 160
STEP = "ProfilerStep#"
OPTIMIZER = "Optimizer.step#"
GPU_CLOCK = "kernels and copies on the GPU clock (CUPTI)"
CPU_CLOCK = "operators by their own time on the host clock, with profiling overhead"
NO_TENSOR_CORES = "the device is a CPU"
COMMUNICATION_NOTE = "communication includes the wait for other processes and time that overlaps with other work"
NOT_RECORDED = "the trace has no GPU kernel: CUPTI recorded nothing, possibly because another profiler (nsys, ncu) uses it"
NO_KERNELS = "no kernel ran in the window"
_COPY = re.compile(r"Memcpy (HtoD|DtoH|DtoD|PtoP|HtoH) \((\w+) -> (\w+)\)")


class Piece(NamedTuple):
    """One kernel, copy or operator with its own time. `computes`: counted as a kernel, not as dispatch."""

    name: str
    op_class: OpClassName
    start: float
    own: float
    work: Work
    computes: bool


class Update(msgspec.Struct, frozen=True):
    """Minimum bytes of one optimizer step: parameters, gradients and states are read; parameters and states are written."""

    elements: float = 0.0
    bytes: float = 0.0


class _Span(msgspec.Struct):
    """An operator whose child operators are still being read."""

    event: TraceEvent
    op_class: OpClassName
    own: float
    optimizer: bool
    wraps: bool = False


def summarize(events: list[TraceEvent], update: Update = Update(), steps: int = 0, gpu: bool = False) -> ProfileReport:  # noqa: B008 (frozen)
    """The report on the steps of a trace. Raises TraceError.

    `steps`: number of steps if the trace does not mark them (passes of a probe). `gpu`: the work ran on a GPU, so a trace without kernels is an error.
    """
    start, end, marked = _window(events)
    on_gpu = [event for event in events if event.cat in trace.ON_GPU and event.end > start]
    if gpu and not on_gpu:
        raise TraceError(NOT_RECORDED)
    spans = _operators([event for event in events if event.cat in (trace.OP, trace.ANNOTATION)])
    if on_gpu:
        end = max(end, max(event.end for event in on_gpu))
        pieces, busy = _kernels(on_gpu, spans), [(event.ts, event.end, event.name) for event in on_gpu]
    else:
        pieces = [_piece(span) for span in spans if span.event.cat == trace.OP or span.op_class in ("fused", "communication")]
        busy = [(span.event.ts, span.event.end, span.event.name) for span in spans if span.event.cat == trace.OP]
        pieces = [piece for piece in pieces if start <= piece.start <= end]
        busy = [one for one in busy if start <= one[0] <= end]
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
        mean_kernel_s=sum(piece.own for piece in counted) / len(counted) * 1e-6 if counted else None,
        classes=_classes(pieces, update, steps),
        top=_top(pieces),
        tensor_core_ratio=ratio,
        tensor_core_note=note,
        copies=_copies(on_gpu),
        gaps=gaps,
        notes=[COMMUNICATION_NOTE] if any(piece.op_class == "communication" for piece in pieces) else [],
    )


def _window(events: list[TraceEvent]) -> tuple[float, float, int]:
    """Start, end and number of the steps; of all operators where no step is marked."""
    steps = [event for event in events if event.cat == trace.ANNOTATION and event.name.startswith(STEP)]
    spans = steps or [event for event in events if event.cat in (trace.OP, *trace.ON_GPU)]
    if not spans:
        raise TraceError("the trace holds no operator and no kernel")
    return min(span.ts for span in spans), max(span.end for span in spans), len(steps)


def _operators(events: Iterable[TraceEvent]) -> list[_Span]:
    """Every operator and annotation with its time minus the time of its children, per thread."""
    done: list[_Span] = []
    stacks: dict[int | str, list[_Span]] = defaultdict(list)
    for event in sorted(events, key=lambda event: (event.ts, -event.dur)):
        stack = stacks[event.tid]
        while stack and stack[-1].event.end <= event.ts:
            stack.pop()
        op_class = class_of_op(event.name)
        parent = stack[-1] if stack else None
        span = _Span(event, op_class, event.dur, event.name.startswith(OPTIMIZER) or (parent is not None and parent.optimizer))
        if parent is not None:
            parent.own -= min(event.dur, parent.event.end - event.ts)
        for outer in stack:  # an operator that calls an operator of the same class is dispatch: linear around addmm
            outer.wraps = outer.wraps or (op_class != "other" and outer.op_class == op_class)
        stack.append(span)
        done.append(span)
    return done


def _piece(span: _Span) -> Piece:
    """A CPU operator."""
    event = span.event
    own_class: OpClassName = "other" if span.wraps else span.op_class
    op_class: OpClassName = "optimizer" if span.optimizer else own_class
    name = "code generated by torch.compile" if own_class == "fused" else event.name
    work = work_of(event.name, own_class, event.args) if own_class not in ("other", "optimizer") else UNKNOWN
    return Piece(name, op_class, event.ts, max(0.0, span.own), work, own_class != "other")


def _kernels(events: list[TraceEvent], spans: list[_Span]) -> list[Piece]:
    """GPU kernels and copies, classified by their own name, otherwise by the operator that launched them."""
    launchers = {span.event.args.op: span for span in spans if span.event.cat == trace.OP and span.event.args.op}
    longest: dict[int, TraceEvent] = {}
    for event in events:
        op = event.args.op
        if op in launchers and (op not in longest or event.dur > longest[op].dur):
            longest[op] = event
    return [_kernel(event, launchers.get(event.args.op), longest.get(event.args.op) is event) for event in events]


def _kernel(event: TraceEvent, launcher: _Span | None, carries: bool) -> Piece:
    """One kernel. If one operator launched several kernels, the longest kernel gets all FLOPs and bytes of the operator."""
    if event.cat != trace.KERNEL:
        return Piece(event.name, "copy", event.ts, event.dur, Work(0.0, _copied(event)), True)
    op_class, work = class_of_kernel(event.name), UNKNOWN
    if launcher is not None:
        if launcher.optimizer:
            op_class = "optimizer"
        elif op_class == "other" and launcher.op_class != "fused":
            op_class = launcher.op_class
        if op_class != "optimizer" and launcher.op_class in (op_class, "other"):
            work = work_of(launcher.event.name, op_class, launcher.event.args)
            if not carries and work.bytes is not None:
                work = Work(0.0, 0.0)
    return Piece(event.name, op_class, event.ts, event.dur, work, True)


def _copied(event: TraceEvent) -> float:
    """Bytes that a copy moves. A copy within the device reads and writes each byte."""
    return event.args.bytes * (2 if "DtoD" in event.name else 1)


def _classes(pieces: list[Piece], update: Update, steps: int) -> list[OpClass]:
    """The classes in the trace, the largest share first."""
    total = sum(piece.own for piece in pieces)
    by_class: dict[OpClassName, list[Piece]] = {name: [] for name in OP_CLASSES}
    for piece in pieces:
        by_class[piece.op_class].append(piece)
    found = [_class(name, members, total) for name, members in by_class.items() if members]
    found = [_with_update(one, update, steps) if one.name == "optimizer" and update.bytes else one for one in found]
    return sorted(found, key=lambda one: -one.share_ratio)


def _class(name: OpClassName, members: list[Piece], total: float) -> OpClass:
    own = sum(piece.own for piece in members)
    known = [piece for piece in members if piece.work.flops is not None and piece.work.bytes is not None]
    return OpClass(
        name=name,
        share_ratio=own / total if total else 0.0,
        time_s=own * 1e-6,
        calls=sum(piece.computes for piece in members) or len(members),
        flops=sum(piece.work.flops or 0.0 for piece in known) if known else None,
        bytes=sum(piece.work.bytes or 0.0 for piece in known) if known else None,
        counted_s=sum(piece.own for piece in known) * 1e-6,
    )


def _with_update(optimizer: OpClass, update: Update, steps: int) -> OpClass:
    """Set the optimizer's bytes from its states, because the trace has no shapes for lists of tensors."""
    return msgspec.structs.replace(optimizer, flops=update.elements * steps, bytes=update.bytes * steps, counted_s=optimizer.time_s)


def _top(pieces: list[Piece]) -> list[TopOp]:
    total = sum(piece.own for piece in pieces)
    grouped: dict[tuple[str, OpClassName], list[float]] = defaultdict(list)
    for piece in pieces:
        grouped[piece.name[:NAME], piece.op_class].append(piece.own)
    found = [TopOp(name, op_class, sum(times) * 1e-6, sum(times) / total, len(times)) for (name, op_class), times in grouped.items()]
    return sorted(found, key=lambda one: -one.time_s)[:TOP]


def _tensor_cores(pieces: list[Piece]) -> tuple[float | None, str]:
    """The share of kernel time in tensor core kernels, by their names. It is not the activity of the tensor cores."""
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
    found = [
        CopyKind(kind, memory, len(group), sum(event.args.bytes for event in group), sum(event.dur for event in group) * 1e-6)
        for (kind, memory), group in grouped.items()
    ]
    return sorted(found, key=lambda one: -one.time_s)


def _gaps(busy: list[tuple[float, float, str]], start: float, end: float) -> tuple[list[Gap], float]:
    """The longest idle times, and the sum of all idle times, in µs."""
    found: list[Gap] = []
    idle, reached, last = 0.0, start, "the window's begin"
    for begin, finish, name in [*sorted(busy), (end, math.inf, "the window's end")]:
        if begin > reached:
            idle += begin - reached
            found.append(Gap((reached - start) * 1e-6, (begin - reached) * 1e-6, last[:NAME], name[:NAME]))
        if finish > reached:
            reached, last = finish, name
    return sorted(found, key=lambda gap: -gap.duration_s)[:GAPS], idle
