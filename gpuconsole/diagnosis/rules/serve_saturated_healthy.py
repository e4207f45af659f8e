"""serve.saturated_healthy: the server does what the device can, and nobody waits; stop tuning."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case, Rule, Threshold, clear, fires
from gpuconsole.diagnosis.rules import _serving, serve_decode_bandwidth_bound, serve_prefill_bound
from gpuconsole.model.finding import Finding

ID = "serve.saturated_healthy"
TITLE = "Saturated and healthy"
MFU = Threshold("mfu", 0.5, "of the arithmetic", "half of the peak (DIAGNOSIS I19)")
MBU = Threshold("mbu", 0.6, "of the bandwidth", "60 % of the memory's bandwidth (DIAGNOSIS I19)")
QUEUE = Threshold("queue", 0.2, "of the request", "a fifth of the time in the queue: then there is more load than the device can take")
BOUND = (serve_decode_bandwidth_bound, serve_prefill_bound)
"""They name what the device is busy with, and what would make less of it."""


def check(case: Case) -> Finding:
    mfu, mbu, queue = case.value("mfu_ratio"), case.value("mbu_ratio"), _serving.queue_ratio(case)
    level = max(mfu / MFU.value, mbu / MBU.value)
    evidence = (
        case.evidence("mfu_ratio", MFU.value),
        case.evidence("mbu_ratio", MBU.value),
        case.evidence("server.queue_s"),
        case.evidence("server.e2e_s"),
    )
    if level < 1 or queue >= QUEUE.value:
        return clear(ID, TITLE, min(0.59, level), evidence)
    if any(rule.check(case).state == "fires" for rule in BOUND):
        return clear(ID, TITLE, 0.5, evidence, "what it is busy with is named, and what would make it less")
    return fires(
        ID,
        TITLE,
        f"{mfu:.0%} of the arithmetic and {mbu:.0%} of the memory's bandwidth are in use, and {queue:.0%} of a request's time is queueing",
        recoverable=0.0,
        confidence="medium",
        evidence=evidence,
        level=level,
        note=True,
    )


RULE = Rule(
    id=ID,
    title=TITLE,
    signals=("mfu_ratio", "mbu_ratio", "server.queue_s", "server.e2e_s"),
    thresholds=(MFU, MBU, QUEUE),
    text="""By the server's own counters of FLOPs and bytes (vLLM: --enable-mfu-metrics; the embedded server counts the same way) over what the
device can do. Near the roof, with hardly anybody waiting, settings have little left to give: a smaller or quantised model, a faster device or
more of them are what is left. With a queue it is another matter: then there is more load than fits (serve.over_capacity).""",
    check=check,
    serving=True,
)
