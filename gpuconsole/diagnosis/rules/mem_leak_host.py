"""mem.leak_host: the process takes host memory with every step and never gives it back."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case
from gpuconsole.diagnosis.rule import Rule, Threshold
from gpuconsole.model.finding import Finding

GROWN = Threshold("grown", 100e6, "B", "100 MB since it is steady: what TraceML calls early, 1 GB being confirmed")
STEADY = Threshold(
    "steady", 0.5, "ratio", "a slope that is sure must explain half of the growth: arenas and caches grow early and then stop"
)
RISES = Threshold("rises", 0.8, "ratio", "four in five readings are no lower than the one before: steady growth, no sawtooth")
HORIZON = Threshold("horizon", 24 * 3600.0, "s", "memory that lasts for another day is no cause for alarm")


class MemLeakHost(Rule):
    id = "mem.leak_host"
    title = "Host memory grows with every step"
    clear_title = "No host memory leak"
    resource = "memory"
    thresholds = (GROWN, RISES, STEADY, HORIZON)
    text = """Resident memory that is this process's alone (no files, nothing shared), twice a second over steady steps. The slope is Theil
and Sen's, from all pairs of readings, so that single jumps do not move it; its lower 95 % bound must be above zero, its second half as
steep as the first, it must explain at least half of the growth, and nearly every reading no lower than the one before. The page cache and
shared batches do not count. Usual causes: losses appended with their graph, lists of outputs, caches without bound. Look with tracemalloc
or gc.get_objects() between two steps."""

    def check(self, case: Case) -> Finding:
        slope = case.value("host.memory_growth_bytes_per_s")
        grown, rises = case.value("host.memory_grown_bytes"), case.value("host.memory_rises_ratio")
        evidence = (
            case.evidence("host.memory_growth_bytes_per_s", 0.0),
            case.evidence("host.memory_grown_bytes", GROWN.value),
            case.evidence("host.memory_rises_ratio", RISES.value),
            case.evidence("host.memory_steady_ratio", STEADY.value),
            case.evidence("host.private_bytes"),
        )
        steady = case.value("host.memory_steady_ratio")
        if slope <= 0 or grown < GROWN.value or rises < RISES.value or steady < STEADY.value:
            return self.clear(min(0.99, max(0.0, grown / GROWN.value)) if slope > 0 else 0.0, evidence)
        left = case.get("host.memory_available_bytes", 0.0) / slope
        if left > HORIZON.value:
            return self.clear(0.5, evidence, f"at this rate memory lasts for {left / 3600:.0f} hours")
        until = f"; at this rate memory is used up in {left / 60:.0f} minutes" if left else ""
        return self.fires(
            f"{slope / 1e6:.1f} MB more every second, {grown / 1e6:.0f} MB since it is steady{until}",
            recoverable=min(1.0, grown / max(1.0, case.value("host.private_bytes"))),
            confidence="high" if grown >= 2 * GROWN.value else "medium",
            evidence=evidence,
            level=grown / GROWN.value,
        )
