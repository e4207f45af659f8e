"""mem.leak_gpu: GPU memory grows from step to step until no memory is left."""

from __future__ import annotations

from gpuconsole.diagnosis.rule import MAX_SHARE, Case, Finding, Rule, Threshold, high_if

GROWN = Threshold(
    "grown",
    100e6,
    "B",
    "100 MB since the run became steady (TraceML: 100 MB early, 1 GB confirmed; survey T29)",
)
SURE = 1e9
SOON_S = 86400.0
"""A leak that fills the memory only after a day or more is a note."""


class MemLeakGpu(Rule):
    id = "mem.leak_gpu"
    title = "GPU memory grows with every step"
    clear_title = "No GPU memory leak"
    resource = "memory"
    gpu_only = True
    thresholds = (GROWN,)
    reads = ("is_gpu", "memory.growth_bytes_per_s", "memory.grown_bytes", "memory.room_bytes")
    ignore = "The run ends before the memory is full; the finding says how soon that is."
    text = """The peak of allocated memory (tensors, not the cache of the allocator) since the run
became steady, over 50 steps or more. It is a leak if the slope is positive with certainty (lower
95 % bound of Theil and Sen's median of slopes) and as steep in the second half as in the first:
inputs of varied length also raise the peak, but less and less often. The time until memory is full
comes from the lower bound."""

    def judge(self, case: Case) -> Finding:
        growth, grown = case.value("memory.growth_bytes_per_s"), case.value("memory.grown_bytes")
        evidence = case.evidence(("memory.growth_bytes_per_s", 0.0), ("memory.grown_bytes", GROWN))
        level = grown / GROWN if growth > 0 else 0.0
        if level < 1:
            return self.clear(max(0.0, level), evidence)
        room = case.value("memory.room_bytes")
        left_s = room / growth
        evidence += case.evidence("memory.room_bytes")
        summary = (
            f"allocated memory has grown by {grown / 1e6:.0f} MB and still grows; memory is full in"
            f" {_span(left_s)} or sooner. Search for tensors that keep their graph: losses added up"
            " without .item() or .detach(), outputs in a list, hooks"
        )
        recoverable = min(MAX_SHARE, grown / (grown + room))
        return self.fires(
            level,
            evidence,
            summary,
            recoverable=recoverable,
            confidence=high_if(grown >= SURE),
            note=left_s > SOON_S,
        )


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
