"""serve.seats_too_few: requests wait although the KV cache has room, because max_num_seqs admits no
more."""

from __future__ import annotations

from gpuconsole.diagnosis.families import serving
from gpuconsole.diagnosis.rule import Case, Finding, Rule, Threshold, percent

TAKEN = Threshold(
    "taken",
    0.5,
    "ratio",
    (
        "all slots are in use in most readings (survey I03: 0.8; but answers of one length end"
        " together: 0.68 in DiagBench V02)"
    ),
)
ROOM = Threshold(
    "room", 0.8, "ratio", "with the KV cache below 80 %, more sequences fit (survey I03)"
)


class ServeSeatsTooFew(Rule):
    id = "serve.seats_too_few"
    title = "Too few sequence slots (max_num_seqs)"
    clear_title = "Enough sequence slots (max_num_seqs)"
    subject = "serving"
    thresholds = (TAKEN, ROOM)
    knobs = ("max_num_seqs",)
    reads = (
        "server.seats_taken_ratio", "server.requests_waiting", "server.requests_running",
        "server.kv_cache_usage_ratio", "client.request_rate", "server.queue_s", "server.e2e_s",
    )  # fmt: skip
    text = """max_num_seqs limits how many sequences take part in an iteration. If all sequence
slots are in use, requests wait, and the KV cache has room, a larger batch would serve them at once.
Each iteration then takes longer, but one read of the weights serves more sequences. The device
decides how much longer an iteration takes. Therefore the rule predicts no gain: a trial measures
the gain. Some readings show free slots although requests wait: answers of the same length end
together, and a reading can fall between the end of one request and the start of the next. In an
open loop, requests above the capacity fill any number of slots: see serve.over_capacity."""

    def judge(self, case: Case) -> Finding:
        taken, waiting = (
            case.value("server.seats_taken_ratio"),
            case.value("server.requests_waiting"),
        )
        evidence = case.evidence(
            ("server.seats_taken_ratio", TAKEN), ("server.requests_waiting", serving.NOTABLE_QUEUE)
        )
        evidence += case.evidence("server.requests_running", ("server.kv_cache_usage_ratio", ROOM))
        if waiting < serving.NOTABLE_QUEUE or serving.open_loop(case):
            why = (
                "an open loop fills any number of sequence slots"
                if serving.open_loop(case)
                else "no request waits"
            )
            return self.clear(min(taken / TAKEN, 0.5), evidence, why)
        if case.value("server.kv_cache_usage_ratio") >= ROOM:
            return self.clear(
                0.5, evidence, "the KV cache is full: more sequence slots would stay empty"
            )
        if taken < TAKEN:
            return self.clear(taken / TAKEN, evidence)
        slots = int(case.setting("max_num_seqs"))
        wanted = 1
        while wanted < slots + waiting:
            wanted *= 2
        queue = serving.queue_ratio(case)
        summary = (
            f"{case.value('server.requests_running'):.0f} requests run and {waiting:.0f} wait, for"
            f" {percent(queue)} of a request's time, although the KV cache is only"
            f" {percent(case.value('server.kv_cache_usage_ratio'))} full"
        )
        change = serving.restart(
            case, {"max_num_seqs": wanted}, None, "all waiting requests join the batch"
        )
        return self.fires(
            taken / TAKEN,
            evidence,
            summary,
            recoverable=queue,
            confidence="high",
            suggestions=[change],
        )
