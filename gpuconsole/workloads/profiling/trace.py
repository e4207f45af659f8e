"""A trace of torch.profiler (Chrome's JSON, written by Kineto): the fields that gpuconsole reads. This module does not import torch."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import msgspec

OP, ANNOTATION = "cpu_op", "user_annotation"
KERNEL, MEMCPY, MEMSET = "kernel", "gpu_memcpy", "gpu_memset"
ON_GPU = (KERNEL, MEMCPY, MEMSET)


class Args(msgspec.Struct, frozen=True, gc=False):
    """Shapes are lists of sizes, one per argument. For a list of tensors: a list of such lists, or nothing if the list was long."""

    dims: list[Any] = msgspec.field(name="Input Dims", default_factory=list)
    strides: list[Any] = msgspec.field(name="Input Strides", default_factory=list)
    types: list[str] = msgspec.field(name="Input type", default_factory=list)
    values: list[str] = msgspec.field(name="Concrete Inputs", default_factory=list)
    op: int = msgspec.field(name="External id", default=0)
    bytes: float = 0.0


class TraceEvent(msgspec.Struct, frozen=True, gc=False):
    """One span; `ts` and `dur` are microseconds. On a GPU `tid` is the stream."""

    ph: str
    name: str = ""
    cat: str = ""
    ts: float = 0.0
    dur: float = 0.0
    tid: int | str = 0
    args: Args = Args()

    @property
    def end(self) -> float:
        return self.ts + self.dur


class _Trace(msgspec.Struct):
    events: list[TraceEvent] = msgspec.field(name="traceEvents")


class TraceError(ValueError):
    """A file that is not a readable trace; the message is one line."""


def read_trace(path: Path) -> list[TraceEvent]:
    """The spans of a trace, plain or gzipped. Raises TraceError, OSError."""
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    try:
        # Kineto copies names unchanged: the name of a kernel or a path may not be UTF-8
        return [event for event in msgspec.json.decode(data, type=_Trace).events if event.ph == "X"]
    except (msgspec.DecodeError, RecursionError) as error:
        raise TraceError(f"not a profiler trace: {error}") from None
