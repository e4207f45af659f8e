"""serve.prefix_reuse_missed: prompts begin alike, and the server computes that beginning anew each time."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case
from gpuconsole.diagnosis.rule import Rule, Threshold
from gpuconsole.diagnosis.rules import _serving
from gpuconsole.diagnosis.suggest import speedup_interval, suggest
from gpuconsole.model.finding import Evidence, Finding, Interval

SHARED = Threshold("shared", 0.2, "ratio", "a fifth of the prompts' text is the beginning of another too (DIAGNOSIS I13)")
NO_DIFFERENCE = Threshold("no difference", 1.1, "x", "a tenth: what a probe of 2.5 s a side resolves on a quiet machine")
GAIN = Threshold("gain", 1.05, "x", "5 %: less is not worth a change")
PREDICTION_ERROR = 0.25
MOST_PASSES = 3
"""Where a server gathers the pages of a sequence before it attends, they are read, written and read again; a paged kernel reads them once."""
ATTENDED = ("server.requests_per_s", "client.prompt_tokens", "client.output_tokens", "server.kv_bytes_per_token", "server.peak_bytes_per_s")
FOUND = Threshold("found", 0.5, "of the shared", "less than half of what could be found is found (DIAGNOSIS I13; vllm-doctor .5)")


class ServePrefixReuseMissed(Rule):
    id = "serve.prefix_reuse_missed"
    title = "Shared prompt prefixes are computed repeatedly"
    clear_title = "No shared prompt prefix is computed repeatedly"
    subject = "serving"
    thresholds = (SHARED, FOUND, NO_DIFFERENCE, GAIN)
    knobs = ("enable_prefix_caching",)
    text = """The console compares the prompts that it sends: how much of their text is a beginning that another one has too. The server tells
how many prompt tokens it found in its prefix cache. Where little is found of much that is shared, caching is off, the cache is too small, or
something that varies stands early in the prompt. Other tools warn at a low hit rate even when nothing is shared; here both are known.
A server that tells no hits is asked in another way (probe P13): the same prompts, each with a beginning of its own, which no cache can know;
if they are served as fast, nothing was reused. The same probe sends the prompts without the part that they share: so much faster the server
would be if that part did not exist. Reused, it is still attended to by every token that is generated: the prediction takes that off, by
the bytes of its keys and values over the bandwidth."""

    def check(self, case: Case) -> Finding:
        predicted: Interval | None
        wants: tuple[str, ...]
        shared = case.value("client.shared_prefix_ratio")
        if shared < SHARED.value:
            return self.clear(shared / SHARED.value, (case.evidence("client.shared_prefix_ratio", SHARED.value),))
        evidence: tuple[Evidence, ...] = (case.evidence("client.shared_prefix_ratio", SHARED.value), case.evidence("client.ttft_s"))
        if not case.knobs["enable_prefix_caching"]:
            told = "prefix caching is off"
        elif case.has("server.prefix_hit_ratio"):
            found = case.value("server.prefix_hit_ratio")
            evidence += (case.evidence("server.prefix_hit_ratio", FOUND.value * shared),)
            told = f"{found:.0%} of the prompt tokens came from the cache"
            if found >= FOUND.value * shared:
                return self.clear(min(0.59, FOUND.value * shared / max(found, 1e-9)), evidence)
        else:  # a server that does not tell: what becomes of the same prompts when no cache can know them?
            salt = case.value("probe.prefix_salt_ratio")
            evidence += (case.evidence("probe.prefix_salt_ratio", NO_DIFFERENCE.value),)
            told = f"with a beginning of its own for each they are served as fast ({salt:.2f}x): nothing is reused"
            if salt >= NO_DIFFERENCE.value:
                return self.clear(min(0.59, NO_DIFFERENCE.value / salt), evidence)
        if case.has("probe.prefix_cut_gain"):
            gain = case.value("probe.prefix_cut_gain")
            evidence += (case.evidence("probe.prefix_cut_gain", GAIN.value),)
            evidence += case.if_known(*ATTENDED)
            told += f"; without that part they are served {gain:.2f}x as fast"
            predicted = _predicted(case, shared, gain)
            if predicted.middle < GAIN.value:
                return self.clear(
                    gain / GAIN.value * 0.5, evidence, "with what they share in a cache the prompts would be served no faster"
                )
            recoverable, wants = 1 - 1 / predicted.middle, ()
        else:
            recoverable, predicted, wants = _at_stake(case, shared), None, ("probe.prefix_cut_gain",)
        return self.fires(
            f"{shared:.0%} of the prompts' text is a beginning that others have too, and {told}",
            recoverable=recoverable,
            confidence="high",
            evidence=evidence,
            suggestions=[
                suggest(
                    case,
                    {"enable_prefix_caching": True},
                    predicted,
                    "the beginning is computed once",
                    "vllm serve ... --enable-prefix-caching; keep what varies (dates, names) at the end of the prompt",
                )
            ],
            level=shared / SHARED.value,
            wants=wants,
        )


def _predicted(case: Case, shared: float, gain: float) -> Interval:
    """What the probe's gain leaves when what is shared need not be computed, and yet every token that is generated attends to it.

    A request takes T/gain without that part; with it in the cache, its keys and values are still read for each output token:
    prompt tokens x shared x output tokens x bytes of a token's keys and values / peak bandwidth, once or MOST_PASSES times.
    """
    if any(case.get(name, 0.0) <= 0 for name in ATTENDED):
        return speedup_interval(gain, PREDICTION_ERROR)
    rate, prompt, output, token_bytes, peak = (case.value(name) for name in ATTENDED)
    request_s, reading_s = 1 / rate, shared * prompt * output * token_bytes / peak
    least, most = (request_s / (request_s / gain + passes * reading_s) for passes in (MOST_PASSES, 1))
    return Interval(max(1.0, least), max(1.0, most))


def _at_stake(case: Case, shared: float) -> float:
    """Until it is measured: what is shared of the prefill, where the server tells how long that takes."""
    prefill, decode = case.get("server.prefill_s", 0.0), case.get("server.decode_s", 0.0)
    return max(0.05, shared * max(prefill / max(1e-9, prefill + decode), _serving.stalled_ratio(case)))
