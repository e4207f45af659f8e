"""serve.underloaded_healthy: requests are answered, nothing waits, and the server has room for
more."""

from __future__ import annotations

from gpuconsole.diagnosis.families import serving
from gpuconsole.diagnosis.rule import Case, Finding, Rule, Threshold, high_if, percent

NO_QUEUE = Threshold(
    "waiting", 0.5, "requests", "less than one request waits in every second reading"
)


class ServeUnderloadedHealthy(Rule):
    id = "serve.underloaded_healthy"
    title = "Healthy: the server has room for more requests"
    clear_title = "The server has no room for more requests"
    subject = "serving"
    once = ("watch.underloaded_healthy",)
    thresholds = (NO_QUEUE, serving.NEAR, serving.QUEUE, serving.MFU, serving.MBU)
    reads = (
        "server.requests_waiting", "server.requests_running", "server.engine_running",
        "server.kv_cache_peak_ratio", "server.kv_cache_usage_ratio",
        "server.sequence_limit", "server.front_waiting",
        "server.queue_s", "server.e2e_s", "server.slots_taken_ratio",
        "server.preemptions_per_request", "server.requests_per_s", "mfu_ratio", "mbu_ratio",
        "server.generation_tokens_per_s", "server.request_output_tokens", "server.preemptions",
        "server.longest_still_s", "server.replicas", "probe.client_ttft_s",
        "probe.client_itl_s",
    )  # fmt: skip
    text = """Requests are answered, none waits, and neither the slots nor the KV cache are near
their limits: the traffic is below what the server can take. Its throughput is that of the traffic,
and no flag raises it. More clients, or fewer replicas, use the hardware better."""

    def judge(self, case: Case) -> Finding:
        serving.require_served(case)
        waiting, running = (
            case.value("server.requests_waiting"),
            case.value("server.requests_running"),
        )
        evidence = case.evidence(("server.requests_waiting", NO_QUEUE), "server.requests_running")
        evidence += case.if_known(
            ("server.kv_cache_usage_ratio", serving.NEAR),
            "server.sequence_limit",
            "server.front_waiting",
            "server.queue_s",
            "server.requests_per_s",
        )
        evidence += case.if_known("probe.client_ttft_s", "probe.client_itl_s")
        if (
            waiting >= NO_QUEUE
            or serving.known_queue_ratio(case) >= serving.QUEUE
            or case.get("server.front_waiting", 0.0) >= NO_QUEUE
        ):
            return self.clear(0.0, evidence, "requests wait")
        shares = serving.used(case)
        if (
            max(shares.values(), default=0.0) >= serving.NEAR
            or serving.slots_are_taken(case)
            or serving.preempts(case)
            or case.get("mfu_ratio", 0.0) >= serving.MFU
            or case.get("mbu_ratio", 0.0) >= serving.MBU
        ):
            return self.clear(0.5, evidence, "the server is near one of its limits")
        use = (
            "; the server uses "
            + ", ".join(f"{percent(share)} {name}" for name, share in shares.items())
            if shares
            else ""
        )
        summary = f"{running:.1f} requests run and none waits{use}"
        if case.has("probe.client_ttft_s"):
            first, later = case.value("probe.client_ttft_s"), case.get("probe.client_itl_s", 0.0)
            summary += f"; {serving.client_words(first, later)}"
        return self.note(1.0, evidence, summary, confidence=high_if(len(shares) == 2))
