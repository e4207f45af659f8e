"""serve.prefix_reuse_missed: prompts share a prefix, and the server computes the prefix again each
time."""

from __future__ import annotations

from gpuconsole.diagnosis.families import serving
from gpuconsole.diagnosis.rule import (
    Case,
    Finding,
    Interval,
    Rule,
    Threshold,
    percent,
    speedup_interval,
)

SHARED = Threshold(
    "shared",
    0.2,
    "ratio",
    "20 % of the text of the prompts is a prefix of another prompt too (survey I13)",
)
NO_DIFFERENCE = Threshold(
    "no difference",
    1.1,
    "x",
    "10 %: the resolution of a probe with 2.5 s per side on a quiet machine",
)
GAIN = Threshold("gain", 1.05, "x", "a gain below 5 % is not worth a change")
PREDICTION_ERROR = 0.25
MAX_PASSES = 3
"""Passes over the keys and values if a server gathers pages before attention (read, write, read); a
paged kernel reads them once."""
ATTENDED = (
    "server.requests_per_s",
    "client.prompt_tokens",
    "client.output_tokens",
    "server.kv_bytes_per_token",
    "server.peak_bytes_per_s",
)
FOUND = Threshold(
    "found",
    0.5,
    "of the shared",
    "less than half of the shared part is found (survey I13; vllm-doctor 0.5)",
)


class ServePrefixReuseMissed(Rule):
    id = "serve.prefix_reuse_missed"
    title = "Shared prompt prefixes are computed repeatedly"
    clear_title = "No shared prompt prefix is computed repeatedly"
    subject = "load"
    thresholds = (SHARED, FOUND, NO_DIFFERENCE, GAIN)
    knobs = ("enable_prefix_caching",)
    reads = (
        "client.shared_prefix_ratio", "client.ttft_s", "server.prefix_hit_ratio",
        "probe.prefix_cut_gain", "server.requests_per_s", "client.prompt_tokens",
        "client.output_tokens", "server.kv_bytes_per_token", "server.peak_bytes_per_s",
        "probe.prefix_salt_ratio", "server.prefill_s", "server.decode_s", "client.chunk_gap_p50_s",
        "client.chunk_gap_s",
    )  # fmt: skip
    text = """The console compares the prompts that it sends: how much of their text is a prefix
that another prompt has too. The server reports how many prompt tokens it found in its prefix cache.
If it finds little of a large shared prefix, caching is off, the cache is too small, or a varying
part is early in the prompt. Other tools warn at a low hit rate even if prompts share nothing; this
rule checks both.
For a server that reports no hits, probe P13 sends the same prompts, each with a unique prefix that
no cache can hold. If they are answered as fast, nothing was reused. P13 also sends the prompts
without their shared part, which gives the gain if that part did not exist. Every generated token
still attends to a reused prefix. The prediction subtracts that: bytes of its keys and values over
the bandwidth."""

    def judge(self, case: Case) -> Finding:
        predicted: Interval | None = None
        missing: tuple[str, ...] = ()
        shared = case.value("client.shared_prefix_ratio")
        if shared < SHARED:
            return self.clear(
                shared / SHARED, case.evidence(("client.shared_prefix_ratio", SHARED))
            )
        evidence = case.evidence(("client.shared_prefix_ratio", SHARED), "client.ttft_s")
        if not case.knobs.get("enable_prefix_caching", True):
            reuse = "prefix caching is off"
        elif case.has("server.prefix_hit_ratio"):
            hits = case.value("server.prefix_hit_ratio")
            evidence += case.evidence(("server.prefix_hit_ratio", FOUND * shared))
            reuse = f"{percent(hits)} of the prompt tokens came from the cache"
            if hits >= FOUND * shared:
                return self.clear(min(0.59, FOUND * shared / max(hits, 1e-9)), evidence)
        else:  # the server reports no hits: probe P13 decides
            salt = case.value("probe.prefix_salt_ratio")
            evidence += case.evidence(("probe.prefix_salt_ratio", NO_DIFFERENCE))
            reuse = (
                f"prompts with unique prefixes are answered as fast ({salt:.2f}x): nothing is"
                " reused"
            )
            if salt >= NO_DIFFERENCE:
                return self.clear(min(0.59, NO_DIFFERENCE / salt), evidence)
        if case.has("probe.prefix_cut_gain"):
            gain = case.value("probe.prefix_cut_gain")
            evidence += case.evidence(("probe.prefix_cut_gain", GAIN))
            evidence += case.if_known(*ATTENDED)
            reuse += f". Without the shared part they are answered {gain:.2f}x as fast"
            predicted = _predicted(case, shared, gain)
            if predicted.middle < GAIN:
                return self.clear(
                    gain / GAIN * 0.5, evidence, "a cached prefix would make the answers no faster"
                )
            recoverable = 1 - 1 / predicted.middle
        else:
            recoverable, missing = _at_stake(case, shared), ("probe.prefix_cut_gain",)
        summary = f"{percent(shared)} of the text of the prompts is a shared prefix, and {reuse}"
        code = (
            "vllm serve ... --enable-prefix-caching; put what varies (dates, names) at the end of"
            " the prompt"
        )
        change = case.suggest(
            {"enable_prefix_caching": True}, predicted, "the shared prefix is computed once", code
        )
        level = shared / SHARED
        return self.fires(
            level,
            evidence,
            summary,
            recoverable=recoverable,
            confidence="high",
            for_prediction=missing,
            suggestions=[change],
        )


def _predicted(case: Case, shared: float, gain: float) -> Interval:
    """The speed-up with the shared prefix in a cache.

    A request takes T/gain without the shared part. With that part in a cache, each output token
    still reads its keys and values: prompt tokens x shared x output tokens x bytes of a token's
    keys and values / peak bandwidth, once or MAX_PASSES times.
    """
    if any(case.get(name, 0.0) <= 0 for name in ATTENDED):
        return speedup_interval(gain, PREDICTION_ERROR)
    rate, prompt, output, token_bytes, peak = (case.value(name) for name in ATTENDED)
    request_s, reading_s = 1 / rate, shared * prompt * output * token_bytes / peak
    least, most = (
        request_s / (request_s / gain + passes * reading_s) for passes in (MAX_PASSES, 1)
    )
    return Interval(max(1.0, least), max(1.0, most))


def _at_stake(case: Case, shared: float) -> float:
    """The recoverable share before the probe: the shared part of the prefill time, if the server
    reports that time."""
    prefill, decode = case.get("server.prefill_s", 0.0), case.get("server.decode_s", 0.0)
    return max(
        0.05, shared * max(prefill / max(1e-9, prefill + decode), serving.stalled_ratio(case))
    )
