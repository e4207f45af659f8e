"""The communication of the processes of a user's job: the exchanges of gradients that
DistributedDataParallel (DDP) has timed, and the collectives from torch's own record
(agent/hooks/evidence/collectives.py): how many of each kind, and who comes last.
"""

from __future__ import annotations

import itertools
import statistics
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gpuconsole.model.run import COLLECTIVE_KINDS, Arrival, CollectiveKind, Collectives, Exchange

# --- exchanges of gradients -----------------------------------------------------------------------

KEPT = 400
RECENT = 16
RECENT_STEPS = 200
"""The present wait of a process is the mean of its last RECENT timed exchanges, and of all in its
last RECENT_STEPS steps."""
MESSAGES = 30
MATCHED = 60
"""Timed exchanges that processes are compared by."""
NEARLY = 0.25
WARM_UP = 2
"""In DDP's first iteration all gradients are in one bucket or few, and connections are set up; the
second one has the final buckets first."""
EARLY = 10
"""DDP times each of its first iterations. On a GPU it waits for the device after each of them, so
the host issues the next pass late, and its computation ends later. These iterations count only
while there are no others."""
MIN_ITERATIONS = 2
"""Exchanges that processes are compared by."""


COLLECTIVES, COLLECTIVES_STEPS = "comm.collectives_s", "comm.collectives_steps"
"""Counters that `session.segments` adds to each message: seconds of the collectives that the
training thread itself has called, and the steps they are of."""
OUTSIDE, OUTSIDE_CALLS, OUTSIDE_STEPS = "comm.outside_s", "comm.outside_calls", "comm.outside_steps"
"""Counters too: seconds and number of those collectives that exchange no gradients, and the steps
that have some."""
KINDS = (COLLECTIVES_STEPS, COLLECTIVES, OUTSIDE, OUTSIDE_CALLS, OUTSIDE_STEPS)


class Exchanges:
    """The timed exchanges of one process, by DDP module; false before there are some."""

    def __init__(self) -> None:
        self.by_model: dict[int, deque[Exchange]] = {}
        self.first: dict[int, Exchange] = {}
        """DDP's first iteration of each module."""
        self._collectives: deque[dict[str, float]] = deque(maxlen=MESSAGES)

    def add(
        self, exchanges: Sequence[Exchange], counters: Mapping[str, float] | None = None
    ) -> None:
        if counters and COLLECTIVES in counters:
            self._collectives.append({name: counters.get(name, 0.0) for name in KINDS})
        for exchange in exchanges:
            if exchange.iteration > WARM_UP:
                self.by_model.setdefault(exchange.model, deque(maxlen=KEPT)).append(exchange)
            elif exchange.iteration == 1:
                self.first[exchange.model] = exchange

    def __bool__(self) -> bool:
        return bool(self.by_model)

    def per_step(self, model: int) -> float:
        """Exchanges of a module in a step: DDP's iterations over the steps, between the first and
        the last that are kept. 1 if it is not known.

        A reading may come some steps after its iteration, so a figure near a whole number is that
        number.
        """
        timed = self.by_model[model]
        steps = timed[-1].step - timed[0].step
        rate = (timed[-1].iteration - timed[0].iteration) / steps if steps > 0 else 1.0
        return float(round(rate)) if round(rate) and abs(rate / round(rate) - 1) < NEARLY else rate

    def exposed_s(self) -> float:
        """Seconds in a step in which this process lately waited for exchanges, after its own
        computation: all modules."""
        total = 0.0
        for model, timed in self.by_model.items():
            later = [exchange for exchange in timed if exchange.iteration > EARLY]
            steady = later or list(timed)
            recent = [
                exchange.exposed_s
                for exchange in steady
                if exchange.step > timed[-1].step - RECENT_STEPS
            ]
            if len(recent) < RECENT:
                recent = [exchange.exposed_s for exchange in steady][-RECENT:]
            total += self.per_step(model) * statistics.fmean(recent)
        return total

    def collectives_s(self) -> float:
        """Seconds in a step of collectives that the training thread itself calls, over the last
        messages."""
        return self._in_a_step(COLLECTIVES)

    def outside_s(self) -> float:
        """The part of that for collectives that exchange no gradients."""
        return self._in_a_step(OUTSIDE)

    def outside_calls(self) -> float:
        """The number of those collectives in a step."""
        return self._in_a_step(OUTSIDE_CALLS)

    def outside_steps(self) -> float:
        """The share of steps that have some of them."""
        return self._in_a_step(OUTSIDE_STEPS)

    def _in_a_step(self, counter: str) -> float:
        if not self._collectives:
            return 0.0
        first, last = self._collectives[0], self._collectives[-1]
        steps = last[COLLECTIVES_STEPS] - first[COLLECTIVES_STEPS]
        return (last[counter] - first[counter]) / steps if steps > 0 else 0.0


