"""The exchanges of gradients that DistributedDataParallel (DDP) has timed in the processes of a user's job."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping, Sequence

from gpuconsole.model.run import Exchange

KEPT = 400
RECENT, RECENT_STEPS = 16, 200
"""The present wait of a process is the mean of its last RECENT timed exchanges, and of all in its last RECENT_STEPS steps."""
MESSAGES = 30
MATCHED = 60
"""Timed exchanges that processes are compared by."""
NEARLY = 0.25
WARM_UP = 2
"""In DDP's first iteration all gradients are in one bucket or few, and connections are set up; the second one has the final buckets first."""
EARLY = 10
"""DDP times each of its first iterations. On a GPU it waits for the device after each of them, so the host issues the next pass late, and its
computation ends later. These iterations count only while there are no others."""
LEAST = 2
"""Exchanges that processes are compared by."""


COLLECTIVES, COLLECTIVES_STEPS = "comm.collectives_s", "comm.collectives_steps"
"""Counters that `session.segments` adds to each message: seconds of the collectives that the training thread itself has called, and the steps they
are of."""
OUTSIDE, OUTSIDE_CALLS, OUTSIDE_STEPS = "comm.outside_s", "comm.outside_calls", "comm.outside_steps"
"""Counters too: seconds and number of those collectives that exchange no gradients, and the steps that have some."""
KINDS = (COLLECTIVES_STEPS, COLLECTIVES, OUTSIDE, OUTSIDE_CALLS, OUTSIDE_STEPS)


class Exchanges:
    """The timed exchanges of one process, by DDP module; false before there are some."""

    def __init__(self) -> None:
        self.by_model: dict[int, deque[Exchange]] = {}
        self.first: dict[int, Exchange] = {}
        """DDP's first iteration of each module."""
        self._collectives: deque[dict[str, float]] = deque(maxlen=MESSAGES)

    def add(self, exchanges: Sequence[Exchange], counters: Mapping[str, float] | None = None) -> None:
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
        """Exchanges of a module in a step: DDP's iterations over the steps, between the first and the last that are kept. 1 if it is not known.

        A reading may come some steps after its iteration, so a figure near a whole number is that number.
        """
        timed = self.by_model[model]
        steps = timed[-1].step - timed[0].step
        rate = (timed[-1].iteration - timed[0].iteration) / steps if steps > 0 else 1.0
        return float(round(rate)) if round(rate) and abs(rate / round(rate) - 1) < NEARLY else rate

    def exposed_s(self) -> float:
        """Seconds in a step in which this process lately waited for exchanges, after its own computation: all modules."""
        total = 0.0
        for model, timed in self.by_model.items():
            later = [exchange for exchange in timed if exchange.iteration > EARLY]
            steady = later or list(timed)
            recent = [exchange.exposed_s for exchange in steady if exchange.step > timed[-1].step - RECENT_STEPS]
            if len(recent) < RECENT:
                recent = [exchange.exposed_s for exchange in steady][-RECENT:]
            total += self.per_step(model) * statistics.fmean(recent)
        return total

    def collectives_s(self) -> float:
        """Seconds in a step of collectives that the training thread itself calls, over the last messages."""
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
    """The last MATCHED exchanges that all processes have timed, oldest first: for each one the times of all processes."""
    timed = [{exchange.iteration: exchange for exchange in process.by_model.get(model, ())} for process in processes]
    iterations = sorted(set.intersection(*(set(of_process) for of_process in timed))) if timed else []
    later = [iteration for iteration in iterations if iteration > EARLY]
    steady = later if len(later) >= LEAST else iterations
    return [tuple(of_process[iteration] for of_process in timed) for iteration in steady[-MATCHED:]]


def least_exposed_s(processes: Sequence[Exchanges]) -> float:
    """Seconds in a step of exchanges that no computation hides: in each exchange, the process that waits least has waited for no other process.

    The mean over the exchanges that all have timed, times the exchanges in a step, for all modules.
    """
    return sum(
        processes[0].per_step(model) * statistics.fmean(min(exchange.exposed_s for exchange in times) for times in matched)
        for model in processes[0].by_model
        if (matched := in_common(processes, model))
    )


def exposed_of_each(processes: Sequence[Exchanges]) -> list[float]:
    """For each process the seconds in a step in which it usually waits for exchanges: the median over the exchanges that all have timed, all modules.
    Empty where they have none in common."""
    matched = {model: in_common(processes, model) for model in processes[0].by_model}
    return [
        sum(
            process.per_step(model) * statistics.median(times[place].exposed_s for times in exchanges)
            for model, exchanges in matched.items()
            if exchanges
        )
        for place, process in enumerate(processes)
        if any(matched.values())
    ]
