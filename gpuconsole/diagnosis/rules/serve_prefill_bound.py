"""serve.prefill_bound: most of a request's time in the server goes into reading its prompt."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case
from gpuconsole.diagnosis.rule import Rule, Threshold
from gpuconsole.diagnosis.suggest import suggest
from gpuconsole.model.finding import Finding

SHARE = Threshold("share", 0.5, "ratio", "half of the time in prefill warns, 70 % is high (tensward; DIAGNOSIS I05)")


class ServePrefillBound(Rule):
    id = "serve.prefill_bound"
    title = "Prefill takes most of the time"
    clear_title = "Prefill is not the bottleneck"
    subject = "serving"
    thresholds = (SHARE,)
    knobs = ("prompt_tokens",)
    text = """A prompt of n tokens costs 2 P n FLOPs (P parameters) before the first token comes; no batching makes that less. What helps: shorter
prompts, a prefix cache for what they share, lower precision, tensor parallelism for the latency, prefill on machines of its own. The server's
own account of time in prefill and decode is compared, both from admission on, without the queue."""

    def check(self, case: Case) -> Finding:
        prefill, decode = case.value("server.prefill_s"), case.value("server.decode_s")
        share = prefill / max(1e-9, prefill + decode)
        evidence = (
            case.evidence("server.prefill_s"),
            case.evidence("server.decode_s"),
            case.evidence("client.prompt_tokens"),
            case.evidence("client.output_tokens"),
        )
        if share < SHARE.value:
            return self.clear(share / SHARE.value, evidence)
        return self.fires(
            f"{share:.0%} of the time between admission and last token is prefill: {case.value('client.prompt_tokens'):.0f} prompt tokens "
            f"for {case.value('client.output_tokens'):.0f} of output",
            recoverable=share * 0.5,
            confidence="high" if share >= 0.7 else "medium",
            evidence=evidence,
            suggestions=[
                suggest(
                    case,
                    {"prompt_tokens": max(1, round(case.value("client.prompt_tokens") / 2))},
                    None,
                    "half the prompt: retrieve less, or summarise",
                    "shorten the prompts; or put what they share first and keep --enable-prefix-caching",
                )
            ],
            level=share / SHARE.value,
        )
