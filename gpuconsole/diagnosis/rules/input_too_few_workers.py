"""input.too_few_workers: the loader computes, and there is a core left for one more worker."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case
from gpuconsole.diagnosis.rule import Rule
from gpuconsole.diagnosis.rules import _input
from gpuconsole.diagnosis.suggest import suggest
from gpuconsole.model.finding import Finding


class InputTooFewWorkers(Rule):
    id = "input.too_few_workers"
    title = "Too few DataLoader workers"
    clear_title = "Enough DataLoader workers"
    thresholds = (_input.WAIT, _input.WORKER_GAIN)
    knobs = ("num_workers",)
    text = """The training thread waits for batches, and the processes that make them are busy computing, not sleeping.
Probe P6 drains the loader alone with the present number of workers and with one more. When the model
T' = max(T_compute, T_load / k) says that a worker more wins at least 15 %, capacity is what is missing.
Confounders: a loader that sleeps (input.slow_storage), and cores that are used up (input.cpu_transform)."""

    def check(self, case: Case) -> Finding:
        wait = case.value("data_wait_ratio")
        level = wait / _input.WAIT.value
        if _input.cause(case) != "too_few_workers":
            return self.clear(level if level < 1 else 0.0, (case.evidence("data_wait_ratio", _input.WAIT.value),))
        workers = _input.next_workers(case)
        now = int(case.knobs["num_workers"])
        return self.fires(
            f"a step waits {wait:.0%} of its time for data; with {now} workers the loader cannot keep up, and a core is free for another",
            recoverable=1 - 1 / max(1.0, _input.predicted(case, workers)),
            confidence="high" if wait >= 0.2 else "medium",
            evidence=_input.evidence(case, _input.SATURATED),
            suggestions=[
                suggest(
                    case,
                    {"num_workers": workers},
                    _input.predicted_interval(case, workers),
                    "batches are made while the model computes",
                    _input.worker_code(case, workers),
                )
            ],
            level=level,
        )
