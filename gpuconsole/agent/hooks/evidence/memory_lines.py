"""With consent: torch's own history of allocations, and from it the lines of the program that own
GPU memory.

torch notes the Python stack of each allocation, and keeps the last ENTRIES allocations and frees in
a ring (`torch.cuda.memory._snapshot` describes the format). A snapshot has the blocks that live
now. The allocations and frees since a past moment, undone backwards, give the blocks of that
moment: that of the largest allocation, or that of an allocation that failed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..guard import from_outside

ENTRIES = 50_000
"""Allocations and frees that are kept. By torch's documentation an entry with a stack takes several
KB of host memory; entries of frees have none."""
LINES = 10
NO_LINE = "no line of the program: the backward pass, and work of libraries"
BEFORE = "allocated before the history began, or before the oldest entry that it keeps"
CONSENT_FILE = "memory"
"""A file in the folder of the job: the user has agreed."""


class Held(NamedTuple):
    """Bytes that one line of the program holds. `file` is empty for NO_LINE and BEFORE, which
    `function` holds then."""

    file: str
    line: int
    function: str
    bytes: float
    blocks: int


def owners_by_line(
    snapshot: Mapping[str, Any], device: int, failed: bool, is_program: Callable[[str], bool]
) -> tuple[list[Held], float]:
    """The LINES lines that hold most, the largest first, and all bytes that are held: at the
    largest allocation within the history; with `failed` at the last allocation that failed, or now
    where the history has none."""
    trace = _trace(snapshot, device)
    live = _live(snapshot, device)
    end = _failure(trace) if failed else _peak(trace, sum(size for size, _ in live.values()))
    _undo(live, trace, end)
    held: dict[tuple[str, int, str], list[float]] = {}
    for size, frames in live.values():
        line = _line(frames, is_program)
        total = held.setdefault(line, [0.0, 0])
        total[0] += size
        total[1] += 1
    rows = [Held(*line, size, int(blocks)) for line, (size, blocks) in held.items()]
    rows.sort(key=lambda row: -row.bytes)
    return rows[:LINES], float(sum(row.bytes for row in rows))


Block = tuple[float, "Sequence[Mapping[str, Any]] | None"]
"""Bytes of a block, and the stack that allocated it, the innermost frame first; None: it was
allocated before the history."""


def _trace(snapshot: Mapping[str, Any], device: int) -> list[Mapping[str, Any]]:
    """The allocations, the frees and the failures of one GPU, the oldest first."""
    traces = snapshot.get("device_traces") or []
    entries = traces[device] if device < len(traces) else []
    return [entry for entry in entries if entry["action"] in ("alloc", "free_completed", "oom")]


def _live(snapshot: Mapping[str, Any], device: int) -> dict[int, Block]:
    """The blocks in use now, by address."""
    blocks: dict[int, Block] = {}
    for segment in snapshot["segments"]:
        if segment.get("device", device) != device:
            continue
        address = segment["address"]
        for block in segment["blocks"]:
            start = block.get("address", address)
            if block["state"].startswith("active"):
                blocks[start] = (
                    float(block.get("requested_size", block["size"])),
                    block.get("frames") or None,
                )
            address = start + block["size"]
    return blocks


def _failure(trace: Sequence[Mapping[str, Any]]) -> int:
    """The number of entries before the last failure; all where there is none."""
    return next(
        (n for n in range(len(trace) - 1, -1, -1) if trace[n]["action"] == "oom"), len(trace)
    )


def _peak(trace: Sequence[Mapping[str, Any]], used: float) -> int:
    """The number of entries after which most bytes are in use. `used`: bytes in use after all
    entries."""
    most, at = used, len(trace)
    for n in range(len(trace) - 1, -1, -1):
        used += _change(trace[n])
        if used > most:
            most, at = used, n
    return at


def _change(entry: Mapping[str, Any]) -> float:
    """Bytes in use before an entry, less those after it."""
    return {"alloc": -entry["size"], "free_completed": entry["size"]}.get(entry["action"], 0.0)


def _undo(live: dict[int, Block], trace: Sequence[Mapping[str, Any]], end: int) -> None:
    """Take back the entries from `end` on. A block without a stack, or that these entries freed,
    gets the stack of the allocation before: an empty one where no line of Python ran."""
    missing = {address: size for address, (size, frames) in live.items() if frames is None}
    for n in range(len(trace) - 1, -1, -1):
        entry = trace[n]
        address = entry.get("addr", 0)
        if entry["action"] == "alloc":
            if n >= end:
                live.pop(address, None)
                missing.pop(address, None)
            elif address in missing:
                live[address] = missing.pop(address), entry.get("frames") or ()
        elif entry["action"] == "free_completed" and n >= end:
            missing[address] = float(entry["size"])
            live[address] = float(entry["size"]), None
        elif entry["action"] == "free_completed":
            missing.pop(address, None)


def _line(
    frames: Sequence[Mapping[str, Any]] | None, is_program: Callable[[str], bool]
) -> tuple[str, int, str]:
    if frames is None:
        return "", 0, BEFORE
    place = next((frame for frame in frames if is_program(frame["filename"])), None)
    return (
        (place["filename"], place["line"], place["name"]) if place is not None else ("", 0, NO_LINE)
    )


class AllocationHistory:
    """torch's history of allocations in this process. `wanted`: the user has agreed. `reason`: why
    there is none; empty: there is."""

    def __init__(self) -> None:
        self.wanted = False
        self.on = False
        self.reason = ""

    def begin_with_cuda(self, cuda: Any) -> None:
        """Begin when the program initialises CUDA. `cuda`: the module torch.cuda."""
        if self.wanted and hasattr(cuda, "_lazy_call"):
            cuda._lazy_call(self.begin)

    def begin(self) -> None:
        """Begin now, if it has not begun. Raises nothing of its own."""
        if not self.wanted or self.on or self.reason:
            return
        try:
            import torch

            torch.cuda.memory._record_memory_history(
                enabled="all", context="alloc", stacks="python", max_entries=ENTRIES
            )
            self.on = True
        except Exception as problem:  # another version of torch, or a device without a history
            if from_outside(problem):
                raise
            self.reason = (
                f"torch records no history of allocations here: {type(problem).__name__}: {problem}"
            ).splitlines()[0]

    def stop(self) -> None:
        """The agent is off: torch keeps no history any longer, and begins none when the program
        initialises CUDA."""
        self.wanted = False
        torch = sys.modules.get("torch")
        if torch is None:
            return
        if self.on:
            torch.cuda.memory._record_memory_history(enabled=None)
            self.on = False
        waiting = getattr(torch.cuda, "_queued_calls", [])
        waiting[:] = [call for call in waiting if call[0] != self.begin]

    def report(
        self, device: int, failed: bool, is_program: Callable[[str], bool]
    ) -> dict[str, Any]:
        """The fields of the event `MemoryLines`, without `rank`."""
        fields: dict[str, Any] = {
            "device": f"cuda:{device}",
            "failed": failed,
            "lines": [],
            "total_bytes": 0.0,
            "reason": self.reason,
        }
        if not self.on:
            return fields
        try:
            import torch

            lines, total = owners_by_line(torch.cuda.memory._snapshot(), device, failed, is_program)
            return fields | {"lines": [line._asdict() for line in lines], "total_bytes": total}
        except Exception as problem:
            if from_outside(problem):
                raise
            return fields | {
                "reason": (
                    f"torch's history could not be read: {type(problem).__name__}: {problem}"
                ).splitlines()[0]
            }


history = AllocationHistory()
