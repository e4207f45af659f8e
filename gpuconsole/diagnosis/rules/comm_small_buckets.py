"""comm.small_buckets: gradients travel in pieces so small that latency, not bandwidth, is what takes the time."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case
from gpuconsole.diagnosis.rule import Rule, Threshold
from gpuconsole.diagnosis.rules import _comm
from gpuconsole.diagnosis.suggest import speedup_interval, suggest
from gpuconsole.model.finding import Finding

GAIN = Threshold("gain", 0.05, "ratio", "5 % of a step: below that no change of settings is worth the restart")
PREDICTION_ERROR = 0.4


class CommSmallBuckets(Rule):
    id = "comm.small_buckets"
    title = "Gradient buckets are too small"
    clear_title = "Gradient buckets are large enough"
    thresholds = (GAIN,)
    knobs = ("bucket_cap_mb",)
    text = """Probe P10 all-reduces as many bytes as the gradients have, once in pieces of bucket_cap_mb and once in pieces of 25 MB. An
all-reduce takes latency + 2 (n-1)/n bytes / bandwidth (ring), so pieces below latency x bandwidth leave the link idle. What
the larger pieces save of the communication that nothing hides (P7) is what this finding claims; the rest is comm.exposed's."""

    def check(self, case: Case) -> Finding:
        if not _comm.buckets_can_be_small(case):
            return self.clear(0.0, summary="no DDP, or buckets of 25 MB and more")
        recoverable = _comm.lost_to_small_buckets(case) * case.value("comm.exposed_s") / _comm.step_s(case)
        evidence = (
            case.evidence("comm.exchange_now_s"),
            case.evidence("comm.exchange_large_s"),
            case.evidence("comm.bus_bytes_per_s"),
            case.evidence("comm.exposed_s"),
            case.evidence("step_s"),
        )
        if recoverable < GAIN.value:
            return self.clear(recoverable / GAIN.value, evidence)
        share = min(0.9, recoverable)
        return self.fires(
            f"in buckets of {_comm.LARGE_MB:g} MB the same gradients would travel in {case.value('comm.exchange_large_s') * 1e3:.1f} ms, "
            f"not {case.value('comm.exchange_now_s') * 1e3:.1f}: every piece costs its latency",
            recoverable=share,
            confidence="high",
            evidence=evidence,
            suggestions=[
                suggest(
                    case,
                    {"bucket_cap_mb": _comm.LARGE_MB},
                    speedup_interval(1 / (1 - share), PREDICTION_ERROR),
                    "torch's default; fewer, larger all-reduces",
                    f"DistributedDataParallel(model, bucket_cap_mb={_comm.LARGE_MB:g})",
                )
            ],
            level=recoverable / GAIN.value,
        )
