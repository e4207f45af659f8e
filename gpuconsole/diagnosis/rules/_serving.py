"""What several rules about model servers share."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case

NOTABLE_QUEUE = 1.0
"""Fewer requests than this waiting on average are a passing moment, not a queue."""


def queue_ratio(case: Case) -> float:
    """Time in the server's queue over all of a request's time in the server."""
    return case.value("server.queue_s") / max(1e-9, case.value("server.e2e_s"))


def context_tokens(case: Case) -> float:
    """Tokens that a sequence holds on average while it decodes: its prompt and half of its answer."""
    return case.value("client.prompt_tokens") + case.value("client.output_tokens") / 2


def kv_bytes(case: Case) -> float:
    """Keys and values that one decoding iteration reads, of all sequences that run."""
    return case.value("server.requests_running") * context_tokens(case) * case.value("server.kv_bytes_per_token")


def stalled_ratio(case: Case) -> float:
    """Share of the time between chunks that is more than the usual gap: while others' prompts are read, nobody gets a token."""
    return max(0.0, 1 - case.value("client.chunk_gap_p50_s") / max(1e-9, case.value("client.chunk_gap_s")))


def open_loop(case: Case) -> bool:
    return case.value("client.request_rate") > 0
