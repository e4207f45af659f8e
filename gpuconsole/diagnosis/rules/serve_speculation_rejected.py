"""serve.speculation_rejected: the model rejects most of the tokens that speculative decoding
drafts."""

from __future__ import annotations

from gpuconsole.diagnosis.rule import Case, Finding, Rule, Threshold, percent

RATE = Threshold(
    "rate",
    0.15,
    "of the drafted tokens",
    (
        "k drafted tokens, of which a share r is accepted, at c of the time of a step each, give"
        " (1 + k r) / (1 + k c): a gain only if r is above c, which is 0.05 to 0.2 (Leviathan,"
        " Kalman and Matias 2023)"
    ),
)
LENGTH = Threshold(
    "length",
    1.2,
    "tokens",
    "a step that gives less than 1.2 tokens gains less than its drafts cost (the same formula)",
)
SHARE = 0.1


class ServeSpeculationRejected(Rule):
    id = "serve.speculation_rejected"
    title = "Most drafted tokens are rejected"
    clear_title = "Drafted tokens are accepted"
    subject = "serving"
    thresholds = (RATE, LENGTH)
    reads = ("server.accept_ratio", "server.accept_length", "server.requests_running")
    text = """Speculative decoding drafts some tokens with a small model, a head of the model, or
text that came before, and the model checks them in one step. Each accepted token saves a step; each
rejected one has cost its draft and its check. Where few are accepted, decoding is slower than
without. Fewer drafted tokens, a draft model that was trained for this model and this kind of text,
or no speculation help. With a large batch the checks cost the most, because the device has no idle
arithmetic left for them."""

    def judge(self, case: Case) -> Finding:
        evidence = case.if_known(("server.accept_ratio", RATE), ("server.accept_length", LENGTH))
        if not evidence:
            case.value("server.requests_running")
            return self.clear(summary="the server reports no speculative decoding")
        if case.has("server.accept_ratio"):
            rate = case.value("server.accept_ratio")
            level, words = RATE / max(rate, 1e-9), f"{percent(rate)} of the drafted tokens"
        else:
            length = case.value("server.accept_length")
            level, words = LENGTH / max(length, 1e-9), f"{length:.2f} tokens of a step"
        if level <= 1:
            return self.clear(min(0.59, level), evidence)
        return self.fires(
            level,
            evidence,
            f"the model accepts only {words}: draft fewer tokens, use another draft model, or"
            " switch speculation off",
            recoverable=SHARE,
            confidence="medium",
        )
