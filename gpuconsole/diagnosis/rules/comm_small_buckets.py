"""comm.small_buckets: gradients are exchanged in pieces so small that latency takes most of the
time."""

from __future__ import annotations

from gpuconsole.diagnosis.families import comm
from gpuconsole.diagnosis.rule import Case, Finding, Rule, Threshold, speedup_interval

GAIN = Threshold("gain", 0.05, "ratio", "below 5 % of a step the gain is not worth a restart")
PREDICTION_ERROR = 0.4


class CommSmallBuckets(Rule):
    id = "comm.small_buckets"
    title = "Gradient buckets are too small"
    clear_title = "Gradient buckets are large enough"
    thresholds = (GAIN,)
    knobs = ("bucket_cap_mb",)
    reads = (
        "step_s",
        "comm.exchange_large_s",
        "comm.exchange_now_s",
        "comm.exposed_s",
        "comm.bus_bytes_per_s",
    )
    text = """Probe P10 all-reduces as many bytes as the gradients have, once in pieces of
bucket_cap_mb and once in pieces of 25 MB. A ring all-reduce takes latency + 2 (n-1)/n bytes /
bandwidth. Pieces smaller than latency x bandwidth leave the link idle. This finding claims the
exposed communication (probe P7) that larger pieces save. comm.exposed claims the rest.
In a user's job nothing is tried. The first iteration of DistributedDataParallel has all gradients
in fewer and larger buckets than the later ones. Its time stands for larger pieces. It also sets up
connections, so the gain is at least the predicted one."""

    def judge(self, case: Case) -> Finding:
        if not comm.buckets_can_be_small(case):
            return self.clear(summary="no DDP, or buckets of 25 MB or more")
        recoverable = (
            comm.lost_to_small_buckets(case) * case.value("comm.exposed_s") / case.value("step_s")
        )
        evidence = case.evidence(
            "comm.exchange_now_s",
            "comm.exchange_large_s",
            "comm.bus_bytes_per_s",
            "comm.exposed_s",
            "step_s",
        )
        if recoverable < GAIN:
            return self.clear(recoverable / GAIN, evidence)
        share = min(0.9, recoverable)
        summary = (
            f"buckets of {comm.LARGE_MB:g} MB would exchange the same gradients in"
            f" {case.value('comm.exchange_large_s') * 1e3:.1f} ms instead of"
            f" {case.value('comm.exchange_now_s') * 1e3:.1f} ms: every piece adds latency"
        )
        why = "the default of torch: fewer and larger all-reduces"
        code = f"DistributedDataParallel(model, bucket_cap_mb={comm.LARGE_MB:g})"
        change = case.suggest(
            {"bucket_cap_mb": comm.LARGE_MB},
            speedup_interval(1 / (1 - share), PREDICTION_ERROR),
            why,
            code,
        )
        return self.fires(
            recoverable / GAIN,
            evidence,
            summary,
            recoverable=share,
            confidence="high",
            suggestions=[change],
        )
