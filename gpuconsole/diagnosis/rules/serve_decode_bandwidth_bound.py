"""serve.decode_bandwidth_bound: every token needs a reading of all weights, as fast as the memory
allows."""

from __future__ import annotations

from gpuconsole.diagnosis.families import serving
from gpuconsole.diagnosis.rule import Case, Finding, Interval, Rule, Threshold, percent
from gpuconsole.model.serving import served_precision

REACHED = Threshold(
    "reached",
    0.5,
    "of the bandwidth",
    "50 to 70 % of the memory bandwidth is the practical limit (tensward; survey I08)",
)
DOMINATE = Threshold(
    "dominate",
    8.0,
    "ratio",
    "if weights are 8 times the keys and values, the bytes per weight decide",
)
LEFT = {"fp32": 1 / 4, "bf16": 1 / 2, "fp16": 1 / 2}
"""Weight bytes in 8 bits over those in the precision of the model."""
MAX_READING = 0.9
"""Largest share of a token's time that is reading. Sampling, HTTP and gaps between kernels take the
rest."""

BANDWIDTH = "server.peak_bytes_per_s"
UNKNOWN = (
    "the memory bandwidth of this device is not known: no datasheet number, and only the embedded"
    " server measures it"
)


class ServeDecodeBandwidthBound(Rule):
    id = "serve.decode_bandwidth_bound"
    title = "Decoding waits for the weights to be read"
    clear_title = "Reading the weights is not the bottleneck"
    subject = "load"
    thresholds = (REACHED, DOMINATE)
    knobs = ("quantization",)
    reads = (
        "server.weight_bytes", "server.requests_running", "client.prompt_tokens",
        "client.output_tokens", "server.kv_bytes_per_token", "server.peak_bytes_per_s",
        "client.chunk_gap_p50_s", "client.request_rate", "is_gpu", "probe.concurrency_gain",
    )  # fmt: skip
    text = """Decoding one sequence reads every weight once per token: bytes over bandwidth is the
least time of a token. A server at that bound is healthy. It becomes faster only with fewer bytes
(quantised weights), a draft model that predicts several tokens per reading, or more sequences that
share a reading. With several users, probe P12 tries more users first. The bandwidth is the
datasheet figure of the GPU; the embedded server measures it at its start, with many matrices of the
model's largest shape times a vector (weights that fit into caches can be read faster).
Predicted: 1 / (1 - r (1 - b)), with b the remaining bytes over the current bytes, and r the share
of reading in a token's time. The lower end of r is the reached share of the bandwidth (all of the
bandwidth is available); the upper end is 90 % (the reached rate is the limit)."""

    def judge(self, case: Case) -> Finding:
        weights, kv = case.value("server.weight_bytes"), serving.kv_bytes(case)
        if not case.has(BANDWIDTH):
            return self.cant_tell(UNKNOWN, (BANDWIDTH,))
        gap, bandwidth = serving.usual_gap_s(case), case.value(BANDWIDTH)
        reached = (weights + kv) / gap / bandwidth
        evidence = case.evidence(
            "server.weight_bytes", "client.chunk_gap_p50_s", BANDWIDTH, "server.requests_running"
        )
        if weights < DOMINATE * kv or reached < REACHED or case.setting("quantization") != "none":
            return self.clear(min(0.5, reached / REACHED), evidence)
        if serving.several_users(case):
            evidence += case.evidence(("probe.concurrency_gain", serving.MORE_USERS))
        kind = "int8" if case.setting("server") == "embedded" else "fp8"
        on_cpu = (
            case.setting("server") == "embedded"
            and not case.get("is_gpu", 0.0)
            and case.knobs.get("dtype") == "auto"
        )
        per_weight = LEFT["fp32" if on_cpu else served_precision(case.knobs)]
        left = (weights * per_weight + kv) / (weights + kv)
        gain, most = (
            1 / (1 - share * (1 - left)) for share in (min(MAX_READING, reached), MAX_READING)
        )
        summary = (
            f"{(weights + kv) / 1e6:.0f} MB per token every {gap * 1e3:.1f} ms are"
            f" {percent(reached)} of the memory bandwidth. Quantize, or batch more requests"
        )
        why = f"{percent(per_weight)} of the bytes per weight; the trial also compares perplexity"
        change = serving.restart(case, {"quantization": kind}, Interval(gain, most), why)
        return self.fires(
            reached / REACHED,
            evidence,
            summary,
            recoverable=1 - 1 / gain,
            confidence="medium",
            suggestions=[change],
        )
