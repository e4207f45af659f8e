"""gpu.small_batch: a larger batch costs hardly more time, because fixed cost dominates the step."""

from __future__ import annotations

from gpuconsole.diagnosis.families import comm, device, loader, passes
from gpuconsole.diagnosis.rule import (
    Case,
    Finding,
    Interval,
    Rule,
    Suggestion,
    Threshold,
    high_if,
    percent,
)

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
FILLED = Threshold(
    "sms_filled",
    0.25,
    "ratio",
    "the SMs are full for a quarter of the time at most, so that twice the batch takes at most"
    " 1.25x the time",
)
TWICE = 2.0
ERROR = 0.2
"""Relative error of the predicted gain: two runs of probe P2 differ by this much."""


class GpuSmallBatch(Rule):
    id = "gpu.small_batch"
    title = "The batch is too small for the device"
    clear_title = "The batch is large enough"
    thresholds = (COST, GAIN, MEMORY, FILLED)
    knobs = ("batch_size",)
    reads = (
        "probe.batch_cost_ratio", "probe.batch_factor", "forward_ratio", "loss_ratio",
        "backward_ratio", "optimizer_ratio", "probe.optim_present_step_s", "memory_used_ratio",
        "probe.batch_cost_spread", "embedding.rows_touched_ratio", "probe.optim_fused_step_s",
        "embedding.table_bytes", "embedding.trained_ratio", "model.embeddings",
        "recomputed.flops_ratio", "gpu.sm_active_ratio", "gpu.util_ratio", "hw.other_processes",
        "host.caught_up_ratio", "is_gpu", "hw.memory_bytes_per_s", "step_s",
    )  # fmt: skip
    text = """Probe P2 runs forward and backward passes at the current batch, at twice and at four
times the batch. If a 4x batch takes at most 3.1x the time, launches and other fixed cost dominate
and the device is idle within the step. Utilisation does not show this: it reads 100 % while one
small kernel runs. Without the probe, the rule needs the activity of the SMs, the mean share of SMs
with work: if it is a, all SMs have work for a share a of the time at most, so twice the batch takes
at most 1 + a times the time. The rule fires if the GPU is the limit, kernels run for 80 % of the
time or more, and a is 25 % of that or less. With several processes the probe is needed, because
kernels that wait for another process have few SMs. The optimizer takes the same time for any batch.
If the optimizer takes more time than the fixed cost of the passes, and the host is the limit, the
batch is not the cause, and the rule is clear. A larger batch changes training, and the suggestion
says so. The rule suggests it only while memory has room, and is clear where twice the batch does
not fit. If the job has more threads than other programs leave cores, threads that wait for each
other look like fixed cost: host.cpu_contention then fires instead."""

    def judge(self, case: Case) -> Finding:
        if "batch_size" not in case.knobs:
            return self.clear(summary="this run has no batches")
        if case.get("probe.batch_factor", 2.0) < 2:
            return self.clear(
                0.0, case.evidence("probe.batch_factor"), "twice the batch does not fit into memory"
            )
        if not case.has("probe.batch_cost_ratio") and _leaves_sms_empty(case):
            return self._by_empty_sms(case)
        cost = case.value("probe.batch_cost_ratio")
        level = (1 - cost) / (1 - COST)
        evidence = case.evidence(("probe.batch_cost_ratio", COST), "probe.batch_factor")
        fixed = passes.compute_ratio(case) * (1 - cost)
        update = case.value("optimizer_ratio") - passes.optimizer_claim(case)
        if cost <= COST and fixed < update and not _gpu_is_limit(case):
            return self.clear(
                0.99,
                evidence + case.evidence("optimizer_ratio"),
                "most of the fixed cost of a step is in the optimizer, whatever the batch",
            )
        gain = predicted(case, case.value("probe.batch_factor"), cost)
        recoverable = _recoverable(case, gain)
        if cost > COST or recoverable < GAIN:
            return self.clear(min(level, 0.99), evidence)
        factor = int(case.value("probe.batch_factor"))
        summary = (
            f"a batch {factor}x as large takes only {cost * factor:.1f}x the time: most of a step"
            " is fixed cost"
        )
        most = predicted(case, factor, cost, rest_per_step=True)
        interval = Interval(1 + (gain - 1) * (1 - ERROR), 1 + (most - 1) * (1 + ERROR))
        confidence = high_if(cost + case.get("probe.batch_cost_spread", 0.1) <= COST + 0.1)
        return self.fires(
            level,
            evidence,
            summary,
            recoverable=recoverable,
            confidence=confidence,
            suggestions=_larger(case, factor, interval),
        )

    def _by_empty_sms(self, case: Case) -> Finding:
        """Return the conclusion without a probe, for a GPU whose kernels leave most SMs empty."""
        busy, filled = case.value("gpu.util_ratio"), case.value("gpu.sm_active_ratio")
        evidence = case.evidence(("gpu.sm_active_ratio", FILLED * busy), "gpu.util_ratio")
        cost = (1 + filled / busy) / TWICE
        gain = predicted(case, TWICE, cost)
        recoverable = _recoverable(case, gain)
        if recoverable < GAIN:
            return self.clear(
                0.99, evidence, "the passes take too small a part of a step for a larger batch"
            )
        most = predicted(case, TWICE, 1 / TWICE, rest_per_step=True)
        return self.fires(
            FILLED * busy / max(filled, 0.001),
            evidence,
            f"a kernel runs in {percent(busy)} of the time, and on average {percent(filled)} of the"
            f" SMs have work: twice the batch would take at most {TWICE * cost:.2f}x the time",
            recoverable=recoverable,
            confidence="medium",
            suggestions=_larger(case, int(TWICE), Interval(1 + (gain - 1) * (1 - ERROR), most)),
        )


