"""watch.host_bound: the scheduler of a watched server never rests while the GPU does: the host is
too slow."""

from __future__ import annotations

from gpuconsole.diagnosis.rule import Case, Finding, Rule, Threshold, percent

IDLE = Threshold(
    "idle",
    0.1,
    "of the time",
    "a scheduler that is idle for less than a tenth of the time has no time left",
)
BUSY = Threshold(
    "busy",
    0.7,
    "of the time",
    "the GPU computes for less than 70 % of the time although requests run",
)


class WatchHostBound(Rule):
    id = "watch.host_bound"
    title = "The scheduler's host work keeps the GPU waiting"
    clear_title = "The GPU does not wait for the scheduler"
    subject = "watched"
    thresholds = (IDLE, BUSY)
    reads = ("server.requests_running", "server.scheduler_idle_ratio", "server.forward_ratio")
    text = """Between two iterations the scheduler picks requests, prepares their inputs and sends
their tokens, on one core. SGLang (from 0.5.23 on) reports how long its scheduler is idle and how
long the GPU is in forward passes: if neither is idle for long, all is well; if the scheduler is
never idle while the GPU is, the host limits the server. CUDA graphs, overlapped scheduling, more
processes for tokenization, and a core that no other program uses help."""

    def judge(self, case: Case) -> Finding:
        idle, busy = case.value("server.scheduler_idle_ratio"), case.value("server.forward_ratio")
        evidence = case.evidence(
            ("server.scheduler_idle_ratio", IDLE),
            ("server.forward_ratio", BUSY),
            "server.requests_running",
        )
        if idle >= IDLE or busy >= BUSY or case.value("server.requests_running") < 1:
            return self.clear(min(0.59, IDLE / max(idle, 1e-9), BUSY / max(busy, 1e-9)), evidence)
        summary = (
            f"the scheduler is idle for {percent(idle)} of the time and the GPU computes for"
            f" {percent(busy)}: start the server with CUDA graphs and overlapped scheduling"
            " (without --disable-cuda-graph, --disable-overlap-schedule), and give it cores of its"
            " own"
        )
        return self.fires(
            BUSY / max(busy, 1e-9),
            evidence,
            summary,
            recoverable=min(0.9, 1 - busy),
            confidence="medium",
        )
