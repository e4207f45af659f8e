"""host.sync_stall: the GPU has no work because the host has waited for it."""

from __future__ import annotations

from gpuconsole.diagnosis.rule import MOST, Case, Finding, Interval, Knobs, Rule, Threshold, high_if, percent

SHARE = Threshold("stalled", 0.05, "ratio", "5 % of a step (train-doctor 0.05, fournex 0.10; survey T10)")
SERIOUS = 0.10
HEALTHY_MFU = 0.40


class HostSyncStall(Rule):
    id = "host.sync_stall"
    title = "The GPU is idle after synchronisations"
    clear_title = "Synchronisations cost little GPU time"
    gpu_only = True
    thresholds = (SHARE,)
    knobs = ("non_blocking", "pin_memory")
    reads = (
        "is_gpu", "step_s", "mfu_ratio", "probe.sync_gaps_s", "probe.gaps_s", "probe.busy_s", "logging_ratio", "checkpoint_ratio",
        "eval_ratio", "data_wait_ratio", "probe.syncs_per_step",
    )  # fmt: skip
    text = """One .item() per step is free while the host is far ahead of the GPU. The cost of synchronisations matters, not their number. Probe P4
profiles a few ordinary steps and adds up the gaps without GPU work that begin within 50 µs after a synchronisation returns. Their share of
all gaps is applied to the idle time of the GPU in steps without the profiler, less the time for logging, checkpoints and evaluation. Waiting
for data after a synchronisation belongs to the input rules. The source of the signal names the operator that waited most. Other rules cover
gaps with other causes (launches, data)."""

    def judge(self, case: Case) -> Finding:
        step = case.value("step_s")
        if case.get("mfu_ratio", 0.0) >= HEALTHY_MFU:
            return self.clear(0.0, case.evidence("mfu_ratio"), "the GPU is busy")
        after_sync, gaps, busy = case.value("probe.sync_gaps_s"), case.value("probe.gaps_s"), case.value("probe.busy_s")
        # The profiler makes gaps longer and kernels not. The idle time therefore comes from ordinary steps, and its causes from profiled steps,
        # which have no side work. Waiting for data after a synchronisation counts as waiting for data.
        idle = max(0.0, 1 - busy / step - sum(case.get(f"{phase}_ratio", 0.0) for phase in ("logging", "checkpoint", "eval")))
        share = min(MOST, idle * after_sync / gaps, max(0.0, idle - case.get("data_wait_ratio", 0.0))) if gaps > 0 else 0.0
        enough = step * (1 - SHARE)
        evidence = case.evidence("probe.sync_gaps_s", "probe.gaps_s", ("probe.busy_s", enough), "step_s", "probe.syncs_per_step")
        level = share / SHARE
        if level < 1:
            return self.clear(level, evidence)
        summary = (
            f"the GPU is idle for {percent(share)} of a step right after the host has waited for the GPU ({case.value('probe.syncs_per_step'):.0f} times per step)."
            " Keep figures on the device and read them only every few steps; avoid .item(), .cpu(), nonzero() and boolean masks within a step"
        )
        ahead: Knobs = {"non_blocking": True} if case.knobs.get("pin_memory", True) else {"non_blocking": True, "pin_memory": True}
        why = "the host then does not wait for the copy of a batch"
        code = "batch = batch.to(device, non_blocking=True)   # from DataLoader(..., pin_memory=True)"
        gain = Interval(1.0, 1 / (1 - share))
        change = case.suggest(ahead, gain, why, code) if case.knobs.get("non_blocking") is False else None
        return self.fires(level, evidence, summary, recoverable=share, confidence=high_if(share >= SERIOUS), suggestions=[change])
