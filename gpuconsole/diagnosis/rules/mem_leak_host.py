"""mem.leak_host: the process takes host memory with every step and does not free it."""

from __future__ import annotations

from gpuconsole.diagnosis.rule import Case, Finding, Rule, Threshold, high_if, short_of

GROWN = Threshold("grown", 100e6, "B", "100 MB since the run became steady (TraceML: 100 MB early, 1 GB confirmed)")
STEADY = Threshold(
    "steady", 0.5, "ratio", "the lower bound of the slope must explain half of the growth: arenas and caches grow early and then stop"
)
RISES = Threshold("rises", 0.8, "ratio", "80 % of the readings are no lower than the one before: steady growth, no sawtooth")
LOOK_FOR = "Look for losses stored with their graph, growing lists and unbounded caches (tracemalloc shows the line)"
HORIZON = Threshold("horizon", 24 * 3600.0, "s", "memory that lasts for another day is no problem")


class MemLeakHost(Rule):
    id = "mem.leak_host"
    title = "Host memory grows with every step"
    clear_title = "No host memory leak"
    resource = "memory"
    thresholds = (GROWN, RISES, STEADY, HORIZON)
    reads = (
        "host.memory_growth_bytes_per_s", "host.memory_grown_bytes", "host.memory_rises_ratio", "host.memory_steady_ratio",
        "host.private_bytes", "host.memory_available_bytes",
    )  # fmt: skip
    ignore = "The run ends before the memory is full; the finding says how soon that is."
    text = """Resident memory of this process alone (no files, nothing shared), read twice a second over steady steps. The slope is Theil and Sen's, from all pairs
of readings, so single jumps do not change it. It is a leak if the lower 95 % bound of the slope is above zero, the second half is as steep as
the first, the slope explains at least half of the growth, and nearly every reading is no lower than the one before. The page cache and shared
batches do not count. Usual causes: losses stored with their graph, lists of outputs, unbounded caches. Use tracemalloc or
gc.get_objects() between two steps to find the cause."""

    def judge(self, case: Case) -> Finding:
        limits = {"growth_bytes_per_s": 0.0, "grown_bytes": GROWN, "rises_ratio": RISES, "steady_ratio": STEADY}
        evidence = case.evidence(*((f"host.memory_{name}", limit) for name, limit in limits.items()), "host.private_bytes")
        slope, grown, rises, steady = (case.value(f"host.memory_{name}") for name in limits)
        if slope <= 0 or grown < GROWN or rises < RISES or steady < STEADY:
            return self.clear(short_of(max(0.0, grown / GROWN)) if slope > 0 else 0.0, evidence)
        left = case.get("host.memory_available_bytes", 0.0) / slope
        if left > HORIZON:
            return self.clear(0.5, evidence, f"at this rate the memory lasts {left / 3600:.0f} hours")
        until = f". At this rate the memory is full in {left / 60:.0f} minutes" if left else ""
        summary = (
            f"host memory grows by {slope / 1e6:.1f} MB per second, {grown / 1e6:.0f} MB since the run became steady{until}. {LOOK_FOR}"
        )
        recoverable = min(1.0, grown / max(1.0, case.value("host.private_bytes")))
        return self.fires(grown / GROWN, evidence, summary, recoverable=recoverable, confidence=high_if(grown >= 2 * GROWN))
