"""watch.at_limit_healthy: a watched server is well used, and nothing waits."""

from __future__ import annotations

from gpuconsole.diagnosis.families import watched
from gpuconsole.diagnosis.rule import CantTell, Case, Finding, Rule, Threshold, percent

USED = Threshold("used", 0.5, "ratio", "more than half of the slots or of the KV cache is in use")
MFU = Threshold("mfu", 0.5, "of the arithmetic", "half of the peak (see serve.saturated_healthy)")
MBU = Threshold(
    "mbu", 0.6, "of the bandwidth", "60 % of the memory bandwidth (see serve.saturated_healthy)"
)
LARGEST_QUEUE = Threshold(
    "queue",
    0.2,
    "of the request",
    "with 20 % of the time in the queue there is more load than the server can take",
)


class WatchAtLimitHealthy(Rule):
    id = "watch.at_limit_healthy"
    title = "Healthy: the server is well used"
    clear_title = "The server is not at its limit"
    subject = "watched"
    thresholds = (watched.WORKS, USED, MFU, MBU, LARGEST_QUEUE)
    reads = (
        "server.requests_waiting", "server.requests_short_of_capacity", "server.requests_running",
        "server.kv_cache_peak_ratio", "server.sequence_limit", "server.forward_ratio", "mfu_ratio",
        "mbu_ratio", "server.queue_s", "server.e2e_s", "server.preemptions_per_request",
        "server.front_waiting",
    )  # fmt: skip
    text = """More than half of the slots or of the KV cache is in use, or the device computes at
its limit, and requests hardly wait: settings can gain little. What remains is a smaller or
quantised model, a faster device, or more replicas. SGLang reports the time of its forward passes;
vLLM counts FLOPs and bytes with --enable-mfu-metrics."""

    def judge(self, case: Case) -> Finding:
        running = case.value("server.requests_running")
        evidence = case.evidence("server.requests_waiting", "server.requests_running")
        evidence += case.if_known(
            ("server.kv_cache_peak_ratio", USED),
            "server.sequence_limit",
            ("server.forward_ratio", watched.WORKS),
            ("mfu_ratio", MFU),
            ("mbu_ratio", MBU),
        )
        if (
            watched.queue_ratio(case) >= LARGEST_QUEUE
            or watched.queues(case)
            or watched.preempts(case)
            or case.get("server.front_waiting", 0.0) >= 1
        ):
            return self.clear(0.0, evidence, "requests wait, or are preempted")
        limit = case.get("server.sequence_limit", 0.0)
        uses = {
            "of its slots": (running / limit if limit else 0.0, USED),
            "of its KV cache": (case.get("server.kv_cache_peak_ratio", 0.0), USED),
            "of the time in forward passes": (case.get("server.forward_ratio", 0.0), watched.WORKS),
            "of the FLOP/s": (case.get("mfu_ratio", 0.0), MFU),
            "of the memory bandwidth": (case.get("mbu_ratio", 0.0), MBU),
        }
        level = max(value / threshold for value, threshold in uses.values())
        if not any(value for value, _ in uses.values()) and running >= 1:
            raise CantTell(watched.lacks(case, "server.kv_cache_usage_ratio"))
        if level < 1:
            return self.clear(min(0.59, level), evidence)
        words = ", ".join(f"{percent(value)} {name}" for name, (value, _) in uses.items() if value)
        return self.note(
            level,
            evidence,
            f"{running:.1f} requests run and hardly one waits; the server uses {words}",
            confidence="medium",
        )
