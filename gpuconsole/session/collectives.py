"""The collectives of the processes of a user's job, from torch's own record (agent/hooks/evidence/collectives.py): how many of each kind, and who comes last."""

from __future__ import annotations

import itertools
import statistics
from collections import deque
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gpuconsole.model.run import COLLECTIVE_KINDS, Arrival, CollectiveKind, Collectives

READS = 12
"""Reads of a process that are kept: of 48 s where they are 4 s apart."""
LEAST = 8
"""Collectives that processes are compared by."""
BLOCKS = 4
"""Parts of the collectives of a read. They tell how much the lateness varies."""


class CollectivesRecord:
    """What was read of one process."""

    def __init__(self) -> None:
        self._reads: deque[Collectives] = deque(maxlen=READS)
        self.reason = ""
        """Why the last read gave no calls; empty where it gave some, and before the first read."""

    def add(self, read: Collectives | None) -> None:
        if read is not None:
            self.reason = read.reason if not read.arrivals else ""
            self._reads.append(read)

    @property
    def steps(self) -> int:
        """The steps whose calls are counted."""
        return sum(read.steps for read in self._reads)

    def kinds(self) -> dict[str, CollectiveKind]:
        """The calls of those steps by kind, in the order of COLLECTIVE_KINDS."""
        sums: dict[str, CollectiveKind] = {}
        for kind in sorted((kind for read in self._reads for kind in read.kinds), key=lambda kind: COLLECTIVE_KINDS.index(kind.kind)):
            before = sums.get(kind.kind, CollectiveKind(kind.kind, 0, 0, 0.0, 0))
            sums[kind.kind] = CollectiveKind(
                kind.kind,
                before.calls + kind.calls,
                before.bytes + kind.bytes,
                before.seconds + kind.seconds,
                before.timed + kind.timed,
            )
        return sums

    def reads(self) -> list[dict[tuple[str, int], Arrival]]:
        """The arrivals of each read, by group and count."""
        return [{(arrival.group, arrival.sequence): arrival for arrival in read.arrivals} for read in self._reads]


class Late(NamedTuple):
    """The process that comes last to the collectives. `share`: of the time, in which the others wait for it; `spread`: 2 standard errors of that.
    `kind`: of the collectives before which it loses most. `n`: collectives. `timed`: by their durations on the GPU, not by the times of their calls."""

    rank: int
    share: float
    spread: float
    kind: str
    n: int
    timed: bool


TIMING = "NCCL's collectives have no durations without TORCH_NCCL_ENABLE_TIMING=1 in the environment of the job"
HOSTS = "the clocks of several hosts are not compared"
GROUPS = "no collective has exactly the processes that are watched"
Matched = list[dict[int, Arrival]]
"""For each collective, in the order of the calls, the call of each process by rank."""


def matched(processes: Mapping[int, CollectivesRecord]) -> list[Matched]:
    """Return the collectives of all `processes` that each process has reported, for each read of the process with the lowest rank."""
    if len(processes) < 2:
        return []
    first, *others = sorted(processes)
    calls_of = {rank: {key: call for read in processes[rank].reads() for key, call in read.items()} for rank in others}
    seen: set[tuple[str, int]] = set()
    reads = []
    for read in processes[first].reads():
        common: Matched = []
        for key, call in sorted(read.items(), key=lambda item: item[1].at_us):
            if key in seen or call.size != len(processes) or any(key not in calls_of[rank] for rank in others):
                continue
            seen.add(key)
            common.append({first: call} | {rank: calls_of[rank][key] for rank in others})
        if len(common) >= LEAST:
            reads.append(common)
    return reads


def is_timed(reads: list[Matched]) -> bool:
    """Return whether all processes have reported a duration of most of the collectives."""
    has_durations = [all(call.lasts_s > 0 for call in calls.values()) for read in reads for calls in read]
    return bool(has_durations) and sum(has_durations) > len(has_durations) / 2


