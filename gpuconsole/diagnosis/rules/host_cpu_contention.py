"""host.cpu_contention: the training thread is ready to run and finds no core."""

from __future__ import annotations

import math

from gpuconsole.diagnosis.case import Case
from gpuconsole.diagnosis.rule import Rule, Threshold
from gpuconsole.diagnosis.rules._cores import DELAY
from gpuconsole.diagnosis.suggest import suggest
from gpuconsole.model.finding import Finding, Interval

NOISE = Threshold("noise", 0.1, "cores", "other programs that use less of a core than a tenth leave it to this job")


class HostCpuContention(Rule):
    id = "host.cpu_contention"
    title = "The training thread waits for a CPU core"
    clear_title = "The training thread has a CPU core"
    thresholds = (DELAY, NOISE)
    knobs = ("num_threads",)
    text = """The kernel counts how long a thread was runnable without running (/proc/thread-self/schedstat). When that is 15 % of
step time or more, either the job itself has more runnable threads than cores (then fewer threads help: as many as there are cores, less what
workers and other programs use), or others use them (then nothing in this job helps, and every timing is less certain). All other rules work on
time from which this delay has been taken off."""

    def check(self, case: Case) -> Finding:
        delay = case.value("runq_ratio")
        level = delay / DELAY.value
        if level < 1:
            return self.clear(level, (case.evidence("runq_ratio", DELAY.value),))
        cores, threads = case.value("cores"), case.value("threads")
        workers = int(case.knobs.get("num_workers", 0))
        own = threads + workers > cores
        who = (
            f"this job's own {threads:.0f} threads and {workers} workers exceed the {cores:.0f} cores"
            if own
            else "other processes on this machine use the cores; all timings here are less certain"
        )
        fewer = _threads_with_a_core(case)
        fix = (
            suggest(
                case,
                {"num_threads": fewer},
                Interval(
                    1 / (1 - 0.8 * delay), 1 / (1 - min(0.9, 1.4 * delay))
                ),  # at a barrier all threads wait for the one without a core
                "as many threads as cores are left",
                f"torch.set_num_threads({fewer})",
            )
            if own and fewer < threads
            else None
        )
        return self.fires(
            f"{delay:.0%} of step time is spent waiting for a core: {who}",
            recoverable=delay if fix else 0.0,
            confidence="medium",
            evidence=tuple(
                case.evidence(name, threshold)
                for name, threshold in (("runq_ratio", DELAY.value), ("cores", None), ("threads", None), ("host.others_cpu_ratio", None))
                if case.has(name)
            ),
            suggestions=[fix],
            level=level,
            note=fix is None,
        )


def _threads_with_a_core(case: Case) -> int:
    """Cores, less what workers and other programs use: threads that wait for each other by spinning collapse where one has no core."""
    cores, workers = case.value("cores"), int(case.knobs.get("num_workers", 0))
    return max(1, int(cores) - workers - _foreign_cores(case, cores, workers))


def _foreign_cores(case: Case, cores: float, workers: int) -> int:
    """Cores to leave to other programs. While nobody knows what those use: one, if there are no workers to take turns with."""
    if not case.has("host.others_cpu_ratio"):
        return 0 if workers else 1
    return math.ceil(max(0.0, case.value("host.others_cpu_ratio") * cores - NOISE.value))
