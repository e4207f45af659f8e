"""serve.imbalance: requests wait in some engines of a server while others have room."""

from __future__ import annotations

from gpuconsole.diagnosis.families import serving
from gpuconsole.diagnosis.rule import CantTell, Case, Finding, Rule, Threshold, percent

WAITING = Threshold(
    "waiting",
    3.0,
    "requests",
    "three requests wait in each such engine on average: fewer are chance",
)


class ServeImbalance(Rule):
    id = "serve.imbalance"
    title = "Requests wait in some engines while others have room"
    clear_title = "The engines share the requests evenly"
    subject = "serving"
    thresholds = (WAITING,)
    reads = (
        "server.engines_queued", "server.engines_with_room", "server.engines",
        "server.queued_waiting", "server.queued_running", "server.room_running",
        "server.room_kv_ratio", "server.requests_running", "server.replicas", "server.queue_s",
        "server.e2e_s",
    )  # fmt: skip
    text = """Data-parallel ranks and replicas each have a queue, slots and a KV cache of their own.
If a router gives some of them more, or longer, requests, or one of them is slow, requests wait
there while others have room. Their sums look like a server at its limit. A router that knows the
queues (least requests, or the use of the KV cache) helps, and so does a look at an engine that is
slow: its GPU, its clock, its neighbours. Sessions that stay with one engine for its prefix cache
are a common cause."""

    def judge(self, case: Case) -> Finding:
        if case.get("server.replicas", 0.0) > 1:
            raise CantTell(serving.SEVERAL)
        if not case.has("server.engines_queued"):
            case.value("server.requests_running")
            return self.clear(summary="one engine reports on this page")
        queued, room = (
            case.value("server.engines_queued"),
            case.value("server.engines_with_room"),
        )
        waiting = case.value("server.queued_waiting")
        evidence = case.evidence(
            "server.engines_queued", "server.engines_with_room", "server.queued_waiting",
            "server.queued_running", "server.room_running", "server.room_kv_ratio",
        )  # fmt: skip
        level = waiting / max(1.0, queued) / WAITING if room >= 1 else 0.0
        if level < 1:
            return self.clear(min(0.59, level), evidence)
        engines, running = (
            case.get("server.engines", queued + room),
            case.value("server.queued_running"),
        )
        has = "holds" if queued == 1 else "hold"
        each = f"runs {running:.0f}" if queued == 1 else f"run up to {running:.0f} each"
        runs = "has no queue and runs" if room == 1 else "have no queue and run"
        summary = (
            f"{queued:.0f} of {engines:.0f} engines {has} {waiting:.0f} waiting requests and"
            f" {each};"
            f" {room:.0f} {runs}"
            f" {case.value('server.room_running'):.0f}"
            f"{' each' if room > 1 else ''}, with at most"
            f" {percent(case.value('server.room_kv_ratio'))} of the KV cache in use: look at the"
            " router, and at the engines with a queue"
        )
        return self.fires(
            level,
            evidence,
            summary,
            recoverable=serving.recoverable(case),
            confidence="medium",
        )
