"""input.too_few_workers: the loader computes, and there is a core left for one more worker."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case, Rule, clear, fires, some, suggest
from gpuconsole.diagnosis.rules import _input
from gpuconsole.model.finding import Finding

ID = "input.too_few_workers"
TITLE = "Too few DataLoader workers"


def check(case: Case) -> Finding:
    wait = case.value("data_wait_ratio")
    level = wait / _input.WAIT.value
    if _input.cause(case) != "too_few_workers":
        return clear(ID, TITLE, level if level < 1 else 0.0, (case.evidence("data_wait_ratio", _input.WAIT.value),))
    workers = _input.next_workers(case)
    now = int(case.knobs["num_workers"])
    return fires(
        ID,
        TITLE,
        f"a step waits {wait:.0%} of its time for data; with {now} workers the loader cannot keep up, and a core is free for another",
        recoverable=1 - 1 / max(1.0, _input.predicted(case, workers)),
        confidence="high" if wait >= 0.2 else "medium",
        evidence=_input.evidence(case, _input.SATURATED),
        suggestions=some(
            suggest(
                case,
                {"num_workers": workers},
                _input.predicted_interval(case, workers),
                "batches are made while the model computes",
                _input.worker_code(case, workers),
            )
        ),
        level=level,
    )


RULE = Rule(
    id=ID,
    title=TITLE,
    signals=("data_wait_ratio", "probe.loader_cpu_ratio", "probe.loader_plus_1_samples_per_s", "cores", "threads"),
    thresholds=(_input.WAIT, _input.WORKER_GAIN),
    knobs=("num_workers",),
    text="""The training thread waits for batches, and the processes that make them are busy computing, not sleeping.
Probe P6 drains the loader alone with the present number of workers and with one more. When the model
T' = max(T_compute, T_load / k) says that a worker more wins at least 15 %, capacity is what is missing.
Confounders: a loader that sleeps (input.slow_storage), and cores that are used up (input.cpu_transform).""",
    check=check,
)
