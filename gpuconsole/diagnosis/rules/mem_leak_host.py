"""mem.leak_host: the process takes host memory with every step and does not free it."""

from __future__ import annotations

from gpuconsole.diagnosis.rule import Case, Finding, Rule, Threshold, high_if, short_of

GROWN = Threshold(
    "grown",
    100e6,
    "B",
    "100 MB since the run became steady (TraceML: 100 MB early, 1 GB confirmed)",
)
STEADY = Threshold(
    "steady",
    0.5,
    "ratio",
    (
        "the lower bound of the slope must explain half of the growth: arenas and caches grow early"
        " and then stop"
    ),
)
RISES = Threshold(
    "rises",
    0.8,
    "ratio",
    "80 % of the readings are no lower than the one before: steady growth, no sawtooth",
)
LOOK_FOR = (
    "Look for losses stored with their graph, growing lists and unbounded caches (tracemalloc shows"
    " the line)"
)
IN_WORKERS = (
    "Each worker copies the memory pages of the Python objects that it reads, because a read"
    " changes the reference count: keep long lists of samples as a NumPy array or a tensor. A cache"
    " in the dataset that grows in each worker is another possible cause"
)
PROCESS, WORKERS = ("host.memory", "host.private_bytes"), ("loader.memory", "loader.private_bytes")
"""For the training process, and for the workers of its loader: the prefix of the growth signals,
and the signal of the present memory."""
HORIZON = Threshold("horizon", 24 * 3600.0, "s", "memory that lasts for another day is no problem")


class MemLeakHost(Rule):
    id = "mem.leak_host"
    title = "Host memory grows with every step"
    clear_title = "No host memory leak"
    resource = "memory"
    thresholds = (GROWN, RISES, STEADY, HORIZON)
    reads = (
        "host.memory_growth_bytes_per_s", "host.memory_grown_bytes", "host.memory_rises_ratio",
        "host.memory_steady_ratio", "host.private_bytes", "host.memory_available_bytes",
        "loader.memory_growth_bytes_per_s", "loader.memory_grown_bytes",
        "loader.memory_rises_ratio", "loader.memory_steady_ratio", "loader.private_bytes",
    )  # fmt: skip
    ignore = "The run ends before the memory is full; the finding says how soon that is."
    text = """The rule reads the private resident memory of the training process (no files, nothing
shared) twice a second over steady steps, and the private memory of the workers of its DataLoader at
most once a second. The slope is the Theil-Sen slope of all pairs of readings, so single jumps do
not change it. The growth is a leak if the lower 95 % bound of the slope is above zero, the second
half is as steep as the first, the slope explains at least half of the growth, and nearly every
reading is no lower than the one before. The rule needs 20 readings, or 8 readings if the growth is
already 250 MB. The page cache and shared batches do not count. Usual causes: losses stored with
their graph, lists of outputs, unbounded caches, itertools.cycle over a loader, which keeps every
batch. Use tracemalloc or gc.get_objects() between two steps to find the cause.
In workers: a forked worker shares the memory of the dataset with the training process until one of
the two writes to it. A read of a Python object changes its reference count, which is a write. So a
worker that reads a list of Python objects copies the list page by page, and in the end each worker
has its own copy. A read of a NumPy array or a tensor writes nothing."""

    def judge(self, case: Case) -> Finding:
        findings = [self._judge(case, PROCESS)]
        if case.has(f"{WORKERS[0]}_growth_bytes_per_s"):
            findings.append(self._judge(case, WORKERS))
        fires = [finding for finding in findings if finding.state == "fires"]
        return max(fires or findings, key=lambda finding: finding.level)

    def _judge(self, case: Case, whose: tuple[str, str]) -> Finding:
        name, present = whose
        limits = {
            "growth_bytes_per_s": 0.0,
            "grown_bytes": GROWN,
            "rises_ratio": RISES,
            "steady_ratio": STEADY,
        }
        evidence = case.evidence(
            *((f"{name}_{part}", limit) for part, limit in limits.items()), present
        )
        slope, grown, rises, steady = (case.value(f"{name}_{part}") for part in limits)
        if (
            whose is WORKERS
            and grown >= GROWN
            and rises >= RISES
            and (slope <= 0 or steady < STEADY)
        ):
            summary = (
                f"the memory of the loader's workers has grown by {grown / 1e6:.0f} MB since the"
                f" run became steady, but the growth slows down. {IN_WORKERS}"
            )
            title = "The loader's workers have copied memory"
            return self.note(grown / GROWN, evidence, summary, confidence="medium", title=title)
        if slope <= 0 or grown < GROWN or rises < RISES or steady < STEADY:
            return self.clear(short_of(max(0.0, grown / GROWN)) if slope > 0 else 0.0, evidence)
        left = case.get("host.memory_available_bytes", 0.0) / slope
        if left > HORIZON:
            return self.clear(
                0.5, evidence, f"at this rate the memory lasts {left / 3600:.0f} hours"
            )
        until = f". At this rate the memory is full in {left / 60:.0f} minutes" if left else ""
        what, look_for = (
            ("the memory of the loader's workers", IN_WORKERS)
            if whose is WORKERS
            else ("host memory", LOOK_FOR)
        )
        summary = (
            f"{what} grows by {slope / 1e6:.1f} MB per second, {grown / 1e6:.0f} MB since the run"
            f" became steady{until}. {look_for}"
        )
        recoverable = min(1.0, grown / max(1.0, case.value(present)))
        title = "The memory of the loader's workers grows" if whose is WORKERS else ""
        return self.fires(
            grown / GROWN,
            evidence,
            summary,
            recoverable=recoverable,
            confidence=high_if(grown >= 2 * GROWN),
            title=title,
        )
