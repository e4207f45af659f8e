"""watch.underloaded_healthy: nothing waits in a watched server, and it has room for more
requests."""

from __future__ import annotations

from gpuconsole.diagnosis.families import watched
from gpuconsole.diagnosis.rule import Case, Finding, Rule, Threshold, high_if, percent

NO_QUEUE = Threshold(
    "waiting", 0.5, "requests", "less than one request waits in every second reading"
)
HALF = Threshold(
    "half", 0.5, "ratio", "less than half of the slots, and of the KV cache, is in use"
)


class WatchUnderloadedHealthy(Rule):
    id = "watch.underloaded_healthy"
    title = "Healthy: the server has room for more requests"
    clear_title = "The server is not idle"
    subject = "watched"
    thresholds = (NO_QUEUE, HALF, watched.QUEUE, watched.WORKS)
    reads = (
        "server.requests_waiting", "server.requests_running", "server.kv_cache_peak_ratio",
        "server.sequence_limit", "server.front_waiting", "server.queue_s", "server.e2e_s",
        "server.seats_taken_ratio", "server.preemptions_per_request", "server.forward_ratio",
        "probe.client_ttft_s", "probe.client_itl_s",
    )  # fmt: skip
    text = """No request waits, and the slots and the KV cache are less than half in use: the
traffic is below what the server can take. Its throughput is that of the traffic, and no flag raises
it. More clients, or fewer replicas, use the hardware better."""

    def judge(self, case: Case) -> Finding:
        waiting, running = (
            case.value("server.requests_waiting"),
            case.value("server.requests_running"),
        )
        evidence = case.evidence(("server.requests_waiting", NO_QUEUE), "server.requests_running")
        evidence += case.if_known(
            ("server.kv_cache_peak_ratio", HALF),
            "server.sequence_limit",
            "server.front_waiting",
            "server.queue_s",
        )
        evidence += case.if_known("probe.client_ttft_s", "probe.client_itl_s")
        if (
            waiting >= NO_QUEUE
            or watched.queue_ratio(case) >= watched.QUEUE
            or case.get("server.front_waiting", 0.0) >= NO_QUEUE
        ):
            return self.clear(0.0, evidence, "requests wait")
        limit = case.get("server.sequence_limit", 0.0)
        shares = {"of its slots": running / limit} if limit else {}
        if case.has("server.kv_cache_peak_ratio"):
            shares["of its KV cache"] = case.value("server.kv_cache_peak_ratio")
        if case.get("server.forward_ratio", 0.0) >= watched.WORKS:
            return self.clear(0.5, evidence, "the GPU computes nearly all the time")
        if (
            max(shares.values(), default=0.0) >= HALF
            or watched.slots_are_taken(case)
            or watched.preempts(case)
        ):
            return self.clear(
                0.5, evidence, "a large part of the slots or of the KV cache is in use"
            )
        known = bool(limit) and case.has("server.kv_cache_peak_ratio")
        use = (
            "; the server uses "
            + ", ".join(f"{percent(share)} {name}" for name, share in shares.items())
            if shares
            else ""
        )
        summary = (
            f"{running:.1f} requests run and none waits{use}"
            if running >= 0.1
            else "no request runs: the server is idle"
        )
        if case.has("probe.client_ttft_s"):
            first, later = case.value("probe.client_ttft_s"), case.get("probe.client_itl_s", 0.0)
            summary += f"; {watched.client_words(first, later)}"
        return self.note(1.0, evidence, summary, confidence=high_if(known))