def in_common(processes: Sequence[Exchanges], model: int) -> list[tuple[Exchange, ...]]:
    """The last MATCHED exchanges that all processes have timed, oldest first: for each one the
    times of all processes."""
    timed = [
        {exchange.iteration: exchange for exchange in process.by_model.get(model, ())}
        for process in processes
    ]
    iterations = (
        sorted(set.intersection(*(set(of_process) for of_process in timed))) if timed else []
    )
    later = [iteration for iteration in iterations if iteration > EARLY]
    steady = later if len(later) >= MIN_ITERATIONS else iterations
    return [tuple(of_process[iteration] for of_process in timed) for iteration in steady[-MATCHED:]]


def least_exposed_s(processes: Sequence[Exchanges]) -> float:
    """Seconds in a step of exchanges that no computation hides: in each exchange, the process that
    waits least has waited for no other process.

    The mean over the exchanges that all have timed, times the exchanges in a step, for all modules.
    """
    return sum(
        processes[0].per_step(model)
        * statistics.fmean(min(exchange.exposed_s for exchange in times) for times in matched)
        for model in processes[0].by_model
        if (matched := in_common(processes, model))
    )


def exposed_of_each(processes: Sequence[Exchanges]) -> list[float]:
    """For each process the seconds in a step in which it usually waits for exchanges: the median
    over the exchanges that all have timed, all modules. Empty where they have none in common."""
    matched = {model: in_common(processes, model) for model in processes[0].by_model}
    return [
        sum(
            process.per_step(model)
            * statistics.median(times[place].exposed_s for times in exchanges)
            for model, exchanges in matched.items()
            if exchanges
        )
        for place, process in enumerate(processes)
        if any(matched.values())
    ]


# --- collectives ----------------------------------------------------------------------------------

READS = 12
"""Reads of a process that are kept: of 48 s where they are 4 s apart."""
MIN_COLLECTIVES = 8
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
        for kind in sorted(
            (kind for read in self._reads for kind in read.kinds),
            key=lambda kind: COLLECTIVE_KINDS.index(kind.kind),
        ):
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
        return [
            {(arrival.group, arrival.sequence): arrival for arrival in read.arrivals}
            for read in self._reads
        ]


class Late(NamedTuple):
    """The process that comes last to the collectives. `share`: of the time, in which the others
    wait for it; `spread`: 2 standard errors of that. `kind`: of the collectives before which it
    loses most. `n`: collectives. `timed`: by their durations on the GPU, not by the times of their
    calls."""

    rank: int
    share: float
    spread: float
    kind: str
    n: int
    timed: bool


TIMING = (
    "NCCL's collectives have no durations without TORCH_NCCL_ENABLE_TIMING=1 in the environment of"
    " the job"
)
HOSTS = "the clocks of several hosts are not compared"
GROUPS = "no collective has exactly the processes that are watched"
Matched = list[dict[int, Arrival]]
"""For each collective, in the order of the calls, the call of each process by rank."""


def matched(processes: Mapping[int, CollectivesRecord]) -> list[Matched]:
    """Return the collectives of all `processes` that each process has reported, for each read of
    the process with the lowest rank."""
    if len(processes) < 2:
        return []
    first, *others = sorted(processes)
    calls_of = {
        rank: {key: call for read in processes[rank].reads() for key, call in read.items()}
        for rank in others
    }
    seen: set[tuple[str, int]] = set()
    reads = []
    for read in processes[first].reads():
        common: Matched = []
        for key, call in sorted(read.items(), key=lambda item: item[1].at_us):
            if (
                key in seen
                or call.size != len(processes)
                or any(key not in calls_of[rank] for rank in others)
            ):
                continue
            seen.add(key)
            common.append({first: call} | {rank: calls_of[rank][key] for rank in others})
        if len(common) >= MIN_COLLECTIVES:
            reads.append(common)
    return reads


