"""The exchanges of gradients that DistributedDataParallel (DDP) has timed in the processes of a user's job."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence

from gpuconsole.model.run import Exchange

KEPT = 400
RECENT, RECENT_STEPS = 16, 200
"""The present wait of a process is the mean of its last RECENT timed exchanges, and of all in its last RECENT_STEPS steps."""
MATCHED = 60
"""Timed exchanges that processes are compared by."""
NEARLY = 0.25
WARM_UP = 2
"""In DDP's first iteration all gradients are in one bucket or few, and connections are set up; the second one has the final buckets first."""


class Exchanges:
    """The timed exchanges of one process, by DDP module; false before there are some."""

    def __init__(self) -> None:
        self.by_model: dict[int, deque[Exchange]] = {}
        self.first: dict[int, Exchange] = {}
        """DDP's first iteration of each module."""

    def add(self, exchanges: Sequence[Exchange]) -> None:
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
            recent = [exchange.exposed_s for exchange in timed if exchange.step > timed[-1].step - RECENT_STEPS]
            if len(recent) < RECENT:
                recent = [exchange.exposed_s for exchange in timed][-RECENT:]
            total += self.per_step(model) * statistics.fmean(recent)
        return total


def in_common(processes: Sequence[Exchanges], model: int) -> list[tuple[Exchange, ...]]:
    """The last MATCHED exchanges that all processes have timed, oldest first: for each one the times of all processes."""
    timed = [{exchange.iteration: exchange for exchange in process.by_model.get(model, ())} for process in processes]
    iterations = sorted(set.intersection(*(set(of_process) for of_process in timed)))[-MATCHED:] if timed else []
    return [tuple(of_process[iteration] for of_process in timed) for iteration in iterations]


def least_exposed_s(processes: Sequence[Exchanges]) -> float:
    """Seconds in a step of exchanges that no computation hides: in each exchange, the process that waits least has waited for no other process.

    The mean over the exchanges that all have timed, times the exchanges in a step, for all modules.
    """
    return sum(
        processes[0].per_step(model) * statistics.fmean(min(exchange.exposed_s for exchange in times) for times in matched)
        for model in processes[0].by_model
        if (matched := in_common(processes, model))
    )