def why_not_compared(processes: Mapping[int, CollectivesRecord], device: str, hosts: int) -> str:
    """Why processes on `hosts` hosts are not compared by their collectives; empty where they are, and before all have reported some."""
    reason = next((process.reason for process in processes.values() if process.reason), "")
    if reason or len(processes) < 2 or not all(process.reads() for process in processes.values()):
        return reason
    reads = matched(processes)
    if not reads:
        return GROUPS
    if is_timed(reads):
        return ""
    if device != "cpu":
        return TIMING
    return HOSTS if hosts > 1 else ""


def latest(reads: list[Matched], timed: bool) -> Late | None:
    """Who is waited for. `timed`: as `is_timed` says. None where too few collectives are known.

    Where durations are known, the process that arrives last is the one whose collective is shortest, because all end together. Else the host
    waits in each collective, and the time from the last arrival at one collective to a process's arrival at the next one is the work of this
    process: its excess over the median of the others is what they wait for. For calls that were queued ahead this time is 0."""
    blocks = [block for read in reads for block in _blocks(read)]
    lost = [dict(_lost_by_duration(block) if timed else _lost_by_arrival(block)) for block in blocks]
    spans = [_span_s(block) for block in blocks]
    if not blocks or min(spans) <= 0:
        return None
    ranks = list(blocks[0][0])
    work = {rank: sum(seconds[rank] for part in lost for seconds in part.values()) for rank in ranks}
    last = max(ranks, key=lambda rank: work[rank])
    shares = [sum(_excess(seconds, last) for seconds in part.values()) / span for part, span in zip(lost, spans, strict=True)]
    by_kind = dict.fromkeys(COLLECTIVE_KINDS, 0.0)
    for part, block in zip(lost, blocks, strict=True):
        for place, seconds in part.items():
            by_kind[COLLECTIVE_KINDS[block[place][last].kind]] += _excess(seconds, last)
    spread = 2 * statistics.stdev(shares) / len(shares) ** 0.5 if len(shares) > 1 else 1.0
    kind = max(by_kind, key=lambda kind: by_kind[kind])
    return Late(last, max(0.0, statistics.fmean(shares)), spread, kind, sum(map(len, blocks)), timed)


def shortest_s(calls: Mapping[int, Arrival]) -> float:
    """Seconds of a collective without waiting: of the process that arrives last. 0 where a duration is not known."""
    return min(call.lasts_s for call in calls.values())


def span_s(reads: list[Matched]) -> float:
    """Seconds from the first to the last of these collectives, all reads."""
    return sum(_span_s(read) for read in reads)


def _excess(seconds: Mapping[int, float], rank: int) -> float:
    return seconds[rank] - statistics.median(value for other, value in seconds.items() if other != rank)


def _blocks(read: Matched) -> Iterator[Matched]:
    size = max(LEAST, -(-len(read) // BLOCKS))
    for start in range(0, len(read), size):
        if len(block := read[start : start + size + 1]) > LEAST // 2:  # with the first of the next part, where this one ends
            yield block


def _span_s(block: Matched) -> float:
    return (max(call.at_us for call in block[-1].values()) - max(call.at_us for call in block[0].values())) / 1e6


def _lost_by_arrival(block: Matched) -> Iterator[tuple[int, dict[int, float]]]:
    """For each collective by its place, the seconds of work before it, by rank."""
    for place, (before, calls) in enumerate(itertools.pairwise(block), 1):
        last_us = max(call.at_us for call in before.values())
        yield place, {rank: max(0, call.at_us - last_us) / 1e6 for rank, call in calls.items()}


def _lost_by_duration(block: Matched) -> Iterator[tuple[int, dict[int, float]]]:
    """For each collective by its place, the seconds by which a process comes later than the first one, by rank."""
    for place, calls in enumerate(block[1:], 1):
        longest_s = max(call.lasts_s for call in calls.values())
        if shortest_s(calls):
            yield place, {rank: longest_s - call.lasts_s for rank, call in calls.items()}
