"""serve.at_limit_healthy: the server is well used, requests are answered, and hardly one waits."""

from __future__ import annotations

from gpuconsole.diagnosis.families import serving
from gpuconsole.diagnosis.rule import Case, Finding, Rule, percent


class ServeAtLimitHealthy(Rule):
    id = "serve.at_limit_healthy"
    title = "Healthy: the server is well used"
    clear_title = "The server is not at its limit"
    subject = "serving"
    once = ("serve.saturated_healthy", "watch.at_limit_healthy")
    thresholds = (serving.NEAR, serving.MFU, serving.MBU, serving.LARGEST_QUEUE)
    reads = (
        "server.requests_waiting", "server.requests_short_of_capacity", "server.requests_running",
        "server.engine_running", "server.kv_cache_peak_ratio", "server.kv_cache_usage_ratio",
        "server.sequence_limit",
        "mfu_ratio", "mbu_ratio", "server.queue_s", "server.e2e_s",
        "server.preemptions_per_request", "server.front_waiting", "server.requests_per_s",
        "server.generation_tokens_per_s", "server.request_output_tokens", "server.preemptions",
        "server.longest_still_s", "server.replicas", "probe.client_ttft_s",
        "probe.client_itl_s",
    )  # fmt: skip
    text = """Most of the slots or of the KV cache are in use, or the device computes or reads near
its limit; requests are answered and hardly wait: settings can gain little. What remains is a
smaller or quantised model, a faster device, or more replicas. With a long queue there is more load
than fits (serve.over_capacity). The time in forward passes says nothing here: one sequence alone
keeps a GPU in forward passes all the time. vLLM counts FLOPs and bytes with --enable-mfu-metrics;
the embedded server counts the same way."""

    def judge(self, case: Case) -> Finding:
        serving.require_served(case)
        running = case.value("server.requests_running")
        evidence = case.evidence("server.requests_waiting", "server.requests_running")
        evidence += case.if_known(
            ("server.kv_cache_usage_ratio", serving.NEAR),
            "server.sequence_limit",
            ("mfu_ratio", serving.MFU),
            ("mbu_ratio", serving.MBU),
            "server.queue_s",
            "server.e2e_s",
            "server.requests_per_s",
        )
        if (
            serving.known_queue_ratio(case) >= serving.LARGEST_QUEUE
            or serving.queues(case)
            or serving.preempts(case)
            or case.get("server.front_waiting", 0.0) >= 1
        ):
            return self.clear(0.0, evidence, "requests wait, or are preempted")
        uses = {name: (share, serving.NEAR) for name, share in serving.used(case).items()}
        uses["of the FLOP/s"] = (case.get("mfu_ratio", 0.0), serving.MFU)
        uses["of the memory bandwidth"] = (case.get("mbu_ratio", 0.0), serving.MBU)
        level = max(value / threshold for value, threshold in uses.values())
        if not any(value for value, _ in uses.values()) and running >= 1:
            return self.cant_tell(
                serving.lacks(case, "server.kv_cache_usage_ratio"),
                ("server.kv_cache_usage_ratio",),
            )
        if level < 1:
            return self.clear(min(0.59, level), evidence)
        words = ", ".join(f"{percent(value)} {name}" for name, (value, _) in uses.items() if value)
        return self.note(
            level,
            evidence,
            f"{running:.1f} requests run and hardly one waits; the server uses {words}",
            confidence="medium",
        )
