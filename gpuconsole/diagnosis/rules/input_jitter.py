"""input.jitter: the loader is fast enough on average, but some samples take so long that the queue runs dry."""

from __future__ import annotations

import math

from gpuconsole.diagnosis.case import Case
from gpuconsole.diagnosis.rule import Rule, Threshold
from gpuconsole.diagnosis.rules import _input
from gpuconsole.diagnosis.suggest import speedup_interval, suggest
from gpuconsole.model.finding import Finding, Interval

TIMES_DEEPER = 4
REFILLS = Threshold("refills", 1.5, "x", "a queue is full again soon if the loader delivers half as much again as the model eats")


class InputJitter(Rule):
    id = "input.jitter"
    title = "Single slow samples stall the loader"
    clear_title = "No single slow samples stall the loader"
    thresholds = (_input.EXCESS, _input.TYPICAL, REFILLS)
    knobs = ("prefetch_factor", "num_workers")
    text = """The typical step finds its batch ready, and yet waits add up: excess is the sum of what each wait is longer than the
median one. So a few samples take many times longer than the others (a cold cache, a large file, a slow server), and the queue runs
dry while one of them is read. A deeper queue helps if the loader alone (probe P6) delivers enough to fill it again soon; else more
workers are suggested first: so many that what the others have ready lasts as long as such a wait does, for a batch that is handed out in
order is begun num_workers * prefetch_factor steps before its turn. With fewer, a part of each wait is left.
Confounder: several workers that are too slow on average hand out batches in bursts; P6 tells it apart, by delivering more than the model
eats. With one worker that is too slow for ordinary batches every step waits."""

    def check(self, case: Case) -> Finding:
        excess = case.value("data_wait_excess_ratio")
        if not int(case.knobs.get("num_workers", 0)):
            return self.clear(0.0, summary="no queue that could run dry: the training process loads by itself")
        limit = _input.EXCESS.value
        if _input.cause(case) != "jitter":
            return self.clear(min(0.99, excess / limit), (case.evidence("data_wait_excess_ratio", limit),))
        deeper, workers = int(case.knobs["prefetch_factor"]) * TIMES_DEEPER, _workers_that_outlast(case)
        without_waits = 1 / (1 - min(0.9, excess))
        capacity = _capacity(case)
        changes = [
            suggest(
                case,
                {"prefetch_factor": deeper},
                _up_to(without_waits if capacity is None else min(without_waits, capacity)),
                "a deeper queue outlasts a slow sample",
                f"DataLoader(dataset, ..., prefetch_factor={deeper})   # and in_order=False where order does not matter",
            ),
            suggest(
                case,
                {"num_workers": workers},
                speedup_interval(1 / (1 - min(0.9, excess * _outlasted(case, workers))), _error(case)),
                "the others have batches ready while one waits",
                _input.worker_code(case, workers),
            ),
        ]
        if capacity is not None and capacity * (1 - excess) < REFILLS.value:
            changes.reverse()
        return self.fires(
            f"most steps find their batch ready, a few wait long: {excess:.0%} of the time",
            recoverable=0.8 * excess,
            confidence="medium",
            evidence=(
                case.evidence("data_wait_excess_ratio", limit),
                case.evidence("data_wait_typical_ratio", _input.TYPICAL.value),
                *case.if_known("data_wait_long_s", "data_wait_long_steps", "probe.loader_samples_per_s", "probe.loader_cpu_ratio"),
                case.evidence("samples_per_step"),
                case.evidence("step_s"),
            ),
            suggestions=[*changes],
            wants=() if capacity is not None else ("probe.loader_samples_per_s",),
            level=excess / limit,
        )


def _capacity(case: Case) -> float | None:
    """What the loader by itself delivers (probe P6) over what a step takes now: no queue makes it faster than that on average."""
    if not case.has("probe.loader_samples_per_s"):
        return None
    return case.value("probe.loader_samples_per_s") * case.value("step_s") / case.value("samples_per_step")


def _workers_that_outlast(case: Case) -> int:
    """So many that what the others have ready lasts as long as a long wait; at most what probe P6 tries at once, or what the cores can do with."""
    now = int(case.knobs["num_workers"])
    computes = case.get("probe.loader_cpu_ratio", 0.0) >= _input.SLEEPS.value
    most = _input.next_workers(case) if computes else now + _input.MORE_WORKERS
    return next((workers for workers in range(now + 1, most) if _outlasted(case, workers) == 1.0), most)


def _outlasted(case: Case, workers: int) -> float:
    """Share of a long wait that the batches cover which more workers have in hand: each has `prefetch_factor`, and a step eats one.

    Batches come in order: while one is late, the steps go on as far as those before it reach, and it was begun so many steps before its turn.
    """
    more = (workers - int(case.knobs["num_workers"])) * int(case.knobs["prefetch_factor"])
    return min(1.0, more * _input.compute_s(case) / max(case.get("data_wait_long_s", 0.0), 1e-9))


def _error(case: Case) -> float:
    """Of the gain: slow samples are few, so that how many come is chance (Poisson), in what was seen as in what will be."""
    return min(1.0, math.hypot(_input.PREDICTION_ERROR, math.sqrt(2 / max(1.0, case.get("data_wait_long_steps", 1.0)))))


def _up_to(most: float) -> Interval:
    """One slow sample often follows another before the queue is full again: a third of the waits is what goes at least."""
    return Interval(1 + 0.3 * (max(1.0, most) - 1), max(1.0, most))
