"""serve.client_bound: the load generator is slow, so the measured figures of the server mean little."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case
from gpuconsole.diagnosis.rule import Rule, Threshold
from gpuconsole.model.finding import Finding

LATE = Threshold("late", 0.010, "s", "10 ms late (survey I01): 10 % of a time to first token of 100 ms")
BUSY = Threshold("busy", 0.9, "ratio", "90 % of a core: one Python process has no more (survey I01)")


class ServeClientBound(Rule):
    id = "serve.client_bound"
    title = "The load generator is the bottleneck"
    clear_title = "The load generator is fast enough"
    subject = "serving"
    thresholds = (LATE, BUSY)
    text = """The generator asks to be woken every 20 ms and measures how much later it runs (95th percentile of a tick, median of the ticks). Its timestamps are
late by the same amount. A Python process has one core; near that limit, requests are sent late and answers are read late. What helps: less load,
fewer and larger chunks, or a separate machine for the client. The rule also fires if other programs use the machine."""

    def check(self, case: Case) -> Finding:
        late, busy = case.value("client.lateness_s"), case.value("client.cpu_ratio")
        evidence = (case.evidence("client.lateness_s", LATE.value), case.evidence("client.cpu_ratio", BUSY.value))
        level = max(late / LATE.value, busy / BUSY.value)
        if level < 1:
            return self.clear(level, evidence)
        return self.fires(
            f"the event loop of the load generator wakes {late * 1e3:.0f} ms late and uses {busy:.0%} of a core. Measured latencies are too high and rates too low",
            recoverable=min(0.9, busy if busy >= BUSY.value else 0.1),
            confidence="high" if busy >= BUSY.value else "medium",
            evidence=evidence,
            level=level,
        )
