"""watch.sequence_cap: requests wait in a watched server because it runs no more at once, although
the KV cache has room."""

from __future__ import annotations

from gpuconsole.diagnosis.families import serving, watched
from gpuconsole.diagnosis.rule import Case, Finding, Rule, high_if, percent


class WatchSequenceCap(Rule):
    id = "watch.sequence_cap"
    title = "The limit of running sequences is reached"
    clear_title = "The limit of running sequences is not reached"
    subject = "watched"
    thresholds = (watched.TAKEN, watched.FULL)
    knobs = ("max_num_seqs",)
    reads = (
        "server.requests_waiting", "server.requests_running", "server.seats_taken_ratio",
        "server.sequence_limit", "server.kv_cache_full_ratio", "server.kv_cache_usage_ratio",
        "server.requests_short_of_capacity", "server.queue_s", "server.e2e_s",
    )  # fmt: skip
    text = """A server runs at most so many sequences in an iteration (vLLM max_num_seqs, SGLang
max-running-requests, llama.cpp parallel). If all slots are in use, requests wait, and the KV cache
has room, a larger batch would serve them at once: the device is not what limits this server.
Waiting requests and a cache with room alone do not mean that the server computes at its limit. vLLM
has no metric for the limit: while requests wait and the number of running ones stays flat at its
top, that top is the limit. How much a larger batch gains depends on the device, so the gain is
measured and not predicted."""

    def judge(self, case: Case) -> Finding:
        waiting = case.value("server.requests_waiting")
        evidence = case.evidence(
            ("server.requests_waiting", serving.NOTABLE_QUEUE), "server.requests_running"
        )
        evidence += case.if_known(
            "server.kv_cache_usage_ratio", "server.requests_short_of_capacity"
        )
        if not watched.queues(case):
            return self.clear(0.0, evidence, "no request waits for a slot")
        if watched.cache_is_full(case):
            return self.clear(0.5, evidence, "the KV cache is full: more slots would stay empty")
        taken, limit = (
            case.value("server.seats_taken_ratio"),
            int(case.value("server.sequence_limit")),
        )
        evidence += case.evidence(
            ("server.seats_taken_ratio", watched.TAKEN), "server.sequence_limit"
        )
        if taken < watched.TAKEN:
            return self.clear(taken / watched.TAKEN, evidence)
        wanted = 1
        while wanted < limit + waiting:
            wanted *= 2
        known = case.has("server.kv_cache_usage_ratio")
        cache = (
            f"the KV cache is only {percent(case.value('server.kv_cache_usage_ratio'))} full"
            if known
            else "the use of the KV cache is not known"
        )
        summary = (
            f"{limit} requests run, which is the limit, and {waiting:.0f} wait, for"
            f" {percent(watched.queue_ratio(case))} of a request's time; {cache}"
        )
        change = serving.restart(
            case, {"max_num_seqs": wanted}, None, "all waiting requests join the batch"
        )
        return self.fires(
            taken / watched.TAKEN,
            evidence,
            summary,
            recoverable=watched.recoverable(case),
            confidence=high_if(known),
            suggestions=[change],
        )
