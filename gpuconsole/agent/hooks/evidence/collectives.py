"""The collectives of a job of several processes, of any kind of parallelism (FSDP, tensor
parallelism, DeepSpeed, a loop of the program's own): from the record that torch itself keeps of
them, its flight recorder (torch/csrc/distributed/c10d/FlightRecorder.hpp).

Torch 2.13 keeps the last 2000 collectives of a process; the agent switches nothing on. An entry has
the kind, the group and its count of collectives, which is the same in all processes, sizes, and the
time of the call on the host's clock. With NCCL it also has the duration on the GPU, where the user
has set TORCH_NCCL_ENABLE_TIMING=1. The agent never sets this variable: it makes torch record a
timing event before each collective, which can keep collectives and matrix products from running
together (pytorch#143890), and torch's own comment says that it makes a hang of the watchdog more
likely.

The record has the lines of the program too. They are not read: for them torch imports 822 modules
of its own into the program, which takes 0.9 s.

A read copies the whole record: about 14 µs of CPU time for each entry, 28 ms for 2000
(benchmarks/own_job/collectives.py). So it takes place between two steps, at most once in SLOT_S
seconds, and so seldom that it takes at most BUDGET of the time. All processes of a host read after
the same full multiple of SLOT_S on its clock, so that they pause together, and report the same
collectives.

With NCCL, a read queries the CUDA events of collectives that have not ended. Older versions of
torch free these events in another thread at any time. From version EVENTS_CACHED on, torch keeps
them in a cache. So with NCCL the agent reads nothing in older versions.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from ...forks import in_forked_children
from ...protocol import COLLECTIVE_KINDS, Arrival, CollectiveKind, Collectives
from .. import described
from ..guard import switch
from ..watch import recorder

SLOT_S = 4.0
BUDGET = 1e-3
"""Share of the time that reads may take."""
SLOTS = tuple(SLOT_S * 2**power for power in range(8))
"""Seconds from one read to the next. Each divides the next one, so that processes whose reads take
longer report what the others report, too."""
MAX_READ_S = 0.1
"""CPU seconds of a read after which there is no other."""
MAX_ARRIVALS = 240
BOUNDARIES = 512
EVENTS_CACHED = (2, 9)
"""Torch's variable TORCH_NCCL_CUDA_EVENT_CACHE is on by default in this version and later ones."""
NO_VALUE = ("0", "n", "no", "f", "false", "off")
BYTES = {
    "Float": 4, "Double": 8, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1,
    "Byte": 1, "Bool": 1, "ComplexFloat": 8, "ComplexDouble": 16,
}  # fmt: skip
"""Of an element, by torch's name of its type; the types of 8 bits have many names."""
OFF = "torch's flight recorder is off: TORCH_FR_BUFFER_SIZE is 0"
NO_RECORDER = "this torch has no flight recorder that a program can read"
NOT_RECORDED = "torch's flight recorder has no collective of this backend"
TOO_MANY = "a step makes more collectives than torch's flight recorder keeps"
NOT_SAFE = (
    "this torch does not keep the events of its collectives: reading them beside its watchdog could"
    " harm the job"
)


class CollectiveEntry(NamedTuple):
    """A collective of the record. `bus_bytes`: the bytes that a link must carry, see `bus_factor`.
    `at_ns`: of the call, on the host's clock."""

    number: int
    group: str
    size: int
    sequence: int
    kind: str
    bytes: int
    bus_bytes: float
    at_ns: int
    lasts_s: float
    together: bool
    """Whether all processes of the group take part."""


@lru_cache(maxsize=256)
def kind_of(name: str) -> str:
    """The kind of a collective by torch's name of it, such as `nccl:_all_gather_base` or
    `gloo:all_reduce`."""
    plain = name.lower().replace("_", "").replace("-", "")
    if plain.rpartition(":")[2].startswith(("send", "recv")):
        return "send_recv"
    if "barrier" in plain:
        return "other"
    return next((kind for kind in COLLECTIVE_KINDS[:5] if kind.replace("_", "") in plain), "other")


@lru_cache(maxsize=256)
def bus_factor(kind: str, size: int) -> float:
    """Bytes on the busiest link over the bytes of the data, as nccl-tests define the bus bandwidth,
    for a group of `size` processes."""
    if size < 2:
        return 0.0
    if kind == "all_reduce":
        return 2 * (size - 1) / size
    return (size - 1) / size if kind in ("all_gather", "reduce_scatter", "all_to_all") else 1.0


def _bytes(sizes: Iterable[Iterable[int]], types: Iterable[str]) -> int:
    return sum(prod(shape) * BYTES.get(name, 1) for shape, name in zip(sizes, types, strict=False))


def entries_of(dump: Mapping[str, Any], world_size: int) -> list[CollectiveEntry]:
    """The collectives of a record, oldest first. `dump`: the dict that torch's `_dump_fr_trace` and
    `_dump_nccl_trace` pickle. Raises KeyError, TypeError or ValueError where the form is another
    one."""
    sizes = {}
    for config in dump.get("pg_config", {}).values():
        sizes[str(config["name"])] = str(config["ranks"]).count(",") + 1
    entries = []
    for entry in dump.get("entries", ()):
        name, description = entry["process_group"]
        size = world_size if description == "default_pg" else sizes.get(name, 0)
        kind = kind_of(entry["profiling_name"])
        data = max(
            _bytes(entry["input_sizes"], entry["input_dtypes"]),
            _bytes(entry["output_sizes"], entry["output_dtypes"]),
        )
        apart = bool(entry["is_p2p"])
        entries.append(
            CollectiveEntry(
                entry["record_id"],
                str(name),
                size,
                entry["p2p_seq_id"] if apart else entry["collective_seq_id"],
                kind,
                data,
                data * bus_factor(kind, size),
                entry["time_created_ns"],
                entry["duration_ms"] / 1e3 if entry.get("duration_ms") else 0.0,
                not apart,
            )
        )
    return entries


