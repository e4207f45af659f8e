"""serve.over_capacity: more requests fall due than the server can answer, and the queue grows."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case
from gpuconsole.diagnosis.rule import Rule, Threshold
from gpuconsole.diagnosis.rules import _serving
from gpuconsole.diagnosis.suggest import suggest
from gpuconsole.model.finding import Finding

QUEUE = Threshold("queue", 0.2, "ratio", "20 % of a request's time in the queue warns, 50 % is high (tensward; DIAGNOSIS I02)")
BELOW_KNEE = 0.85
"""Share of the rate that was served at which queues stay short: waiting grows as 1/(1 - load) (M/M/1)."""


class ServeOverCapacity(Rule):
    id = "serve.over_capacity"
    title = "More requests arrive than the server can answer"
    clear_title = "The server keeps up with the requests"
    subject = "serving"
    thresholds = (QUEUE,)
    knobs = ("request_rate",)
    text = """In an open loop requests fall due whether or not earlier ones have been answered, as they do in production. Past the server's
capacity the queue grows without end, and every latency with it; throughput stays what it was. The suggestion is the rate to admit: what was
answered per second, less 15 %. A trial of it measures fewer tokens per second and far shorter latencies: that is the trade."""

    def check(self, case: Case) -> Finding:
        if not _serving.open_loop(case):
            return self.clear(0.0, summary="a closed loop never sends more than is answered")
        queue, offered = _serving.queue_ratio(case), case.value("client.request_rate")
        served = case.value("server.requests_per_s")
        evidence = (
            case.evidence("server.queue_s"),
            case.evidence("server.e2e_s"),
            case.evidence("server.requests_waiting"),
            case.evidence("client.request_rate"),
            case.evidence("server.requests_per_s"),
        )
        if queue < QUEUE.value or case.value("server.requests_waiting") < _serving.NOTABLE_QUEUE:
            return self.clear(queue / QUEUE.value, evidence)
        rate = float(f"{BELOW_KNEE * min(offered, served):.2g}")
        return self.fires(
            f"{offered:.3g} requests/s fall due and {served:.3g} are answered; {queue:.0%} of a request's time is spent in the queue",
            recoverable=min(0.95, queue),
            confidence="high" if queue >= 0.5 else "medium",
            evidence=evidence,
            suggestions=[
                suggest(
                    case,
                    {"request_rate": rate},
                    None,
                    "what this server sustains with short queues; the rest needs another replica, or a refusal at the door",
                    f"admit at most {rate:g} requests/s per replica",
                )
            ],
            level=queue / QUEUE.value,
        )
