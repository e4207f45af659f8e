"""serve.over_capacity: more requests arrive than the server can answer, and the queue grows."""

from __future__ import annotations

from gpuconsole.diagnosis.families import serving
from gpuconsole.diagnosis.rule import Case, Finding, Rule, Threshold, high_if, percent

QUEUE = Threshold(
    "queue",
    0.2,
    "ratio",
    "20 % of a request's time in the queue is notable, 50 % is high (tensward; survey I02)",
)
BELOW_KNEE = 0.85
"""Share of the answered rate at which queues stay short: waiting grows as 1/(1 - load) (M/M/1)."""


class ServeOverCapacity(Rule):
    id = "serve.over_capacity"
    title = "More requests arrive than the server can answer"
    clear_title = "The server keeps up with the requests"
    subject = "load"
    thresholds = (QUEUE,)
    knobs = ("request_rate",)
    reads = (
        "client.request_rate",
        "server.queue_s",
        "server.e2e_s",
        "server.requests_per_s",
        "server.requests_waiting",
    )
    text = """In an open loop, requests arrive whether or not earlier ones are answered, as in
production. Beyond the capacity of the server the queue grows without end, and with it every
latency; throughput stays the same. The suggestion is a rate to admit: the answered requests per
second less 15 %.
A trial of it measures fewer tokens per second and far shorter latencies: that is the trade-off."""

    def judge(self, case: Case) -> Finding:
        if not serving.open_loop(case):
            return self.clear(
                summary="a closed loop never sends more requests than the server answers"
            )
        queue, offered, served = (
            serving.queue_ratio(case),
            case.value("client.request_rate"),
            case.value("server.requests_per_s"),
        )
        evidence = case.evidence("server.queue_s", "server.e2e_s", "server.requests_waiting")
        evidence += case.evidence("client.request_rate", "server.requests_per_s")
        if queue < QUEUE or case.value("server.requests_waiting") < serving.NOTABLE_QUEUE:
            return self.clear(queue / QUEUE, evidence)
        rate = float(f"{BELOW_KNEE * min(offered, served):.2g}")
        summary = (
            f"{offered:.3g} requests/s arrive and {served:.3g} are answered. Requests wait in the"
            f" queue for {percent(queue)} of their time"
        )
        why = (
            "this server sustains that rate with short queues; the rest needs another replica or"
            " must be refused"
        )
        code = f"admit at most {rate:g} requests/s per replica"
        change = case.suggest({"request_rate": rate}, None, why, code)
        level, confidence = queue / QUEUE, high_if(queue >= 0.5)
        return self.fires(
            level,
            evidence,
            summary,
            recoverable=min(0.95, queue),
            confidence=confidence,
            suggestions=[change],
        )
