"""serve.deferred: requests wait for something else than room: keys and values
from elsewhere, or a grammar."""

from __future__ import annotations

from gpuconsole.diagnosis.families import serving
from gpuconsole.diagnosis.rule import Case, Finding, Rule

CAUSES = {
    "sglang": (
        "grammars are compiled before their requests run: use few different schemas, or a faster"
        " grammar backend (--grammar-backend)"
    ),
    "vllm": (
        "keys and values are loaded from elsewhere (kv connector, offloading), or a grammar is"
        " compiled: look at the connector's own latency"
    ),
}


class ServeDeferred(Rule):
    id = "serve.deferred"
    title = "Requests wait for something else than room"
    clear_title = "No request is deferred"
    subject = "serving"
    once = ("watch.deferred",)
    knobs = ()
    thresholds = ()
    reads = (
        "server.requests_deferred",
        "server.requests_waiting",
        "server.queue_s",
        "server.e2e_s",
    )
    text = """A waiting request may lack something else than a slot or a block of the KV cache: its
keys and values are loaded from another server or from the host, or its grammar is compiled. More
slots or more cache do not help it. vLLM reports these requests with reason=deferred, from 0.20 on;
SGLang reports the queue of its grammars."""

    def judge(self, case: Case) -> Finding:
        if serving.engine_of(case) == "embedded":
            return self.clear(summary="this server defers no request")
        deferred = case.value("server.requests_deferred")
        evidence = case.evidence(
            ("server.requests_deferred", serving.NOTABLE_QUEUE), "server.requests_waiting"
        )
        if deferred < serving.NOTABLE_QUEUE:
            return self.clear(min(0.59, deferred / serving.NOTABLE_QUEUE), evidence)
        cause = CAUSES.get(serving.engine_of(case), "the server names no reason")
        summary = f"{deferred:.1f} requests wait and are not ready to run: {cause}"
        level, share = deferred / serving.NOTABLE_QUEUE, serving.recoverable(case)
        return self.fires(level, evidence, summary, recoverable=share, confidence="medium")
