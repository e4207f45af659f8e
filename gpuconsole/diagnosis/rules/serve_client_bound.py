"""serve.client_bound: the load generator itself is what is slow, so that the server's figures mean little."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case
from gpuconsole.diagnosis.rule import Rule, Threshold
from gpuconsole.model.finding import Finding

LATE = Threshold("late", 0.010, "s", "10 ms of lateness (DIAGNOSIS I01): a tenth of a 100 ms time to first token")
BUSY = Threshold("busy", 0.9, "ratio", "nine tenths of a core: one process has no more (DIAGNOSIS I01)")


class ServeClientBound(Rule):
    id = "serve.client_bound"
    title = "The load generator is the bottleneck"
    clear_title = "The load generator is fast enough"
    subject = "serving"
    thresholds = (LATE, BUSY)
    text = """The generator asks to be woken every 20 ms and notes how much later it was (95th percentile of a tick, median of the ticks): so
late are its timestamps too. A process in Python has one core; near that, requests leave late and answers are read late. Less load, fewer
and larger chunks, or a machine of its own for the client; on a machine that is busy with something else it says the same."""

    def check(self, case: Case) -> Finding:
        late, busy = case.value("client.lateness_s"), case.value("client.cpu_ratio")
        evidence = (case.evidence("client.lateness_s", LATE.value), case.evidence("client.cpu_ratio", BUSY.value))
        level = max(late / LATE.value, busy / BUSY.value)
        if level < 1:
            return self.clear(level, evidence)
        return self.fires(
            f"its event loop wakes {late * 1e3:.0f} ms late and it uses {busy:.0%} of a core: latencies are too high by that, and rates too low",
            recoverable=min(0.9, busy if busy >= BUSY.value else 0.1),
            confidence="high" if busy >= BUSY.value else "medium",
            evidence=evidence,
            level=level,
        )
