"""serve.saturated_healthy: the server works at the limit of the device, and requests do not wait;
stop tuning."""

from __future__ import annotations

from gpuconsole.diagnosis.families import serving
from gpuconsole.diagnosis.rule import Case, Finding, Rule, Threshold, percent

MFU = Threshold("mfu", 0.5, "of the arithmetic", "half of the peak (survey I19)")
MBU = Threshold("mbu", 0.6, "of the bandwidth", "60 % of the memory bandwidth (survey I19)")
QUEUE = Threshold(
    "queue",
    0.2,
    "of the request",
    "with 20 % of the time in the queue there is more load than the device can take",
)


class ServeSaturatedHealthy(Rule):
    id = "serve.saturated_healthy"
    title = "Saturated and healthy"
    clear_title = "Not at the limit of the device"
    subject = "serving"
    thresholds = (MFU, MBU, QUEUE)
    reads = ("mfu_ratio", "mbu_ratio", "server.queue_s", "server.e2e_s")
    text = """The rule compares the server's own counters of FLOPs and bytes (vLLM:
--enable-mfu-metrics; the embedded server counts the same way) with the peaks of the device. Near a
peak and with short queues, settings can gain little: what remains is a smaller or quantised model,
a faster device, or more devices. With a long queue there is more load than fits
(serve.over_capacity)."""

    def judge(self, case: Case) -> Finding:
        mfu, mbu, queue = (
            case.value("mfu_ratio"),
            case.value("mbu_ratio"),
            serving.queue_ratio(case),
        )
        level = max(mfu / MFU, mbu / MBU)
        evidence = case.evidence(
            ("mfu_ratio", MFU), ("mbu_ratio", MBU), "server.queue_s", "server.e2e_s"
        )
        if level < 1 or queue >= QUEUE:
            return self.clear(min(0.59, level), evidence)
        summary = (
            f"the server uses {percent(mfu)} of the FLOP/s and {percent(mbu)} of the memory"
            f" bandwidth; requests wait in the queue for {percent(queue)} of their time"
        )
        return self.note(level, evidence, summary, confidence="medium")
