"""host.sync_stall: the GPU runs dry because the host has waited for it."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case
from gpuconsole.diagnosis.rule import Rule, Threshold
from gpuconsole.diagnosis.rules import _gpu
from gpuconsole.diagnosis.suggest import suggest
from gpuconsole.model.finding import Finding, Interval

SHARE = Threshold("stalled", 0.05, "ratio", "5 % of a step (train-doctor .05, fournex .10; DIAGNOSIS T10)")
SERIOUS = 0.10
HEALTHY_MFU = 0.40


class HostSyncStall(Rule):
    id = "host.sync_stall"
    title = "The GPU is idle after synchronisations"
    clear_title = "Synchronisations cost little GPU time"
    thresholds = (SHARE,)
    knobs = ("non_blocking", "pin_memory")
    text = """Calling .item() once a step is free where the host is far ahead of the GPU: what counts is not the number of synchronisations
but what they cost. Probe P4 profiles a few ordinary steps and adds up the gaps in which the GPU did nothing that begin within 50 µs of a
synchronisation's return; their share of all gaps is applied to how much the GPU idles in steps without the profiler, less what goes to
logging, checkpoints and evaluation; and what waits for data after a synchronisation is left to the input rules. The signal's source names
the operator that waited most. Gaps for other reasons (launching, data) are other rules' matters."""

    def check(self, case: Case) -> Finding:
        if not _gpu.on_gpu(case):
            return self.not_on_gpu()
        step = case.value("step_s")
        if case.get("mfu_ratio", 0.0) >= HEALTHY_MFU:
            return self.clear(0.0, (case.evidence("mfu_ratio"),), "the GPU is busy")
        after_sync, gaps, busy = case.value("probe.sync_gaps_s"), case.value("probe.gaps_s"), case.value("probe.busy_s")
        # the profiler makes gaps longer but no kernel: how much the GPU idles comes from ordinary steps, its causes from the profiled ones, which
        # are without side work; and what waits for data after a synchronisation waits for data
        idle = max(0.0, 1 - busy / step - sum(case.get(f"{phase}_ratio", 0.0) for phase in ("logging", "checkpoint", "eval")))
        share = min(_gpu.MOST, idle * after_sync / gaps, max(0.0, idle - case.get("data_wait_ratio", 0.0))) if gaps > 0 else 0.0
        evidence = (
            case.evidence("probe.sync_gaps_s"),
            case.evidence("probe.gaps_s"),
            case.evidence("probe.busy_s", step * (1 - SHARE.value)),
            case.evidence("step_s"),
            case.evidence("probe.syncs_per_step"),
        )
        level = share / SHARE.value
        if level < 1:
            return self.clear(level, evidence)
        return self.fires(
            f"{share:.0%} of a step the GPU has nothing to do, right after the host has waited for it ({case.value('probe.syncs_per_step'):.0f} times a step)."
            " Keep figures on the device and read them every so many steps; no .item(), .cpu(), nonzero() or boolean mask within a step",
            recoverable=share,
            confidence="high" if share >= SERIOUS else "medium",
            evidence=evidence,
            suggestions=[
                suggest(
                    case,
                    {"non_blocking": True} if case.knobs.get("pin_memory", True) else {"non_blocking": True, "pin_memory": True},
                    Interval(1.0, 1 / (1 - share)),
                    "the copy of a batch is then no wait",
                    "batch = batch.to(device, non_blocking=True)   # from DataLoader(..., pin_memory=True)",
                )
                if case.knobs.get("non_blocking") is False
                else None
            ],
            level=level,
        )
