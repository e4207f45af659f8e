"""gpu.small_batch: a larger batch costs hardly more time, because fixed cost dominates the step."""

from __future__ import annotations

from gpuconsole.diagnosis.families import loader, passes
from gpuconsole.diagnosis.rule import Case, Finding, Interval, Rule, Threshold, high_if

COST = Threshold(
    "batch_cost",
    0.75,
    "ratio",
    "a 4x batch takes 3.1x the time or less: fixed cost is 30 % or more of the step",
)
GAIN = Threshold(
    "recoverable",
    0.10,
    "ratio",
    "below 10 % of step time the gain is not worth a change of training",
)
MEMORY = Threshold(
    "memory_used", 0.60, "ratio", "below 60 % there is room for the larger batch (loadtune: 60 %)"
)
ERROR = 0.2
"""Relative error of the predicted gain: two runs of probe P2 differ by this much."""


class GpuSmallBatch(Rule):
    id = "gpu.small_batch"
    title = "The batch is too small for the device"
    clear_title = "The batch is large enough"
    thresholds = (COST, GAIN, MEMORY)
    knobs = ("batch_size",)
    reads = (
        "probe.batch_cost_ratio", "probe.batch_factor", "forward_ratio", "loss_ratio",
        "backward_ratio", "optimizer_ratio", "probe.optim_present_step_s", "memory_used_ratio",
        "probe.batch_cost_spread", "embedding.rows_touched_ratio", "probe.optim_fused_step_s",
        "embedding.table_bytes", "embedding.trained_ratio", "model.embeddings",
        "recomputed.flops_ratio",
    )  # fmt: skip
    text = """Probe P2 runs forward and backward passes at the current batch, at twice and at four
times the batch. If a 4x batch takes at most 3.1x the time, launches and other fixed cost dominate
and the device is idle within the step. No counter shows this: utilisation reads 100 % while one
small kernel runs. The optimizer takes the same time for any batch. If the optimizer takes more time
than the fixed cost of the passes, the batch is not the cause, and the rule is clear. A larger batch
changes training, and the suggestion says so. The rule suggests it only while memory has room, and
is clear where twice the batch does not fit. If the job has more threads than other programs leave
cores, threads that wait for each other look like fixed cost: host.cpu_contention then fires
instead."""

    def judge(self, case: Case) -> Finding:
        if "batch_size" not in case.knobs:
            return self.clear(summary="this run has no batches")
        if case.get("probe.batch_factor", 2.0) < 2:
            return self.clear(
                0.0, case.evidence("probe.batch_factor"), "twice the batch does not fit into memory"
            )
        cost = case.value("probe.batch_cost_ratio")
        level = (1 - cost) / (1 - COST)
        evidence = case.evidence(("probe.batch_cost_ratio", COST), "probe.batch_factor")
        fixed = passes.compute_ratio(case) * (1 - cost)
        update = case.value("optimizer_ratio") - passes.optimizer_claim(case)
        if cost <= COST and fixed < update:
            return self.clear(
                0.99,
                evidence + case.evidence("optimizer_ratio"),
                "most of the fixed cost of a step is in the optimizer, whatever the batch",
            )
        gain = predicted(case)
        recoverable = (
            max(0.0, 1 - 1 / gain - passes.optimizer_claim(case) - passes.embedding_claim(case))
            if gain > 1
            else 0.0
        )
        if cost > COST or recoverable < GAIN:
            return self.clear(min(level, 0.99), evidence)
        factor, room = (
            int(case.value("probe.batch_factor")),
            case.get("memory_used_ratio", 0.0) < MEMORY,
        )
        summary = (
            f"a batch {factor}x as large takes only {cost * factor:.1f}x the time: most of a step"
            " is fixed cost"
        )
        batch = int(case.knobs["batch_size"]) * factor
        interval = Interval(
            1 + (gain - 1) * (1 - ERROR),
            1 + (predicted(case, rest_per_step=True) - 1) * (1 + ERROR),
        )
        why = (
            "more samples/s. This changes training: scale the learning rate, or check the loss per"
            " sample"
        )
        larger = case.suggest({"batch_size": batch}, interval, why, loader.batch_code(case, batch))
        changes = [larger if room else None]
        confidence = high_if(cost + case.get("probe.batch_cost_spread", 0.1) <= COST + 0.1)
        return self.fires(
            level,
            evidence,
            summary,
            recoverable=recoverable,
            confidence=confidence,
            suggestions=changes,
        )


def predicted(case: Case, rest_per_step: bool = False) -> float:
    """Samples/s at k times the batch over samples/s now.

    Forward and backward scale as probe P2 measured, and the optimizer costs the same per step. All
    other time belongs to other rules and grows with the batch. With `rest_per_step` it stays the
    same per step instead: the upper bound of the gain.
    """
    factor = case.value("probe.batch_factor")
    compute, fixed = passes.compute_ratio(case), case.value("optimizer_ratio")
    rest = (1 - compute - fixed) * (1 if rest_per_step else factor)
    return factor / (compute * factor * case.value("probe.batch_cost_ratio") + fixed + rest)