def _leaves_sms_empty(case: Case) -> bool:
    """Whether kernels run nearly all the time, back to back, and leave most SMs empty. A kernel
    that waits for another process has few SMs too, and says nothing about the batch."""
    if not case.has("gpu.sm_active_ratio", "gpu.util_ratio") or case.get("hw.other_processes", 0.0):
        return False
    if comm.several(case):
        return False
    busy = case.value("gpu.util_ratio")
    empty = case.value("gpu.sm_active_ratio") <= FILLED * busy
    return empty and busy >= device.IDLE_UTIL and _gpu_is_limit(case)


def _gpu_is_limit(case: Case) -> bool:
    """Whether the GPU has work left at the end of most steps. The time of the optimizer is then
    work of the GPU, which a larger batch spreads over more samples."""
    return case.get("host.caught_up_ratio", 1.0) < device.CAUGHT_UP


def _recoverable(case: Case, gain: float) -> float:
    """Return the share of a step that a gain saves, without the parts that other rules claim."""
    if gain <= 1:
        return 0.0
    claimed = passes.optimizer_claim(case) + passes.embedding_claim(case)
    return max(0.0, 1 - 1 / gain - claimed)


def _larger(case: Case, factor: int, interval: Interval) -> list[Suggestion | None]:
    """Return the suggestion of a batch `factor` times as large, where memory has room for it."""
    if case.get("memory_used_ratio", 0.0) >= MEMORY:
        return [None]
    batch = int(case.knobs["batch_size"]) * factor
    why = (
        "more samples/s. This changes training: scale the learning rate, or check the loss per"
        " sample"
    )
    return [case.suggest({"batch_size": batch}, interval, why, loader.batch_code(case, batch))]


def predicted(case: Case, factor: float, cost: float, rest_per_step: bool = False) -> float:
    """Samples/s at `factor` times the batch over samples/s now.

    A sample then takes `cost` times its time in forward and backward passes, and the optimizer
    costs the same per step. All other time belongs to other rules and grows with the batch. With
    `rest_per_step` it stays the same per step instead: the upper bound of the gain.
    """
    compute, fixed = passes.compute_ratio(case), case.value("optimizer_ratio")
    rest = (1 - compute - fixed) * (1 if rest_per_step else factor)
    return factor / (compute * factor * cost + fixed + rest)
