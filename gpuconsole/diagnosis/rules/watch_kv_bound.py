"""watch.kv_bound: a watched server's KV cache is full, so requests wait or are thrown out and
computed again."""

from __future__ import annotations

from gpuconsole.diagnosis.families import serving, watched
from gpuconsole.diagnosis.rule import Case, Finding, Rule, high_if, percent

MAX_UTILIZATION = 0.95


class WatchKvBound(Rule):
    id = "watch.kv_bound"
    title = "The KV cache limits this server"
    clear_title = "The KV cache has room"
    subject = "watched"
    thresholds = (watched.RATE, watched.FULL, watched.TAKEN)
    knobs = ("gpu_memory_utilization", "max_num_seqs")
    reads = (
        "server.kv_cache_peak_ratio", "server.kv_cache_full_ratio",
        "server.preemptions_per_request", "server.requests_waiting",
        "server.requests_short_of_capacity", "server.requests_running", "server.queue_s",
        "server.e2e_s",
    )  # fmt: skip
    text = """A request needs a block of the KV cache for each of its tokens. If none is free, a new
request waits, and a running one may be thrown out (preempted, retracted) and computed again. The
rule fires where the server preempts with a full cache, or where the cache is full in most readings
and requests wait. More memory for the cache, keys and values in fp8, or shorter contexts hold more
requests; fewer requests at once end the preemptions. vLLM's counter of preemptions lags by some
seconds. Blocks that only hold a prefix for later count as free."""

    def judge(self, case: Case) -> Finding:
        peak = case.value("server.kv_cache_peak_ratio")
        evidence = case.evidence(
            ("server.kv_cache_peak_ratio", watched.FULL),
            ("server.kv_cache_full_ratio", watched.TAKEN),
        )
        evidence += case.if_known(
            ("server.preemptions_per_request", watched.RATE),
            ("server.requests_waiting", serving.NOTABLE_QUEUE),
        )
        preempts, full = (
            watched.preempts(case),
            watched.cache_is_full(case) and watched.queues(case),
        )
        if not preempts and not full:
            return self.clear(min(0.59, peak / watched.FULL), evidence)
        thrown_out = (
            f"{case.get('server.preemptions_per_request', 0.0):.2f} preemptions per request, "
            if preempts
            else ""
        )
        summary = (
            f"{thrown_out}the KV cache is {percent(peak)} full at most,"
            f" {case.value('server.requests_running'):.0f} requests run and"
            f" {case.value('server.requests_waiting'):.0f} wait, for"
            f" {percent(watched.queue_ratio(case))} of a request's time"
        )
        changes = []
        utilization = case.knobs.get("gpu_memory_utilization")
        if not isinstance(utilization, int | float) or utilization < MAX_UTILIZATION:
            why = "a larger share of the device for the cache"
            changes.append(
                serving.restart(case, {"gpu_memory_utilization": MAX_UTILIZATION}, None, why)
            )
        if preempts:
            slots = max(1, int(case.value("server.requests_running") * 0.8))
            changes.append(
                serving.restart(
                    case,
                    {"max_num_seqs": slots},
                    None,
                    "run only as many sequences as the cache can hold to their end",
                )
            )
        share, confidence = watched.recoverable(case), high_if(preempts)
        return self.fires(
            max(1.0, peak / watched.FULL),
            evidence,
            summary,
            recoverable=share,
            confidence=confidence,
            suggestions=changes,
        )
