"""input.jitter: the loader is fast enough on average, but some samples take so long that the queue
runs empty."""

from __future__ import annotations

import math

from gpuconsole.diagnosis.families import loader
from gpuconsole.diagnosis.precedence import cause_of_data_wait
from gpuconsole.diagnosis.rule import (
    Case,
    Finding,
    Interval,
    Rule,
    Threshold,
    percent,
    short_of,
    speedup_interval,
)
from gpuconsole.model.knobs.catalogue import CATALOGUE

TIMES_DEEPER = 4
RATE = "probe.loader_samples_per_s"
REFILLS = Threshold(
    "refills",
    1.5,
    "x",
    "a queue is refilled soon if the loader delivers 1.5x as many samples as the model uses",
)


class InputJitter(Rule):
    id = "input.jitter"
    title = "A few slow samples stall the DataLoader"
    clear_title = "No slow samples stall the DataLoader"
    thresholds = (loader.EXCESS, loader.TYPICAL, REFILLS, loader.LARGE_PART)
    knobs = ("prefetch_factor", "num_workers")
    reads = (
        *loader.ON_HOST, *loader.MEMORY, "loader.unsharded", "loader.row_bytes",
        "loading.lock_ratio", "data_wait_excess_ratio", *loader.OF_WAIT, "loader.restart_ratio",
        "loader.restarts", "loader.sampler_ratio", "data_wait_typical_ratio",
        "probe.loader_cpu_ratio", "probe.loader_receive_ratio", "cores", "threads",
        "probe.loader_plus_1_samples_per_s", "probe.loader_plus_4_samples_per_s", "step_s",
        "loader.receive_s", "loader.send_s", "host.others_cpu_ratio", "samples_per_step",
        "data_wait_long_s", "probe.loader_samples_per_s", "data_wait_long_steps", *loader.PARTS,
    )  # fmt: skip
    text = """The typical step finds its batch ready, but the long waits add up. Excess is the sum,
over all steps, of the wait beyond the median wait. A few samples take many times longer than others
(a cold cache, a large file, a slow server), and the queue runs empty meanwhile. A deeper queue
helps if the loader alone (probe P6) is fast enough to refill the queue soon. Otherwise more workers
are suggested first: enough that their ready batches cover a long wait. A batch is begun
num_workers * prefetch_factor steps before its turn, so fewer workers cover only a part of each
wait.
Similar cases: several workers that are too slow on average deliver batches in bursts; probe P6
shows whether they are fast enough. One worker that is too slow for ordinary batches makes every
step wait."""

    def judge(self, case: Case) -> Finding:
        excess = case.value("data_wait_excess_ratio")
        if not int(case.knobs.get("num_workers", 0)):
            return self.clear(
                summary="there is no queue: the training process loads the data itself"
            )
        limit, cause = loader.EXCESS, cause_of_data_wait(case)
        # where another cause explains the waits, a finding shown before closes at once
        if cause != "jitter":
            return self.clear(
                0.0 if cause else short_of(excess / limit),
                case.evidence(("data_wait_excess_ratio", limit)),
            )
        deeper = min(
            int(CATALOGUE["prefetch_factor"].high),
            int(case.knobs["prefetch_factor"]) * TIMES_DEEPER,
        )
        workers = _workers_that_outlast(case)
        without_waits, capacity = 1 / (1 - min(0.9, excess)), _capacity(case)
        gain = _up_to(without_waits if capacity is None else min(without_waits, capacity))
        code = (
            f"DataLoader(dataset, ..., prefetch_factor={deeper})   # and in_order=False where order"
            " does not matter"
        )
        queue = case.suggest(
            {"prefetch_factor": deeper},
            gain,
            "a deeper queue covers the wait for a slow sample",
            code,
        )
        gain = speedup_interval(
            1 / (1 - min(0.9, excess * _outlasted(case, workers))), _error(case)
        )
        why = "other workers have batches ready while one worker waits"
        more = case.suggest({"num_workers": workers}, gain, why, loader.worker_code(case, workers))
        refills = capacity is None or capacity * (1 - excess) >= REFILLS
        summary = (
            "most steps find their batch ready, but a few wait long. The long waits take"
            f" {percent(excess)} of the time"
        )
        summary += loader.parts_in_words(case)
        evidence = case.evidence(
            ("data_wait_excess_ratio", limit), ("data_wait_typical_ratio", loader.TYPICAL)
        )
        evidence += case.if_known(
            "data_wait_long_s",
            "data_wait_long_steps",
            RATE,
            "probe.loader_cpu_ratio",
            *loader.PARTS,
        )
        evidence += case.evidence("samples_per_step", "step_s")
        return self.fires(
            excess / limit,
            evidence,
            summary,
            recoverable=0.8 * excess,
            confidence="medium",
            for_prediction=(*(() if capacity is not None else (RATE,)), *loader.parts_wanted(case)),
            suggestions=[queue, more] if refills else [more, queue],
        )


def _capacity(case: Case) -> float | None:
    """Rate of the loader alone (probe P6) over the present rate: the upper bound of the gain by a
    queue. None before the probe."""
    if not case.has(RATE):
        return None
    return case.value(RATE) * case.value("step_s") / case.value("samples_per_step")


def _workers_that_outlast(case: Case) -> int:
    """Return the number of workers whose ready batches cover a long wait; no more than probe P6
    tries."""
    most = int(case.knobs["num_workers"]) + loader.MORE_WORKERS
    return loader.suggested_workers(
        case, lambda workers: workers >= most or _outlasted(case, workers) == 1.0
    )


def _outlasted(case: Case, workers: int) -> float:
    """Share of a long wait that the ready batches of more workers cover. Each worker has
    `prefetch_factor` batches, and a step uses one.

    Batches come in order: while one batch is late, steps continue with the batches before it.
    """
    more = (workers - int(case.knobs["num_workers"])) * int(case.knobs["prefetch_factor"])
    return min(1.0, more * loader.compute_s(case) / max(case.get("data_wait_long_s", 0.0), 1e-9))


def _error(case: Case) -> float:
    """Relative error of the gain. Slow samples are few, so their number varies by chance (Poisson),
    in the past and in the future."""
    return min(
        1.0,
        math.hypot(
            loader.PREDICTION_ERROR, math.sqrt(2 / max(1.0, case.get("data_wait_long_steps", 1.0)))
        ),
    )


def _up_to(most: float) -> Interval:
    """At least 30 % of the gain: one slow sample often follows another before the queue is full
    again."""
    return Interval(1 + 0.3 * (max(1.0, most) - 1), max(1.0, most))
