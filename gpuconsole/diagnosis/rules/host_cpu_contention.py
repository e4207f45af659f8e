"""host.cpu_contention: the training thread is ready to run and finds no free core."""

from __future__ import annotations

import math

from gpuconsole.diagnosis.families import device
from gpuconsole.diagnosis.families.host import DELAY
from gpuconsole.diagnosis.rule import Case, Finding, Interval, Rule, Threshold, percent

NOISE = Threshold(
    "noise", 0.1, "cores", "other programs that use less than a tenth of a core are ignored"
)


class HostCpuContention(Rule):
    id = "host.cpu_contention"
    title = "The training thread waits for a CPU core"
    clear_title = "The training thread has a CPU core"
    thresholds = (DELAY, NOISE)
    knobs = ("num_threads",)
    reads = (
        "runq_ratio",
        "cores",
        "threads",
        "host.others_cpu_ratio",
        "host.processes",
        *device.IDLE_SIGNALS,
    )
    ignore = (
        "The other programs are meant to run there, and you do not compare this run with others:"
        " the finding makes other figures less certain."
    )
    text = """The kernel counts how long a thread was ready to run without running
(/proc/thread-self/schedstat). At 15 % of step time or more there are two causes. The job itself has
more active threads than cores: fewer threads help; their best number is the cores minus the cores
that workers and other programs use. Each process of a job (torchrun) has its own threads and
workers, and all of a host share the cores. Or other programs use the cores: no change of this job
helps, and every timing is less certain. All other rules use times without this delay. On a GPU,
this delay costs at most the time in which the GPU has no work."""

    def judge(self, case: Case) -> Finding:
        delay = case.value("runq_ratio")
        level = delay / DELAY
        if level < 1:
            return self.clear(level, case.evidence(("runq_ratio", DELAY)))
        most = device.idle(case).most
        if most < DELAY:
            evidence = case.evidence(("runq_ratio", DELAY)) + device.idle_evidence(case)
            return self.clear(
                0.0, evidence, f"the thread waits for a core, but {device.idle_words(case)}"
            )
        cores, threads = case.value("cores"), case.value("threads")
        workers = int(case.knobs.get("num_workers", 0))
        processes = max(1.0, case.get("host.processes", 1.0))
        own = processes * (threads + workers) > cores
        each = f"{processes:.0f} processes with " if processes > 1 else ""
        who = (
            (
                f"this job has {each}{threads:.0f} thread{'s' * (threads != 1)} and {workers}"
                f" worker{'s' * (workers != 1)}{' each' * (processes > 1)} for {cores:.0f} cores"
            )
            if own
            else "other processes on this machine use the cores. All timings are less certain"
        )
        fewer = _threads_with_a_core(case, processes)
        # at a barrier all threads wait for the thread without a core
        saved = min(delay, most)
        gain = Interval(1 / (1 - 0.8 * saved), 1 / (1 - min(0.9, 1.4 * saved)))
        code = f"torch.set_num_threads({fewer})"
        fix = (
            case.suggest({"num_threads": fewer}, gain, "as many threads as free cores", code)
            if own and fewer < threads
            else None
        )
        summary = f"the training thread waits {percent(delay)} of step time for a core: {who}"
        evidence = case.evidence(("runq_ratio", DELAY), "cores", "threads") + case.if_known(
            "host.others_cpu_ratio", "host.processes"
        )
        evidence += device.idle_evidence(case)
        return self.fires(
            level,
            evidence,
            summary,
            recoverable=min(delay, most) if fix else 0.0,
            confidence="medium",
            note=fix is None,
            suggestions=[fix],
        )


def _threads_with_a_core(case: Case, processes: float) -> int:
    """Of each process: its part of the cores without those of other programs, minus its workers.
    Threads spin while they wait, so they become very slow if a thread has no core."""
    cores, workers = case.value("cores"), int(case.knobs.get("num_workers", 0))
    return max(1, int((cores - _foreign_cores(case, cores, workers)) / processes) - workers)


def _foreign_cores(case: Case, cores: float, workers: int) -> int:
    """Cores to leave to other programs. If their use is not measured: one, unless there are workers
    to share with."""
    if not case.has("host.others_cpu_ratio"):
        return 0 if workers else 1
    return math.ceil(max(0.0, case.value("host.others_cpu_ratio") * cores - NOISE))
