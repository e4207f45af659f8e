"""serve.sequence_cap: requests wait because the server runs no more at once, although the KV cache
has room."""

from __future__ import annotations

from gpuconsole.diagnosis.families import serving
from gpuconsole.diagnosis.rule import (
    CantTell,
    Case,
    Confidence,
    Finding,
    Missing,
    Rule,
    Threshold,
    percent,
)
from gpuconsole.session.server_signals import REPLACED

FEW = Threshold(
    "few",
    16.0,
    "requests",
    "below the smallest default limit of an engine that batches (vLLM 256, SGLang thousands)",
)
ROOM = Threshold(
    "room", 0.8, "ratio", "above 80 % of the KV cache it is the next limit (survey I03)"
)
UNKNOWN_GAIN = 0.5
"""The part of the wait that counts as recoverable where nobody knows whether the device has room:
the middle between none of the wait and all of it."""
OTHERS = "one long request at the head of the queue, slots of adapters (LoRA), a grammar, or a hang"
NO_FLAG = {
    "tgi": (
        "TGI has no limit of sequences on a GPU: its batch grows up to --max-batch-total-tokens,"
        " which follows from the free memory (--cuda-memory-fraction)"
    )
}


class ServeSequenceCap(Rule):
    id = "serve.sequence_cap"
    title = "The limit of running sequences is reached"
    clear_title = "The limit of running sequences is not reached"
    subject = "serving"
    once = ("serve.seats_too_few", "watch.sequence_cap")
    thresholds = (serving.TAKEN, serving.FULL, serving.MFU, FEW, ROOM)
    knobs = ("max_num_seqs",)
    reads = (
        "server.requests_waiting", "server.requests_running", "server.engine_running",
        "server.slots_taken_ratio", "server.sequence_limit", "server.sequence_top",
        "server.kv_cache_full_ratio", "server.kv_cache_usage_ratio",
        "server.requests_short_of_capacity", "server.queue_s", "server.e2e_s", "mfu_ratio",
        "client.request_rate", "server.engines", "server.requests_ended",
    )  # fmt: skip
    text = """A server runs at most so many sequences in an iteration (vLLM max_num_seqs, SGLang
max-running-requests, llama.cpp parallel). If all slots are in use, requests wait, and the KV cache
has room, a larger batch would serve them at once. Each iteration then takes longer, but one read of
the weights serves more sequences. The device decides how much longer an iteration takes: a device
that computes at half of its peak gains little, and every token comes later. So the rule predicts no
gain: a trial measures it.
The server removes an ended request from the count of running requests before it adds the next
request. So a reading may be below the limit by the number of requests that end between two
readings. If the server does not report the limit, the rule infers it: while requests wait, the
count stays at its maximum, and new requests replace ended ones at once. The true limit is at least
this count, and the confidence is medium at most. With few running requests, or if hardly an answer
ends in this time, other causes are possible, and the finding names them. With fewer than four
running requests the rule has no conclusion. In an open loop, requests above the capacity fill any
number of slots: see serve.over_capacity."""

    def judge(self, case: Case) -> Finding:
        waiting = case.value("server.requests_waiting")
        evidence = case.evidence(
            ("server.requests_waiting", serving.NOTABLE_QUEUE), "server.requests_running"
        )
        evidence += case.if_known(
            "server.kv_cache_usage_ratio", "server.requests_short_of_capacity", "mfu_ratio"
        )
        if not serving.queues(case):
            return self.clear(0.0, evidence, "no request waits for a slot")
        if case.get("client.request_rate", 0.0) > 0:
            why = "an open loop fills any number of sequence slots"
            return self.clear(0.5, evidence, why)
        if (
            serving.cache_is_full(case)
            or case.get("server.kv_cache_usage_ratio", 0.0) >= serving.FULL
        ):
            return self.clear(0.5, evidence, "the KV cache is full: more slots would stay empty")
        if case.get("mfu_ratio", 0.0) >= serving.MFU:
            why = "the device computes near its peak: in a larger batch each token takes longer"
            return self.clear(0.5, evidence, why)
        limit, level = serving.sequence_limit(case), 1.0
        known = limit is not None
        if limit is None:
            limit = _inferred(case)
            evidence += case.evidence("server.sequence_top")
        else:
            level = case.value("server.slots_taken_ratio") / serving.TAKEN
            evidence += case.evidence(("server.slots_taken_ratio", serving.TAKEN))
            evidence += case.if_known("server.sequence_limit")
            if level < 1:
                return self.clear(level, evidence)
        wanted = 1
        while wanted < limit + waiting / case.get("server.engines", 1.0):
            wanted *= 2
        change = serving.restart(
            case, {"max_num_seqs": wanted}, None, "all waiting requests join the batch"
        )
        gain = 1 - case.value("mfu_ratio") / serving.MFU if case.has("mfu_ratio") else UNKNOWN_GAIN
        return self.fires(
            level,
            evidence,
            _summary(case, limit, waiting, known),
            recoverable=max(0.05, serving.recoverable(case) * gain),
            confidence=_confidence(case, limit, known),
            suggestions=[change],
        )


def _inferred(case: Case) -> float:
    """The limit that the readings show. Raises CantTell where they show none."""
    if case.has("server.sequence_top"):
        return case.value("server.sequence_top")
    running, waiting = serving.running_of_engine(case), case.value("server.requests_waiting")
    if running >= FEW:
        raise Missing("server.sequence_limit")
    raise CantTell(
        f"{running:.0f} requests run and {waiting:.0f} wait, and the limit of running sequences is"
        f" not known: a limit of {running:.0f} is possible, and so is {OTHERS}"
    )


def _summary(case: Case, limit: float, waiting: float, known: bool) -> str:
    used = case.get("server.kv_cache_usage_ratio", -1.0)
    cache = (
        "the use of the KV cache is not known"
        if used < 0
        else f"the KV cache is only {percent(used)} full"
        if used < ROOM
        else f"the KV cache is {percent(used)} full and would be the next limit"
    )
    running = (
        f"{serving.running_of_engine(case):.0f} of at most {limit:.0f} requests run"
        if known
        else f"{limit:.0f} requests run at once (the limit is at least that, inferred)"
    )
    others = (
        f"; other causes are possible: {OTHERS}" if not known and _doubtful(case, limit) else ""
    )
    flag = NO_FLAG.get(serving.engine_of(case), "")
    waits = f"{waiting:.0f} wait{serving.queue_words(case)}"
    return f"{running}, and {waits}; {cache}{others}{f'. {flag}' if flag else ''}"


def _confidence(case: Case, limit: float, known: bool) -> Confidence:
    if known and case.has("server.kv_cache_usage_ratio"):
        return "high"
    return "low" if not known and _doubtful(case, limit) else "medium"


def _doubtful(case: Case, limit: float) -> bool:
    """Return whether an inferred limit may have another cause: few requests run, or hardly one of
    them has ended and was replaced."""
    return limit < FEW or case.get("server.requests_ended", 0.0) < REPLACED * limit
