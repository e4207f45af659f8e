"""serve.queue_before_engine: requests wait in a router or an API server before the engine, which
has room."""

from __future__ import annotations

from gpuconsole.diagnosis.families import serving
from gpuconsole.diagnosis.rule import Case, Finding, Missing, Rule, percent
from gpuconsole.model import units

ADVICE = {"lmdeploy": "raise --max-concurrent-requests, or add API servers"}
ROUTER = (
    "let the router send more requests at once (Ray Serve: max_ongoing_requests), or add replicas"
)
ON_THE_WAY = (
    "look at the network, the proxy, and the CPU of the API server and its tokenizer (vLLM:"
    " --api-server-count)"
)
HELD_BACK = "a proxy collects it: switch its buffering off (nginx: proxy_buffering off)"


class ServeQueueBeforeEngine(Rule):
    id = "serve.queue_before_engine"
    title = "Requests wait before they reach the engine"
    clear_title = "No queue before the engine"
    subject = "serving"
    once = ("watch.queue_before_engine",)
    thresholds = (serving.FULL, serving.BEFORE, serving.PART)
    reads = (
        "server.front_waiting", "server.requests_waiting", "server.requests_running",
        "server.kv_cache_full_ratio", "server.slots_taken_ratio", "server.e2e_s", "server.ttft_s",
        "client.ttft_s", *serving.PROBED,
    )  # fmt: skip
    text = """Ray Serve and Dynamo route requests to engines, and LMDeploy's API server holds them
back. Their queue is not in the engine's metrics: the engine looks healthy while its users wait. The
rule fires where requests wait in the router and the engine has free slots and cache. Then no flag
of the engine helps: the router has to send more requests at once, or to more replicas. Dynamo's
number counts all requests without a first token, so it is compared with those that the engine runs.

Without such a number, and for the network, a proxy and the tokenizer, a probe tells (P on the
screen, --probe without one): five small requests from this machine, and what the engine's histogram
of TTFT counts around each. A load of ours tells the same by the means of both. The rule fires where
at least 0.1 s, and a fifth of the time to the first token, pass before the engine."""

    def judge(self, case: Case) -> Finding:
        inside = case.value("server.requests_waiting")
        by_probe = self._by_probe(case)
        if by_probe is not None and by_probe.state == "fires":
            return by_probe
        if not case.has("server.front_waiting"):
            if by_probe is not None:
                return by_probe
            if case.watched:
                raise Missing("probe.before_engine_s")
            return self._by_load(case)
        before = case.value("server.front_waiting")
        evidence = case.evidence(
            ("server.front_waiting", serving.NOTABLE_QUEUE), "server.requests_waiting"
        )
        evidence += case.if_known(
            "server.requests_running", "server.kv_cache_full_ratio", "server.slots_taken_ratio"
        )
        if before < serving.NOTABLE_QUEUE:
            return self.clear(min(0.59, before / serving.NOTABLE_QUEUE), evidence)
        if (
            inside >= serving.NOTABLE_QUEUE
            or serving.cache_is_full(case)
            or serving.slots_are_taken(case)
        ):
            return self.clear(0.5, evidence, "the engine has no room either")
        advice = ADVICE.get(str(case.knobs.get("server", "")), ROUTER)
        waited = before / max(1.0, before + case.get("server.requests_running", 0.0))
        summary = (
            f"{before:.0f} requests wait before the engine, {inside:.0f} in it, which is"
            f" {percent(waited)} of all that are under way: {advice}"
        )
        return self.fires(
            before / serving.NOTABLE_QUEUE,
            evidence,
            summary,
            recoverable=min(0.9, waited),
            confidence="medium",
        )

    def _by_load(self, case: Case) -> Finding:
        """The conclusion from the requests of our load: their TTFT, and that of the engine."""
        if serving.engine_of(case) == "embedded":
            return self.clear(summary="this server answers from the process of its engine")
        client, engine = case.value("client.ttft_s"), case.value("server.ttft_s")
        evidence = case.evidence("client.ttft_s", "server.ttft_s")
        wait, large = client - engine, max(float(serving.BEFORE), serving.PART * client)
        if wait < large:
            return self.clear(min(0.59, max(0.0, wait / large)), evidence)
        first, counted, before = (
            units.duration(seconds).strip() for seconds in (client, engine, wait)
        )
        return self.fires(
            wait / large,
            evidence,
            f"our client waits {first} for its first token, the engine counts {counted}: {before}"
            f" pass before the engine: {ON_THE_WAY}",
            recoverable=min(0.9, wait / (wait + case.get("server.e2e_s", client))),
            confidence="medium",
        )

    def _by_probe(self, case: Case) -> Finding | None:
        """The conclusion from the requests of the probe; None without one."""
        probe = serving.probed(case)
        if "probe.client_ttft_s" not in probe:
            return None
        words = serving.probe_words(probe)
        if "probe.before_engine_s" not in probe:
            return self.cant_tell(f"{words}; the page has no TTFT to compare with")
        low, high, large = (
            probe["probe.before_engine_s"],
            probe["probe.before_engine_upper_s"],
            serving.largest_wait(probe),
        )
        evidence = case.evidence(
            "probe.client_ttft_s", "probe.engine_ttft_lower_s", "probe.engine_ttft_upper_s"
        )
        evidence += case.evidence(
            ("probe.before_engine_s", serving.BEFORE), "probe.before_engine_upper_s"
        )
        evidence += case.if_known(
            "probe.client_itl_s", "probe.engine_itl_s", "probe.requests_beside", "probe.chunks"
        )
        if low >= large:
            held = serving.in_one_piece(probe)
            title, advice = (
                ("Answers reach a client in one piece", HELD_BACK) if held else ("", ON_THE_WAY)
            )
            share = min(0.9, low / (low + case.get("server.e2e_s", probe["probe.client_ttft_s"])))
            return self.fires(
                low / large,
                evidence,
                f"{words}: {advice}",
                recoverable=share,
                confidence="medium",
                title=title,
            )
        return (
            self.clear(min(0.59, high / large), evidence, words)
            if high < large
            else self.cant_tell(f"{words}; requests of others hide ours: P again when fewer come")
        )
