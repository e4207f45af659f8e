"""mem.cache_emptied: the program empties the cache of torch's allocator in every step."""

from __future__ import annotations

from gpuconsole.diagnosis.families import device
from gpuconsole.diagnosis.rule import MAX_SHARE, Case, Finding, Missing, Rule, Threshold, percent

OFTEN = Threshold("calls", 0.5, "", "what fewer than half of the steps do is no work of each step")
SHARE = Threshold(
    "idle",
    0.05,
    "ratio",
    "5 % of a step without work on the GPU, as for synchronisations (survey T10)",
)


class MemCacheEmptied(Rule):
    id = "mem.cache_emptied"
    title = "The program empties the allocator's cache in every step"
    clear_title = "The allocator keeps its cache, or emptying it costs little"
    gpu_only = True
    jobs_only = True
    thresholds = (OFTEN, SHARE, device.MFU, device.MFU_CAUSAL)
    reads = (
        "is_gpu", "step_s", "cache.emptied_calls", "cache.emptied_s", "mfu_ratio",
        "mfu_causal_ratio", "hfu_ratio", "mfu_at_least", "gpu.sm_active_ratio", "gpu.util_ratio",
        "sync.wait_s", "host.ahead_ratio", "hw.datasheet_clock_ratio", "hw.power_cap_time_ratio",
        "hw.thermal_time_ratio",
    )  # fmt: skip
    text = """torch.cuda.empty_cache() waits until the GPU has done its work, and gives the memory
that no tensor uses back to the driver. The next step asks the driver for the same memory again,
segment by segment. Each of these calls takes the host 0.1 ms and more, and the GPU has no work
meanwhile. A step needs no empty cache: the allocator uses freed memory again by itself, and empties
its cache before it reports that memory is out.
In a few steps the agent counts the calls and their time. The loss is at most this time, and at most
the time in which the GPU is idle: a part of the call waits for work of the GPU. The memory that the
next step asks for comes on top. Without GPM the idle time is estimated from MFU, so the confidence
is low.
What helps: no call within the loop; one call after a validation or another part of the program
whose sizes differ. Against fragmentation: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."""
    ignore = "Another process on the same GPU needs the memory between two steps."

    def judge(self, case: Case) -> Finding:
        calls, seconds, step = (
            case.value("cache.emptied_calls"),
            case.value("cache.emptied_s"),
            case.value("step_s"),
        )
        evidence = case.evidence(("cache.emptied_calls", OFTEN), "cache.emptied_s", "step_s")
        if calls < OFTEN:
            return self.clear(calls / OFTEN, evidence)
        if not case.has("gpu.sm_active_ratio") and device.computes_well(case):
            return self.clear(0.0, evidence, "the GPU is busy all the same")
        busy = device.busy_ratio(case)
        if busy is None:
            raise Missing("gpu.sm_active_ratio")
        evidence += case.if_known("gpu.sm_active_ratio", "gpu.util_ratio", "mfu_ratio")
        share = min(MAX_SHARE, seconds / step, 1 - busy)
        level = share / SHARE
        if level < 1:
            return self.clear(level, evidence, "the GPU is busy all the same")
        place = case.place("cache.emptied_s")
        where = f" in {place}" if place is not None else ""
        often = "once per step" if calls < 1.5 else f"{calls:.0f} times per step"
        summary = (
            f"torch.cuda.empty_cache(){where} runs {often}. The GPU is idle for up to"
            f" {percent(share)} of a step while memory goes back to the driver, and longer while"
            " the next step asks for it again. Take the call out of the loop: the allocator uses"
            " freed memory again by itself"
        )
        return self.fires(
            level,
            evidence,
            summary,
            recoverable=share,
            confidence="medium" if case.has("gpu.sm_active_ratio") else "low",
        )
