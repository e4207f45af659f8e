"""input.jitter: the loader is fast enough on average, but some samples take so long that the queue runs dry."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case, Rule, clear, fires, some, suggest
from gpuconsole.diagnosis.rules import _input
from gpuconsole.model.finding import Finding, Interval

ID = "input.jitter"
TITLE = "Single slow samples stall the loader"
TIMES_DEEPER = 4


def check(case: Case) -> Finding:
    excess = case.value("data_wait_excess_ratio")
    if not int(case.knobs.get("num_workers", 0)):
        return clear(ID, TITLE, 0.0, summary="no queue that could run dry: the training process loads by itself")
    limit = _input.EXCESS.value
    if _input.cause(case) != "jitter":
        return clear(ID, TITLE, min(0.99, excess / limit), (case.evidence("data_wait_excess_ratio", limit),))
    deeper = int(case.knobs["prefetch_factor"]) * TIMES_DEEPER
    workers = int(case.knobs["num_workers"]) + 1
    most = 1 / (1 - min(0.9, excess))
    if "probe.loader_samples_per_s" in case.signals:  # no queue makes the loader faster than it is on average
        load_s = case.value("samples_per_step") / case.value("probe.loader_samples_per_s")
        most = max(1.0, min(most, case.value("step_s") / load_s))
    predicted = Interval(1 + 0.3 * (most - 1), most)
    return fires(
        ID,
        TITLE,
        f"most steps find their batch ready, a few wait long: {excess:.0%} of the time, though the loader is fast enough on average",
        recoverable=0.8 * excess,
        confidence="medium",
        evidence=(
            case.evidence("data_wait_excess_ratio", limit),
            case.evidence("data_wait_typical_ratio", _input.TYPICAL.value),
            *(case.evidence(name) for name in ("probe.loader_samples_per_s",) if name in case.signals),
            case.evidence("samples_per_step"),
            case.evidence("step_s"),
        ),
        suggestions=some(
            suggest(
                case,
                {"prefetch_factor": deeper},
                predicted,
                "a deeper queue outlasts a slow sample",
                f"DataLoader(dataset, ..., prefetch_factor={deeper})   # and in_order=False where order does not matter",
            ),
            suggest(
                case,
                {"num_workers": workers},
                predicted,
                "another process goes on while one waits",
                _input.worker_code(workers),
            ),
        ),
        level=excess / limit,
    )


RULE = Rule(
    id=ID,
    title=TITLE,
    signals=("data_wait_excess_ratio", "data_wait_typical_ratio", "probe.loader_samples_per_s", "samples_per_step", "step_s"),
    thresholds=(_input.EXCESS, _input.TYPICAL),
    text="""The typical step finds its batch ready, and yet waits add up: excess is the sum of what each wait is longer than the
median one. So capacity is not what is missing: a few samples take many times longer than the others (a cold cache, a large file, a slow
server), and the queue runs dry while one of them is read.
Confounder: several workers that are too slow on average hand out batches in bursts; the loader alone (probe P6) tells it apart, by
delivering more than the model eats. One worker that is too slow lets every step wait.""",
    check=check,
)
