"""watch.queue_before_engine: requests wait in a router or an API server before the engine, which has room."""

from __future__ import annotations

from gpuconsole.diagnosis.families import serving, watched
from gpuconsole.diagnosis.rule import Case, Finding, Rule, percent

ADVICE = {"lmdeploy": "raise --max-concurrent-requests, or add API servers"}
ROUTER = "let the router send more requests at once (Ray Serve: max_ongoing_requests), or add replicas"
NO_ROUTER = "the page is of an engine alone: a router before it has a page of its own"


class WatchQueueBeforeEngine(Rule):
    id = "watch.queue_before_engine"
    title = "Requests wait before they reach the engine"
    clear_title = "No queue before the engine"
    subject = "watched"
    thresholds = (watched.FULL,)
    reads = (
        "server.front_waiting", "server.requests_waiting", "server.requests_running", "server.kv_cache_full_ratio", "server.seats_taken_ratio",
    )  # fmt: skip
    text = """Ray Serve and Dynamo route requests to engines, and LMDeploy's API server holds them back. Their queue is not in the engine's metrics: the engine looks
healthy while its users wait. The rule fires where requests wait in the router and the engine has free slots and cache. Then no flag of the engine helps:
the router has to send more requests at once, or to more replicas. Dynamo's number counts all requests without a first token, so it is compared with
those that the engine runs."""

    def judge(self, case: Case) -> Finding:
        inside = case.value("server.requests_waiting")
        if not case.has("server.front_waiting"):
            return self.clear(summary=NO_ROUTER)
        before = case.value("server.front_waiting")
        evidence = case.evidence(("server.front_waiting", serving.NOTABLE_QUEUE), "server.requests_waiting")
        evidence += case.if_known("server.requests_running", "server.kv_cache_full_ratio", "server.seats_taken_ratio")
        if before < serving.NOTABLE_QUEUE:
            return self.clear(min(0.59, before / serving.NOTABLE_QUEUE), evidence)
        if inside >= serving.NOTABLE_QUEUE or watched.cache_is_full(case) or watched.seats_are_taken(case):
            return self.clear(0.5, evidence, "the engine has no room either")
        advice = ADVICE.get(str(case.knobs.get("server", "")), ROUTER)
        waited = before / max(1.0, before + case.get("server.requests_running", 0.0))
        summary = f"{before:.0f} requests wait before the engine, {inside:.0f} in it, which is {percent(waited)} of all that are under way: {advice}"
        return self.fires(before / serving.NOTABLE_QUEUE, evidence, summary, recoverable=min(0.9, waited), confidence="medium")
