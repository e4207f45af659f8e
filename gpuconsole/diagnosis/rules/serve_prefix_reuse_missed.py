"""serve.prefix_reuse_missed: prompts begin alike, and the server computes that beginning anew each time."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case, Rule, Threshold, clear, fires, some, suggest
from gpuconsole.diagnosis.rules import _serving
from gpuconsole.model.finding import Finding

ID = "serve.prefix_reuse_missed"
TITLE = "Shared prompt beginnings are computed again and again"
SHARED = Threshold("shared", 0.2, "ratio", "a fifth of each prompt is the same in all (DIAGNOSIS I13)")
FOUND = Threshold("found", 0.5, "of the shared", "less than half of what could be found is found (DIAGNOSIS I13; vllm-doctor .5)")


def check(case: Case) -> Finding:
    shared = case.value("client.shared_prefix_ratio")
    found = case.get("server.prefix_hit_ratio", 0.0)
    if shared < SHARED.value:
        return clear(ID, TITLE, shared / SHARED.value, (case.evidence("client.shared_prefix_ratio", SHARED.value),))
    hits = (case.evidence("server.prefix_hit_ratio"),) if "server.prefix_hit_ratio" in case.signals else ()
    evidence = (
        case.evidence("client.shared_prefix_ratio", SHARED.value),
        *hits,
        case.evidence("client.ttft_s"),
        case.evidence("server.prefill_s"),
    )
    if found >= FOUND.value * shared:
        return clear(ID, TITLE, FOUND.value * shared / max(found, 1e-9), evidence)
    prefill, decode = case.value("server.prefill_s"), case.value("server.decode_s")
    missed = (shared - found) * max(prefill / max(1e-9, prefill + decode), _serving.stalled_ratio(case))
    return fires(
        ID,
        TITLE,
        f"{shared:.0%} of each prompt is the same in all, and {found:.0%} of the prompt tokens came from the cache",
        recoverable=max(0.05, missed),
        confidence="high",
        evidence=evidence,
        suggestions=some(
            suggest(
                case,
                {"enable_prefix_caching": True},
                None,
                "the beginning is computed once",
                "vllm serve ... --enable-prefix-caching; keep what varies (dates, names) at the end of the prompt",
            )
        ),
        level=shared / SHARED.value,
    )


RULE = Rule(
    id=ID,
    title=TITLE,
    signals=("client.shared_prefix_ratio", "server.prefill_s", "server.decode_s", "client.chunk_gap_s", "client.ttft_s"),
    thresholds=(SHARED, FOUND),
    text="""The console knows its own prompts: how much of them is the same in all is a knob. The server tells how many prompt tokens it found in its
prefix cache. Where little is found of much that is shared, caching is off, the cache is too small, or something that varies stands early in the
prompt. Other tools warn at a low hit rate even when nothing is shared; here both are known.""",
    check=check,
    serving=True,
)
