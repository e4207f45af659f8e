"""host.sync_stall: the GPU has no work because the host has waited for it."""

from __future__ import annotations

from gpuconsole.diagnosis.families import device
from gpuconsole.diagnosis.rule import (
    MAX_SHARE,
    Case,
    Finding,
    Interval,
    Knobs,
    Missing,
    Rule,
    Suggestion,
    Threshold,
    high_if,
    percent,
    short_of,
)

SHARE = Threshold(
    "stalled", 0.05, "ratio", "5 % of a step (train-doctor 0.05, fournex 0.10; survey T10)"
)
SERIOUS = 0.10
MOSTLY = 0.5
"""Share of a step in waits from which the GPU has more to do than the host."""
ADVICE = (
    " Keep numbers on the device and read them only every few steps; avoid .item(), .cpu(),"
    ' nonzero(), boolean masks and torch.tensor(number, device="cuda")'
    " within a step"
)


class HostSyncStall(Rule):
    id = "host.sync_stall"
    title = "The GPU is idle after synchronisations"
    clear_title = "Synchronisations cost little GPU time"
    gpu_only = True
    thresholds = (SHARE, device.CAUGHT_UP, device.CALLS, device.MFU, device.MFU_CAUSAL)
    knobs = ("non_blocking", "pin_memory")
    reads = (
        "is_gpu", "step_s", "mfu_ratio", "mfu_causal_ratio", "hfu_ratio", "mfu_at_least",
        "probe.sync_gaps_s", "probe.gaps_s", "probe.busy_s", "logging_ratio", "checkpoint_ratio",
        "eval_ratio", "data_wait_ratio", "probe.syncs_per_step", "host.caught_up_ratio",
        "sync.calls", "sync.wait_s", "host.ahead_ratio", "gpu.sm_active_ratio", "gpu.util_ratio",
        "hw.other_processes",
        "h2d_ratio", "other_ratio", "recent.logging_ratio", "recent.checkpoint_ratio",
        "recent.eval_ratio", "hw.datasheet_clock_ratio", "hw.power_cap_time_ratio",
        "hw.thermal_time_ratio", "stack.outside_ratio", "forward_ratio", "backward_ratio",
        "model.trained_ratio",
    )  # fmt: skip
    text = """One .item() per step is free while the host is far ahead of the GPU. The cost of
synchronisations matters, not their number. Probe P4 profiles a few ordinary steps and adds up the
gaps without GPU work that begin within 50 µs after a synchronisation returns. Their share of all
gaps is applied to the idle time of the GPU in steps without the profiler, less the time for
logging, checkpoints and evaluation. Waiting for data after a synchronisation belongs to the input
rules. The source of the signal names the operator that waited most. Other rules cover gaps with
other causes (launches, data).
In a job of your own no step is profiled. In a few steps the agent times the calls that wait for the
GPU. Without these waits a step would take as long as the host's own work or the GPU's work,
whichever is longer. The waits therefore cost the time of the waits or the idle time of the GPU,
whichever is shorter. Up to four waits at the end of a pass cost nothing, because the GPU works
meanwhile. If the host is ahead of the GPU again at the end of the step, the time of the backward
pass shows how long the GPU needs. The work of the forward pass is then at most two thirds of this
time, if the whole model is trained. Time without a kernel that the driver measures (GPU-Util)
counts as well. Without GPM the idle time is estimated from MFU, so the confidence is low. Torch
also waits in functions that the agent does not time (x[mask], nonzero, torch.where(mask),
torch.tensor(number, device=...)). CUDA events show how far the host was ahead of the GPU before
such a wait. The place is then the line of the program at which stack samples find the thread
outside of Python most often."""

    def judge(self, case: Case) -> Finding:
        step = case.value("step_s")
        if device.computes_well(case):
            return self.clear(0.0, device.mfu_evidence(case), "the GPU is busy")
        if not case.has("probe.sync_gaps_s") and case.has(
            "host.caught_up_ratio", "sync.wait_s", "sync.calls"
        ):
            return self._from_the_waits(case)
        after_sync, gaps, busy = (
            case.value("probe.sync_gaps_s"),
            case.value("probe.gaps_s"),
            case.value("probe.busy_s"),
        )
        # The profiler makes gaps longer and kernels not. The idle time therefore comes from
        # ordinary steps, and its causes from profiled steps, which have no side work. Waiting for
        # data after a synchronisation counts as waiting for data.
        idle = max(
            0.0,
            1
            - busy / step
            - sum(case.recent(phase, 0.0) for phase in ("logging", "checkpoint", "eval")),
        )
        share = (
            min(
                MAX_SHARE,
                idle * after_sync / gaps,
                max(0.0, idle - case.get("data_wait_ratio", 0.0)),
            )
            if gaps > 0
            else 0.0
        )
        enough = step * (1 - SHARE)
        evidence = case.evidence(
            "probe.sync_gaps_s",
            "probe.gaps_s",
            ("probe.busy_s", enough),
            "step_s",
            "probe.syncs_per_step",
        )
        level = share / SHARE
        if level < 1:
            return self.clear(level, evidence)
        times = f"{case.value('probe.syncs_per_step'):.0f} times per step"
        summary = (
            f"the GPU is idle for {percent(share)} of a step right after the host has waited for"
            f" the GPU ({times}).{ADVICE}"
        )
        changes = [_without_waiting_for_copies(case, share)]
        return self.fires(
            level,
            evidence,
            summary,
            recoverable=share,
            confidence=high_if(share >= SERIOUS),
            suggestions=changes,
        )

    def _from_the_waits(self, case: Case) -> Finding:
        """The conclusion from the waits that the agent has timed, without a probe."""
        evidence = device.busy_evidence(case) + case.if_known("stack.outside_ratio")
        waited, calls = device.waited_ratio(case), case.value("sync.calls")
        place, sampled = device.waiting_place(case)
        ahead, level = case.value("host.caught_up_ratio") < device.CAUGHT_UP, waited / SHARE
        if level < 1:
            return self.clear(short_of(level), evidence, "the host hardly waits for the GPU")
        where = f", mostly in {place}" if place else ""
        if device.waits_per_pass(case) < device.CALLS:
            return self.clear(
                0.0,
                evidence,
                f"the host waits at the end of a pass only{where}, and the GPU works meanwhile",
            )
        known = case.has("gpu.sm_active_ratio")
        if not known and waited >= MOSTLY:
            return self.clear(
                0.0,
                evidence,
                f"the host waits for the GPU for most of the step{where}: the GPU is the limit",
            )
        idle = self._idle(case, ahead)
        share = min(MAX_SHARE, waited, idle)
        level = share / SHARE
        if share < SHARE:
            free = (
                "the host is ahead of the GPU at the end of a step"
                if ahead
                else "the GPU is busy, although the host waits for it"
            )
            return self.clear(short_of(level), evidence, free)
        more = " or more" if sampled else ""
        summary = (
            f"the host waits for the GPU {calls:.0f} times{more} per step, {percent(waited)} of its"
            f" time{where}. The GPU is idle for {percent(share)} of a step because no work is"
            f" issued meanwhile.{ADVICE}"
        )
        changes = [_without_waiting_for_copies(case, share)]
        confidence = "low" if not known else "medium" if ahead else high_if(share >= SERIOUS)
        evidence += case.if_known("forward_ratio", "backward_ratio") if ahead else ()
        return self.fires(
            level, evidence, summary, recoverable=share, confidence=confidence, suggestions=changes
        )

    def _idle(self, case: Case, ahead: bool) -> float:
        """Return the least share of a step in which the GPU has no work. `ahead`: the host is ahead
        of the GPU again at the end of a step. The GPU then lacks work only in the forward pass, or
        for the time that the driver measures. Raises Missing."""
        least = max(0.0, device.idle(case).least - _beside(case))
        forward = max(least, device.idle_in_forward(case)) if ahead else MAX_SHARE
        if forward < SHARE or (ahead and not case.has("gpu.sm_active_ratio")):
            return forward
        busy = device.busy_ratio(case)
        if busy is None:
            raise Missing("probe.sync_gaps_s")
        return min(forward, max(0.0, 1 - _beside(case) - busy))


def _beside(case: Case) -> float:
    """Return the share of a step in which the GPU may have no work for another reason: the host
    gets or copies a batch, or does side work. Raise Missing."""
    return device.beside_passes(case) - case.value("other_ratio")


def _without_waiting_for_copies(case: Case, share: float) -> Suggestion | None:
    """Copies of batches for which the host does not wait, where the program waits for them now."""
    if case.knobs.get("non_blocking") is not False:
        return None
    ahead: Knobs = (
        {"non_blocking": True}
        if case.knobs.get("pin_memory", True)
        else {"non_blocking": True, "pin_memory": True}
    )
    why = "the host then does not wait for the copy of a batch"
    code = "batch = batch.to(device, non_blocking=True)   # from DataLoader(..., pin_memory=True)"
    return case.suggest(ahead, Interval(1.0, 1 / (1 - share)), why, code)
