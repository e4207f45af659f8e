"""serve.client_bound: the load generator is slow or lacks CPU time, so the measured figures of the
server mean little."""

from __future__ import annotations

from gpuconsole.diagnosis.rule import Case, Finding, Rule, Threshold, high_if, percent
from gpuconsole.session.figures.summary import STARVED

LATE = Threshold(
    "late", 0.010, "s", "10 ms late (survey I01): 10 % of a time to first token of 100 ms"
)
WAIT = Threshold(
    "wait",
    STARVED,
    "ratio",
    (
        "15 % of the time: TTFT is about 5 % too high; above it, a run is degraded"
        " (session/figures/summary.py)"
    ),
)
BUSY = Threshold(
    "busy", 0.9, "ratio", "90 % of a core: one Python process uses at most one core (survey I01)"
)


class ServeClientBound(Rule):
    id = "serve.client_bound"
    title = "The load generator is the bottleneck"
    clear_title = "The load generator is fast enough"
    subject = "load"
    thresholds = (WAIT, LATE, BUSY)
    reads = ("client.lateness_s", "client.cpu_ratio", "client.runq_ratio")
    ignore = (
        "You do not need figures of the server: those of this run are the limits of the load"
        " generator."
    )
    text = """The rule reads how long the load generator was ready to run and waited for a CPU
(/proc/PID/schedstat). Its timestamps are late by that wait. The generator also asks to be woken
every 20 ms and measures how much later it runs (95th percentile of a tick, median of the ticks): a
client that waits for a CPU 38 % of the time may still wake only 3 ms late. A Python process has one
core; near that limit, requests are sent late and answers are read late. What helps: less load,
fewer and larger chunks, a higher priority for the client, or a separate machine for the client. The
rule also fires if other programs use the machine."""

    def judge(self, case: Case) -> Finding:
        late, busy = case.value("client.lateness_s"), case.value("client.cpu_ratio")
        waited = case.get("client.runq_ratio", 0.0)
        evidence = case.if_known(("client.runq_ratio", WAIT)) + case.evidence(
            ("client.lateness_s", LATE), ("client.cpu_ratio", BUSY)
        )
        level = max(waited / WAIT, late / LATE, busy / BUSY)
        if level < 1:
            return self.clear(level, evidence)
        wait = f"waits for a CPU {percent(waited)} of the time, " if waited >= WAIT else ""
        summary = (
            f"the load generator {wait}wakes {late * 1e3:.0f} ms late and uses {percent(busy)} of a"
            " core. Measured latencies are too high and rates too low"
        )
        recoverable = min(
            0.9, busy if busy >= BUSY else max(0.1, waited if waited >= WAIT else 0.0)
        )
        return self.fires(
            level,
            evidence,
            summary,
            recoverable=recoverable,
            confidence=high_if(max(busy / BUSY, waited / WAIT) >= 1),
        )
