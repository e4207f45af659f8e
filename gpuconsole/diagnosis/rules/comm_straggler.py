"""comm.straggler: one process is slower than the others, and all others wait for it."""

from __future__ import annotations

from gpuconsole.diagnosis.families import comm
from gpuconsole.diagnosis.rule import (
    Case,
    Finding,
    Rule,
    Threshold,
    high_if,
    percent,
    short_of,
    speedup_interval,
)
from gpuconsole.model.run import COLLECTIVE_KINDS

GAIN = Threshold("gain", 0.05, "ratio", "below 5 % of a step the wait is not worth a finding")
PREDICTION_ERROR = 0.3


class CommStraggler(Rule):
    id = "comm.straggler"
    title = "One process is slower than the others"
    clear_title = "No process is slower than the others"
    thresholds = (comm.LATE, comm.LATE_OUTSIDE, GAIN)
    knobs = ("straggler_ms",)
    reads = (
        "step_s", "comm.straggler_ratio", "comm.straggler_spread", "ranks.busy_ratio",
        "comm.late_s", "comm.pass_alone_s", "comm.slowest_rank", "comm.late_in_backward_ratio",
        "ranks.busiest", "comm.outside_ratio", "comm.late_before", "comm.late_kind_calls",
        "comm.late_kind_bytes",
    )  # fmt: skip
    text = """Probe P8 runs passes without communication on every process, so each process takes its
own time and a slow process is visible. Step times are equal on all processes, because all wait in
the all-reduce. Time outside the passes (waiting for data) comes from the step breakdown: the time
of a step without communication, per process. A slow link is different: it makes no pass without
communication longer.
In a user's job the timer of DistributedDataParallel gives the time of a pass up to its last
gradient, per process. Without it (FSDP, tensor parallelism, collectives of the program) torch's own
record of collectives tells which process comes last, and before which kind of collective. On a CPU
the times of the calls are compared: what a process takes from the last arrival at one collective to
its own arrival at the next one. With NCCL the durations are compared: the process that arrives last
has the shortest one. They are known where TORCH_NCCL_ENABLE_TIMING=1 is in the environment of the
job. gpuconsole does not set it: it can keep collectives and matrix products from running
together."""

    def judge(self, case: Case) -> Finding:
        if not comm.several(case):
            return self.clear(summary="one process only, or processes that exchange nothing")
        alone, outside, limit = comm.late_alone(case), comm.late_outside(case), comm.LATE
        lost_alone = (
            int(case.knobs.get("gradient_accumulation_steps", 1))
            * case.get("comm.late_s", 0.0)
            / case.value("step_s")
        )
        lost_outside = 1 - 1 / outside  # of the whole step, its passes included
        in_passes = alone >= limit and lost_alone >= GAIN and lost_alone >= lost_outside / 2
        before = _before(case)
        if before:  # torch's record compares whole steps
            in_passes, outside = alone >= limit and lost_alone >= GAIN, 1.0
        before_passes = not in_passes and outside >= limit
        ratio = outside if before_passes else alone
        level = (ratio - 1) / (limit - 1)
        evidence = case.evidence(
            ("comm.straggler_ratio", limit), "comm.late_s", "comm.pass_alone_s"
        )
        evidence += case.if_known(("ranks.busy_ratio", limit))
        if ratio < limit:
            return self.clear(level, evidence)
        if before_passes:
            rank, where, lost = (
                int(case.value("ranks.busiest")),
                " before its passes (data)",
                lost_outside,
            )
            suspect = "loader"
        else:
            rank, lost, suspect = int(case.value("comm.slowest_rank")), lost_alone, "device"
            where = (
                " in its backward pass"
                if case.value("comm.late_in_backward_ratio") > 0.75
                else before
            )
            evidence += case.if_known("comm.late_kind_calls", "comm.late_kind_bytes")
        share = min(0.9, lost)
        if share < GAIN:
            return self.clear(
                short_of(share / GAIN),
                evidence,
                f"rank {rank} is late by {percent(share)} of a step",
            )
        summary = (
            f"rank {rank} takes {percent(ratio - 1)} longer than the others{where}, and the others"
            f" wait. Give rank {rank} less work, or check its {suspect}"
        )
        why = f"rank {rank} takes no longer than the others, so none of them waits"
        code = (
            f"# rank {rank}: compare clocks, temperature and other processes of its device with the"
            " other devices"
        )
        gain = speedup_interval(1 / (1 - share), PREDICTION_ERROR)
        even = (
            case.suggest({"straggler_ms": 0.0}, gain, why, code)
            if case.knobs.get("straggler_ms")
            else None
        )
        confidence = high_if(ratio >= 1 + 2 * (limit - 1))
        return self.fires(
            level, evidence, summary, recoverable=share, confidence=confidence, suggestions=[even]
        )


def _before(case: Case) -> str:
    """The kind of collective in which the others wait, where torch's record tells it."""
    place = int(case.get("comm.late_before", -1.0))
    return f" before {COLLECTIVE_KINDS[place]}" if place >= 0 else ""
