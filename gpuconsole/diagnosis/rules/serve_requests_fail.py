"""serve.requests_fail: requests fail, are refused, or are aborted by their clients."""

from __future__ import annotations

import math

from gpuconsole.diagnosis.rule import Case, Finding, Missing, Rule, Threshold, percent

FAILED = Threshold(
    "failed",
    0.01,
    "of the requests",
    "1 request in 100: above it the 99th percentile is a failed request",
)
ABORTED = Threshold(
    "aborted",
    0.05,
    "of the requests",
    "1 request in 20: people stop some answers; time limits of clients abort many",
)
INVALID = Threshold(
    "invalid",
    0.05,
    "of the requests",
    "1 request in 20: clients make mistakes; more refusals mean a wrong client or a wrong limit",
)
MIN_COUNT = 3
"""Fewer such requests are chance."""
CAUSES = {
    "failed": (
        "Requests fail",
        FAILED,
        "fail",
        "look at the log of the server",
    ),
    "rejected": (
        "The server refuses requests",
        FAILED,
        "are refused",
        "more arrive than the server admits: add replicas, or let clients send fewer at once",
    ),
    "aborted": (
        "Clients abort their requests",
        ABORTED,
        "are aborted by their clients",
        "time limits of clients or of a proxy that are too short for these answers, or people who"
        " stop an answer",
    ),
    "invalid": (
        "The server refuses requests",
        INVALID,
        "are refused (HTTP 4xx)",
        "prompts that are longer than the context, a wrong name of a model or key, or malformed"
        " requests; the answers say which",
    ),
}


class ServeRequestsFail(Rule):
    id = "serve.requests_fail"
    title = "Requests fail"
    clear_title = "Hardly a request fails"
    subject = "serving"
    thresholds = (FAILED, ABORTED, INVALID)
    reads = (
        "client.failed_ratio", "server.failed_ratio", "server.rejected_ratio",
        "server.aborted_ratio", "server.invalid_ratio", "server.requests_per_s",
        "server.requests_ended", "client.requests_ended",
    )  # fmt: skip
    text = """Latencies and rates describe the requests that were answered. The rule counts those
that were not: by the load client, and by the server's own counts of requests that ended with an
error, were refused, or were aborted by their clients. Requests that are refused with HTTP 4xx never
reach the engine; the metrics pages of vLLM and SGLang count such answers. The server has computed
the tokens of an aborted request, but no client gets the answer. The summary of a load and the log
of the server show the error messages."""

    def judge(self, case: Case) -> Finding:
        shares = {
            kind: case.get(f"server.{kind}_ratio", 0.0) / threshold
            for kind, (_, threshold, _, _) in CAUSES.items()
        }
        by_client = case.get("client.failed_ratio", 0.0) / FAILED
        shares["failed"] = max(shares["failed"], by_client)
        evidence = case.if_known(
            ("client.failed_ratio", FAILED),
            *((f"server.{kind}_ratio", entry[1]) for kind, entry in CAUSES.items()),
        )
        if not evidence:
            if not case.has("server.requests_per_s"):
                raise Missing("server.requests_per_s")
            return self.clear(summary="the server counts no failures")
        kind = max(shares, key=lambda name: shares[name])
        level = shares[kind]
        if level < 1:
            return self.clear(min(0.59, level), evidence)
        title, threshold, words, advice = CAUSES[kind]
        share = level * threshold
        ended = "client" if kind == "failed" and by_client >= level else "server"
        count, of = share * (n := case.get(f"{ended}.requests_ended", math.inf)), n
        if count < MIN_COUNT:
            return self.clear(0.59, evidence, f"only {count:.0f} of {of:.0f} requests {words}")
        number = f" ({count:.0f} of {of:.0f})" if math.isfinite(of) else ""
        return self.fires(
            level,
            evidence,
            f"{percent(share)} of the requests{number} {words}: {advice}",
            recoverable=min(0.9, share),
            confidence="high",
            title=title,
        )
