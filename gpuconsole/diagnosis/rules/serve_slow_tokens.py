"""serve.slow_tokens: tokens come so slowly, or with gaps so long, that a reader waits for them."""

from __future__ import annotations

from gpuconsole.diagnosis.families import serving
from gpuconsole.diagnosis.rule import Case, Finding, Missing, Rule, Threshold
from gpuconsole.model import units

GAP = Threshold(
    "gap", 1.0, "s", "a wait of 1 s interrupts a person's flow of thought (Nielsen 1993)"
)
CRAWL = Threshold(
    "crawl", 0.5, "s", "two tokens a second: a third of the speed at which people read aloud"
)
SHARE = 0.5
"""What a cure frees at least, where tokens take twice the time that people accept, or more."""


class ServeSlowTokens(Rule):
    id = "serve.slow_tokens"
    title = "Tokens come slowly"
    clear_title = "Tokens come at a readable speed"
    subject = "serving"
    thresholds = (GAP, CRAWL, serving.BUSY_HOST)
    reads = (
        "client.chunk_gap_p99_s", "client.chunk_gap_p50_s", "client.tpot_s", "server.itl_s",
        "server.itl_p99_lower_s", "server.requests_running",
        "server.on_gpu_ratio", "host.run_queue_delay_ratio",
    )  # fmt: skip
    text = """One gap between tokens in a hundred takes a second or more, or a token takes half a
second on average. The rule names the symptom where no other rule names the cause: long prompts
stall tokens (serve.prefill_stalls_decode), evicted requests wait (serve.kv_bound). What remains is
often a model that runs partly on the CPU, keys and values that are loaded from the host or from
another server, a host without a free core, or one long prompt that is read between two tokens."""

    def judge(self, case: Case) -> Finding:
        _, tail = serving.gap_signals(case)
        mean = "server.itl_s" if case.has("server.itl_s") else "client.tpot_s"
        if not case.has(tail) and not case.has(mean):
            raise Missing("server.itl_s")
        evidence = case.if_known((tail, GAP), (mean, CRAWL), "server.requests_running")
        evidence += case.if_known("host.run_queue_delay_ratio", "server.on_gpu_ratio")
        longest, each = case.get(tail, 0.0), case.get(mean, 0.0)
        level = max(longest / GAP, each / CRAWL)
        if level < 1:
            return self.clear(min(0.59, level), evidence)
        parts = []
        if each >= CRAWL:
            parts.append(f"a token takes {units.duration(each).strip()} on average")
        if longest >= GAP:
            words = "longer than " if tail in serving.PAGE_GAPS else ""
            parts.append(
                f"one gap between tokens in a hundred is {words}{units.duration(longest).strip()}"
            )
        return self.fires(
            level,
            evidence,
            f"{', and '.join(parts)}{_with(case)}: {_causes(case)}",
            recoverable=SHARE,
            confidence="medium",
        )


def _with(case: Case) -> str:
    running = case.get("server.requests_running", 0.0)
    more = "" if round(running) == 1 else "s"
    return f", with {running:.0f} request{more} running" if running >= 0.5 else ""


def _causes(case: Case) -> str:
    if serving.host_is_busy(case):
        return "tasks on this machine wait for a core"
    if case.get("server.on_gpu_ratio", 1.0) < 1:
        return "a part of the model runs on the CPU"
    return (
        "possible causes are a part of the model on the CPU, keys and values that are loaded from"
        " elsewhere, a host without a free core, or a long prompt that is read between two tokens"
    )
