"""mem.fragmentation: even when memory is fullest, much of the reserved memory is in pieces too
small to use."""

from __future__ import annotations

from gpuconsole.diagnosis.rule import (
    CantTell,
    Case,
    Evidence,
    Finding,
    Rule,
    Suggestion,
    Threshold,
    high_if,
    percent,
)

LOST = Threshold(
    "lost_of_reserved",
    0.30,
    "ratio",
    "30 % of the reserved memory (TraceML: reserved is 2x allocated, at 30 % of the memory)",
)
MATTERS = Threshold(
    "lost_of_limit", 0.10, "ratio", "below 10 % of the limit the room would not be useful"
)
FULL = Threshold(
    "reserved",
    0.50,
    "ratio",
    (
        "on a GPU with less than half of its memory reserved, no allocation is likely to fail: the"
        " finding is a note"
    ),
)
MMAP_KB = 256
LENGTHS = 64


class MemFragmentation(Rule):
    id = "mem.fragmentation"
    title = "Memory is fragmented"
    clear_title = "Memory is not fragmented"
    resource = "memory"
    thresholds = (LOST, MATTERS, FULL)
    knobs = ("pytorch_alloc_conf", "pad_to_multiple_of", "malloc_mmap_threshold_kb")
    reads = (
        "memory.limit_bytes", "is_gpu", "memory.allocated_peak_bytes",
        "memory.reserved_peak_bytes", "memory.heap_allocated_bytes", "memory.heap_reserved_bytes",
        "memory.heap_allocated_peak_bytes", "memory.heap_reserved_peak_bytes",
        "memory.inactive_split_bytes", "memory.alloc_retries", "memory.graph_pools",
        "memory.peaks_reset",
    )  # fmt: skip
    text = """The allocator's reserved memory and the memory that tensors use are both known:
torch.cuda.memory_stats keeps the peaks of both over the run. On a CPU, glibc's mallinfo2 is read
during a few passes; its heap holds the whole process with its libraries. The two are compared at
the peak, because memory that is unused between steps only waits for the next step. On a GPU, whole
free segments are cache, as long as no allocation has failed at first (num_alloc_retries). The lost
memory is then at most torch's own count of free parts in segments that are partly in use
(inactive_split_bytes). The same holds if the program has reset the peaks. If a third is lost,
tensors of different sizes are allocated and freed in an order that leaves gaps, mostly because some
tensors live longer than others. On a GPU, expandable_segments lets segments grow, and padding to a
multiple leaves few sizes. glibc before 2.38 gains nothing from few sizes: a freed aligned block
cannot hold the next block of the same size. There, a fixed mmap threshold or another malloc returns
large blocks to the system. On a GPU with less than half of its memory reserved, the finding is a
note: the lost memory makes no allocation fail. The confidence is high only if an allocation has
failed at first. Pools of CUDA graphs look like fragmentation, so the rule does not judge them."""

    def judge(self, case: Case) -> Finding:
        limit = case.value("memory.limit_bytes")
        allocated, reserved = _peaks(case)
        lost, source = max(0.0, reserved.value - allocated.value), "1 - allocated / reserved"
        level = _level(lost, reserved.value, limit)
        evidence: tuple[Evidence, ...] = (reserved, allocated)
        if level >= 1 and case.value("is_gpu"):
            if case.get("memory.graph_pools", 0.0):
                raise CantTell("CUDA graphs keep pools, whose free parts are for their replays")
            # whole free segments are cache, unless an allocation has failed beside them
            failed = case.get("memory.alloc_retries", 0.0) > 0
            if not failed or case.get("memory.peaks_reset", 0.0):
                (split,) = case.evidence("memory.inactive_split_bytes")
                if split.value < lost:
                    lost, source = split.value, "inactive split bytes / reserved"
                level, evidence = _level(lost, reserved.value, limit), (*evidence, split)
        of_reserved, of_limit = lost / max(reserved.value, 1.0), lost / limit
        whole = Evidence("lost", of_reserved, "ratio", LOST.value, source)
        if level < 1:
            return self.clear(level, (*evidence, whole))
        summary = (
            f"of {_mb(reserved.value)} reserved memory, {_mb(lost)} are in pieces that no tensor"
            f" uses at the {'peaks of the run' if case.value('is_gpu') else 'peak'}:"
            f" {percent(of_limit)} of the memory limit"
        )
        again = case.if_known("memory.alloc_retries") if case.value("is_gpu") else ()
        evidence = (*evidence, whole, *again, *case.evidence("memory.limit_bytes"))
        suggestions = _on_gpu(case) if case.get("is_gpu", 0.0) else _on_cpu(case)
        roomy = case.get("is_gpu", 0.0) > 0 and reserved.value < FULL * limit
        return self.fires(
            level,
            evidence,
            summary,
            recoverable=of_limit,
            confidence=high_if(not case.value("is_gpu") or any(one.value > 0 for one in again)),
            suggestions=suggestions,
            note=roomy,
        )


def _level(lost: float, reserved: float, limit: float) -> float:
    """Return how far the lost bytes are above both thresholds."""
    return min(lost / max(reserved, 1.0) / LOST, lost / limit / MATTERS)


def _peaks(case: Case) -> tuple[Evidence, ...]:
    """Allocated and reserved bytes at the peak. On a CPU this needs a probe, unless the figures
    between steps already decide. Raises Missing."""
    if case.value("is_gpu"):
        return case.evidence("memory.allocated_peak_bytes", "memory.reserved_peak_bytes")
    allocated, reserved = at_rest = case.evidence(
        "memory.heap_allocated_bytes", "memory.heap_reserved_bytes"
    )
    lost = reserved.value - allocated.value
    if lost < LOST * reserved.value or lost < MATTERS * case.value("memory.limit_bytes"):
        return at_rest  # more memory in use can only raise the allocated part
    return case.evidence("memory.heap_allocated_peak_bytes", "memory.heap_reserved_peak_bytes")


def _on_gpu(case: Case) -> list[Suggestion | None]:
    why = "the allocator maps pages into segments that grow, instead of reserving new segments"
    code = "PYTORCH_ALLOC_CONF=expandable_segments:True python train.py"
    growing = case.suggest({"pytorch_alloc_conf": "expandable_segments:True"}, None, why, code)
    why = "a handful of sizes instead of hundreds, so that blocks can be reused"
    code = f"DataCollatorWithPadding(tokenizer, pad_to_multiple_of={LENGTHS})"
    padded = case.suggest({"pad_to_multiple_of": LENGTHS}, None, why, code)
    return [growing, padded if case.knobs.get("pad_to_multiple_of") == 0 else None]


def _on_cpu(case: Case) -> list[Suggestion | None]:
    why = (
        "large blocks are mapped one by one and returned when freed; new pages are zeroed each"
        " time, which costs time"
    )
    code = (
        f"MALLOC_MMAP_THRESHOLD_={MMAP_KB * 1024} python train.py   # or"
        " LD_PRELOAD=libjemalloc.so.2"
    )
    return [case.suggest({"malloc_mmap_threshold_kb": MMAP_KB}, None, why, code)]


def _mb(value: float) -> str:
    return f"{value / 1e6:,.0f} MB".replace(",", " ")
