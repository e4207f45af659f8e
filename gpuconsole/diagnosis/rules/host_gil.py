"""host.gil: the training thread waits for the interpreter's lock, which another thread of the
program holds."""

from __future__ import annotations

from gpuconsole.diagnosis.families import host
from gpuconsole.diagnosis.rule import MAX_SHARE, Case, Finding, Rule, high_if, percent, placed


class HostGil(Rule):
    id = "host.gil"
    title = "Another Python thread keeps the training thread waiting"
    jobs_only = True
    clear_title = "No other Python thread keeps the training thread waiting"
    thresholds = (host.OTHER_THREAD, host.IDLE, host.CAUGHT_UP)
    reads = (
        "stack.thread_ratio", "host.training_idle_ratio", "data_wait_ratio", "comm_ratio",
        "logging_ratio", "checkpoint_ratio", "is_gpu", "host.caught_up_ratio",
        "recent.logging_ratio", "recent.checkpoint_ratio",
    )  # fmt: skip
    text = """One Python thread runs at a time: the others wait for the interpreter's lock (GIL). A
thread that computes in Python lets go of it each 5 ms only, and each short operator of torch asks
for it again. So a step of many short operators takes many times as long as alone. Stack samples
show how often another thread of the program is in Python or waits to go on, and in which function.
The clocks of the training thread show the time in which it neither runs nor waits for a core;
phases in which it sleeps for another reason are taken off. What helps: another process
(multiprocessing, a DataLoader worker) in place of the thread, the work in a function that lets go
of the lock (numpy, torch), less of the work, pauses in it."""
    ignore = "The thread does the work that you want to do, and it ends soon."

    def judge(self, case: Case) -> Finding:
        if case.on_gpu and case.value("host.caught_up_ratio") < host.CAUGHT_UP:
            return self.clear(
                0.0,
                case.evidence(("host.caught_up_ratio", host.CAUGHT_UP)),
                "the GPU still has work at the end of most steps",
            )
        other, idle = case.value("stack.thread_ratio"), host.idle_ratio(case)
        evidence = case.evidence(
            ("stack.thread_ratio", host.OTHER_THREAD), ("host.training_idle_ratio", host.IDLE)
        )
        level = min(other / host.OTHER_THREAD, max(0.0, idle) / host.IDLE)
        if level < 1:
            return self.clear(level, evidence)
        place = case.place("stack.thread_ratio")
        summary = (
            f"{placed(place) if place is not None else 'Python code'} computes in another"
            " thread: the training thread neither runs nor waits for a"
            f" core in {percent(idle)} of the time. Move this work to another process"
        )
        return self.fires(
            level,
            evidence,
            summary,
            recoverable=min(MAX_SHARE, idle),
            confidence=high_if(idle >= 2 * host.IDLE and other >= 0.5),
        )