class _Plain(pickle.Unpickler):
    """Reads containers, numbers and texts, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name}")


class FlightRecorder:
    """What torch has recorded in this process."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """As in a process that has made no step yet."""
        self._boundaries: deque[tuple[int, int]] = deque(maxlen=BOUNDARIES)
        """The ends of steps at which the agent has worked: the number of the next step, and
        nanoseconds on the host's clock."""
        self._slot_s, self._slot = SLOT_S, 0
        self._since_ns = 0
        """The end of the last step that was reported."""
        self._new: Collectives | None = None
        self.off = ""
        """Why nothing is read any more."""

    def look(self, world_size: int) -> None:
        """Read what torch has recorded, where it is time. Call it on the training thread between
        two steps, never in the capture of a CUDA graph."""
        if world_size < 2 or self.off:
            return
        at_ns = time.time_ns()
        self._boundaries.append((recorder.index, at_ns))
        slot = int(at_ns * 1e-9 / self._slot_s)
        if slot != self._slot:
            first, self._slot = not self._slot, slot
            if not first:
                switch.attempt(
                    "collectives.read", self._read, world_size, round(slot * self._slot_s * 1e9)
                )

    def take(self) -> Collectives | None:
        """What was read since the last call."""
        new, self._new = self._new, None
        return new

    def _read(self, world_size: int, until_ns: int) -> None:
        dump = self._dump_function()
        if dump is None:
            self._new = Collectives(0, [], [], self.off)
            return
        begun = time.thread_time()
        entries = _loaded(dump, world_size)
        cost_s = time.thread_time() - begun
        self._new = self._counted(entries, until_ns)
        self._slot_s = next((slot_s for slot_s in SLOTS if slot_s * BUDGET >= cost_s), SLOTS[-1])
        self._slot = int(time.time() / self._slot_s)
        if cost_s > MAX_READ_S:
            self.off = f"a read of torch's flight recorder took {1e3 * cost_s:.0f} ms"
            switch.notes.append(f"collectives are not read any longer: {self.off}")

    def _dump_function(self) -> Any:
        """Torch's function that copies its record; None, and the reason in `off`, where it must not
        be called."""
        torch = sys.modules["torch"]
        on_gpu = described.device().startswith("cuda")
        library = getattr(torch._C, "_distributed_c10d", None)
        found = getattr(library, "_dump_nccl_trace" if on_gpu else "_dump_fr_trace", None)
        version = tuple(
            int(part) for part in str(torch.__version__).split(".")[:2] if part.isdigit()
        )
        size = (
            os.environ.get("TORCH_FR_BUFFER_SIZE")
            or os.environ.get("TORCH_NCCL_TRACE_BUFFER_SIZE")
            or ""
        )
        if found is None:
            self.off = NO_RECORDER
        elif size.strip() == "0":
            self.off = OFF
        elif on_gpu and (
            version < EVENTS_CACHED
            or os.environ.get("TORCH_NCCL_CUDA_EVENT_CACHE", "1").lower() in NO_VALUE
        ):
            self.off = NOT_SAFE
        return None if self.off else found

    def _counted(self, entries: list[CollectiveEntry], until_ns: int) -> Collectives:
        """What whole steps have called since the last read, and the last calls before `until_ns` in
        which all processes of a group take part."""
        if not entries:
            return Collectives(0, [], [], NOT_RECORDED)
        from_ns = max(self._since_ns, entries[0].at_ns if entries[0].number else 0)
        begins = next(
            (boundary for boundary in self._boundaries if boundary[1] >= from_ns),
            self._boundaries[-1],
        )
        ends = self._boundaries[-1]
        steps, self._since_ns = ends[0] - begins[0], ends[1]
        kinds: dict[str, list[CollectiveEntry]] = {}
        for entry in entries:
            if steps and begins[1] <= entry.at_ns < ends[1]:
                kinds.setdefault(entry.kind, []).append(entry)
        arrivals = [
            Arrival(
                entry.group,
                entry.size,
                entry.sequence,
                COLLECTIVE_KINDS.index(entry.kind),
                entry.at_ns // 1000,
                entry.lasts_s,
                entry.bus_bytes,
            )
            for entry in entries
            if entry.together and entry.at_ns < until_ns
        ][-MAX_ARRIVALS:]
        return Collectives(
            steps,
            [_sum(kind, calls) for kind, calls in kinds.items()],
            arrivals,
            "" if steps else TOO_MANY,
        )


def _sum(kind: str, calls: list[CollectiveEntry]) -> CollectiveKind:
    timed = [entry.lasts_s for entry in calls if entry.lasts_s]
    return CollectiveKind(
        kind, len(calls), sum(entry.bytes for entry in calls), sum(timed), len(timed)
    )


def _loaded(dump: Any, world_size: int) -> list[CollectiveEntry]:
    """Copy and read the record. All its containers are freed at the end."""
    return entries_of(_Plain(io.BytesIO(dump(includeStackTraces=False))).load(), world_size)


flight_recorder = FlightRecorder()
in_forked_children(flight_recorder.reset)