def is_timed(reads: list[Matched]) -> bool:
    """Return whether all processes have reported a duration of most of the collectives."""
    has_durations = [
        all(call.lasts_s > 0 for call in calls.values()) for read in reads for calls in read
    ]
    return bool(has_durations) and sum(has_durations) > len(has_durations) / 2


def why_not_compared(processes: Mapping[int, CollectivesRecord], device: str, hosts: int) -> str:
    """Why processes on `hosts` hosts are not compared by their collectives; empty where they are,
    and before all have reported some."""
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

    Where durations are known, the process that arrives last is the one whose collective is
    shortest, because all end together. Else the host waits in each collective, and the time from
    the last arrival at one collective to a process's arrival at the next one is the work of this
    process: its excess over the median of the others is what they wait for. For calls that were
    queued ahead this time is 0."""
    blocks = [block for read in reads for block in _blocks(read)]
    lost = [
        dict(_lost_by_duration(block) if timed else _lost_by_arrival(block)) for block in blocks
    ]
    spans = [_span_s(block) for block in blocks]
    if not blocks or min(spans) <= 0:
        return None
    ranks = list(blocks[0][0])
    work = {
        rank: sum(seconds[rank] for part in lost for seconds in part.values()) for rank in ranks
    }
    last = max(ranks, key=lambda rank: work[rank])
    shares = [
        sum(_excess(seconds, last) for seconds in part.values()) / span
        for part, span in zip(lost, spans, strict=True)
    ]
    by_kind = dict.fromkeys(COLLECTIVE_KINDS, 0.0)
    for part, block in zip(lost, blocks, strict=True):
        for place, seconds in part.items():
            by_kind[COLLECTIVE_KINDS[block[place][last].kind]] += _excess(seconds, last)
    spread = 2 * statistics.stdev(shares) / len(shares) ** 0.5 if len(shares) > 1 else 1.0
    kind = max(by_kind, key=lambda kind: by_kind[kind])
    return Late(
        last, max(0.0, statistics.fmean(shares)), spread, kind, sum(map(len, blocks)), timed
    )


def shortest_s(calls: Mapping[int, Arrival]) -> float:
    """Seconds of a collective without waiting: of the process that arrives last. 0 where a duration
    is not known."""
    return min(call.lasts_s for call in calls.values())


def span_s(reads: list[Matched]) -> float:
    """Seconds from the first to the last of these collectives, all reads."""
    return sum(_span_s(read) for read in reads)


def _excess(seconds: Mapping[int, float], rank: int) -> float:
    return seconds[rank] - statistics.median(
        value for other, value in seconds.items() if other != rank
    )


def _blocks(read: Matched) -> Iterator[Matched]:
    size = max(MIN_COLLECTIVES, -(-len(read) // BLOCKS))
    for start in range(0, len(read), size):
        # with the first of the next part, where this one ends
        if len(block := read[start : start + size + 1]) > MIN_COLLECTIVES // 2:
            yield block


def _span_s(block: Matched) -> float:
    return (
        max(call.at_us for call in block[-1].values())
        - max(call.at_us for call in block[0].values())
    ) / 1e6


def _lost_by_arrival(block: Matched) -> Iterator[tuple[int, dict[int, float]]]:
    """For each collective by its place, the seconds of work before it, by rank."""
    for place, (before, calls) in enumerate(itertools.pairwise(block), 1):
        last_us = max(call.at_us for call in before.values())
        yield place, {rank: max(0, call.at_us - last_us) / 1e6 for rank, call in calls.items()}


def _lost_by_duration(block: Matched) -> Iterator[tuple[int, dict[int, float]]]:
    """For each collective by its place, the seconds by which a process comes later than the first
    one, by rank."""
    for place, calls in enumerate(block[1:], 1):
        longest_s = max(call.lasts_s for call in calls.values())
        if shortest_s(calls):
            yield place, {rank: longest_s - call.lasts_s for rank, call in calls.items()}
