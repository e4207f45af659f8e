"""input.slow_storage: the loader sleeps; more workers overlap their waits."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case
from gpuconsole.diagnosis.rule import Rule, Threshold
from gpuconsole.diagnosis.rules import _input
from gpuconsole.diagnosis.suggest import suggest
from gpuconsole.model.finding import Finding

HELPS = Threshold("helps", 1.05, "x", "more workers must promise 5 % to be suggested: less is worth no trial")


class InputSlowStorage(Rule):
    id = "input.slow_storage"
    title = "The DataLoader waits for storage"
    clear_title = "The DataLoader does not wait for storage"
    thresholds = (_input.WAIT, _input.SLEEPS, HELPS)
    knobs = ("num_workers",)
    text = """The training thread waits for batches while the processes that load them are off the CPU: they wait for disk,
network or a lock. Probe P6 measures it on the loader alone: CPU seconds over wall less run-queue delay, below one half.
A sleeping worker needs no core, so workers may exceed cores; throughput grows in proportion until the storage gives no more, which
P6 sees with four workers more than now. Local staging, packed formats and read-ahead remove the cause.
Confounder: a transform that computes (input.cpu_transform) shows a CPU share near 1."""

    def check(self, case: Case) -> Finding:
        wait = case.value("data_wait_ratio")
        level = wait / _input.WAIT.value
        if _input.cause(case) != "slow_storage":
            return self.clear(level if level < 1 else 0.0, (case.evidence("data_wait_ratio", _input.WAIT.value),))
        workers = _input.enough_workers(case)
        cpu = _input.loading_cpu_ratio(case)
        helps = _input.predicted(case, workers) >= HELPS.value
        limit = "" if helps else "; more workers would get no more from the storage"
        return self.fires(
            f"a step waits {wait:.0%} of its time for data, and while it does the loader sleeps: it is on a core only {cpu:.0%} of the time{limit}",
            recoverable=1 - 1 / max(1.0, _input.predicted(case, workers)),
            confidence="high" if wait >= 0.2 and cpu < 0.4 else "medium",
            evidence=_input.evidence(case, _input.SLEEPS),
            suggestions=[
                suggest(
                    case,
                    {"num_workers": workers},
                    _input.predicted_interval(case, workers),
                    "sleeping workers need no core, so their waits overlap",
                    _input.worker_code(case, workers) + "\n# or: stage the data on local disk, or pack small files into shards",
                )
                if helps
                else None
            ],
            level=level,
        )
