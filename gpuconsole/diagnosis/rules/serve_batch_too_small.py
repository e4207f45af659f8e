"""serve.batch_too_small: so few sequences share an iteration that reading the weights is most of its work."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case
from gpuconsole.diagnosis.rule import Rule, Threshold
from gpuconsole.diagnosis.rules import _serving
from gpuconsole.diagnosis.rules._serving import MORE_USERS as GAIN
from gpuconsole.diagnosis.suggest import speedup_interval, suggest
from gpuconsole.model.finding import Evidence, Finding

DOMINATE = Threshold(
    "dominate", 8.0, "ratio", "weights 8 times the keys and values of an iteration: another sequence costs next to nothing"
)
PREDICTION_ERROR = 0.25


class ServeBatchTooSmall(Rule):
    id = "serve.batch_too_small"
    title = "Too few requests share an iteration"
    clear_title = "More concurrent requests would gain little"
    subject = "serving"
    thresholds = (DOMINATE, GAIN)
    knobs = ("concurrency",)
    text = """Decoding reads all weights once per iteration, whatever the batch, and each sequence's keys and values beside them. While the
weights are most of it, b' sequences in place of b give b' (W + b K) / (b (W + b' K)) of the throughput (W weight bytes, K bytes of keys and
values of a sequence; DIAGNOSIS I09): nearly in proportion, if the kernels reach the memory's bandwidth at every batch. On CPUs they do not:
two sequences may cost twice one, and eight hardly more than two. So the gain is not computed but measured (probe P12: the same load by four
times the users, for 2.5 s each). A single user is left alone: what counts for one is latency (serve.decode_bandwidth_bound). The latency of
one request hardly changes. It is the load that is small, not the server: a single user is served as fast as the memory allows."""

    def check(self, case: Case) -> Finding:
        weights, kv, running = case.value("server.weight_bytes"), _serving.kv_bytes(case), case.value("server.requests_running")
        evidence: tuple[Evidence, ...] = (
            case.evidence("server.weight_bytes"),
            case.evidence("server.kv_bytes_per_token"),
            case.evidence("server.requests_running"),
            case.evidence("server.requests_waiting"),
        )
        if (
            _serving.open_loop(case)
            or int(case.knobs["concurrency"]) < 2
            or running <= 0
            or weights < DOMINATE.value * kv
            or case.value("server.requests_waiting") >= _serving.NOTABLE_QUEUE
        ):
            return self.clear(weights / max(1.0, kv) / DOMINATE.value * 0.5, evidence)
        gain, factor = case.value("probe.concurrency_gain"), case.value("probe.concurrency_factor")
        evidence += (case.evidence("probe.concurrency_gain", GAIN.value),)
        if gain < GAIN.value:
            return self.clear(gain / GAIN.value * 0.5, evidence, "more users were tried, and served no faster")
        users = round(factor * int(case.knobs["concurrency"]))
        bound = factor * (weights + kv) / (weights + factor * kv)
        return self.fires(
            f"an iteration reads {weights / 1e6:.0f} MB of weights and {kv / 1e6:.1f} MB of keys and values for {running:.1f} sequences; "
            f"{factor:.0f} times the users got {gain:.2f}x the tokens (by the bytes alone {bound:.1f}x)",
            recoverable=1 - 1 / gain,
            confidence="high",
            evidence=evidence,
            suggestions=[
                suggest(
                    case,
                    {"concurrency": users},
                    speedup_interval(gain, PREDICTION_ERROR),
                    "more sequences for the same reading of the weights",
                    "send more requests at once; gather them from several clients",
                )
            ],
            level=gain / GAIN.value,
        )
