"""serve.batch_too_small: so few requests share an iteration that reading the weights is most of its
work."""

from __future__ import annotations

from gpuconsole.diagnosis.families import serving
from gpuconsole.diagnosis.families.serving import MORE_USERS as GAIN
from gpuconsole.diagnosis.rule import Case, Finding, Rule, Threshold, speedup_interval

DOMINATE = Threshold(
    "dominate",
    8.0,
    "ratio",
    (
        "if weights are 8 times the keys and values of an iteration, another sequence costs almost"
        " nothing"
    ),
)
PREDICTION_ERROR = 0.25


class ServeBatchTooSmall(Rule):
    id = "serve.batch_too_small"
    title = "Too few requests share an iteration"
    clear_title = "More concurrent requests would gain little"
    subject = "load"
    thresholds = (DOMINATE, GAIN)
    knobs = ("concurrency",)
    reads = (
        "server.weight_bytes", "server.requests_running", "client.prompt_tokens",
        "client.output_tokens", "server.kv_bytes_per_token", "server.requests_waiting",
        "client.request_rate", "probe.concurrency_gain", "probe.concurrency_factor",
    )  # fmt: skip
    text = """Decoding reads all weights once per iteration for any batch, and the keys and values
of each sequence. While the weights dominate, b' sequences instead of b give b' (W + b K) / (b (W +
b' K)) of the throughput (W: bytes of weights, K: bytes of keys and values of a sequence; survey
I09). That is nearly proportional to b', if the kernels reach the memory bandwidth at every batch.
On CPUs they do not: two sequences may take twice the time of one, and eight hardly more than two.
The gain is therefore measured (probe P12: the same load with four times the users, 2.5 s each).
The rule ignores a single user, because one user needs latency (serve.decode_bandwidth_bound). The
latency of one request hardly changes. The load is small here; the server has no fault."""

    def judge(self, case: Case) -> Finding:
        weights, kv, running = (
            case.value("server.weight_bytes"),
            serving.kv_bytes(case),
            case.value("server.requests_running"),
        )
        evidence = case.evidence(
            "server.weight_bytes",
            "server.kv_bytes_per_token",
            "server.requests_running",
            "server.requests_waiting",
        )
        if (
            serving.open_loop(case)
            or int(case.knobs["concurrency"]) < 2
            or running <= 0
            or weights < DOMINATE * kv
            or case.value("server.requests_waiting") >= serving.NOTABLE_QUEUE
        ):
            return self.clear(weights / max(1.0, kv) / DOMINATE * 0.5, evidence)
        gain, factor = case.value("probe.concurrency_gain"), case.value("probe.concurrency_factor")
        evidence += case.evidence(("probe.concurrency_gain", GAIN))
        if gain < GAIN:
            return self.clear(
                gain / GAIN * 0.5, evidence, "the server answered more users no faster (probe P12)"
            )
        users = round(factor * int(case.knobs["concurrency"]))
        summary = (
            f"{running:.1f} sequences share a reading of {weights / 1e6:.0f} MB of weights. "
            f"With {factor:.0f}x the users, throughput rises to {gain:.2f}x"
        )
        why = "more sequences share each reading of the weights"
        code = "send more requests at once; collect requests of several clients"
        change = case.suggest(
            {"concurrency": users}, speedup_interval(gain, PREDICTION_ERROR), why, code
        )
        return self.fires(
            gain / GAIN,
            evidence,
            summary,
            recoverable=1 - 1 / gain,
            confidence="high",
            suggestions=[change],
        )
