"""mem.fragmentation: even when memory is fullest, much of what the allocator has reserved is in pieces that fit nothing."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case
from gpuconsole.diagnosis.rule import Rule, Threshold
from gpuconsole.diagnosis.suggest import suggest
from gpuconsole.model.finding import Evidence, Finding, Suggestion

LOST = Threshold("lost_of_reserved", 0.30, "ratio", "30 % of what is reserved (TraceML: reserved at 2x allocated, with 30 % of the memory)")
MATTERS = Threshold("lost_of_limit", 0.10, "ratio", "less than a tenth of what the run may use makes room for nothing")
MMAP_KB = 256
LENGTHS = 64


class MemFragmentation(Rule):
    id = "mem.fragmentation"
    title = "Memory is fragmented"
    clear_title = "Memory is not fragmented"
    resource = "memory"
    thresholds = (LOST, MATTERS)
    knobs = ("pytorch_alloc_conf", "pad_to_multiple_of", "malloc_mmap_threshold_kb")
    text = """What an allocator has taken from the device and what tensors use of it are both known: torch.cuda.memory_stats keeps the peaks of both;
on a CPU glibc's mallinfo2 is asked all through a few passes (its heap holds the whole process, libraries too). The two are
compared at the peak, since what is unused between steps is only waiting for the next. A third lost means that sizes come and
go in an order in which blocks fit badly, mostly since some tensors outlive the others. On a GPU expandable_segments lets
segments grow, and padding to a multiple leaves few sizes. glibc before 2.38 does not gain from few sizes: a freed block that was
aligned cannot hold the next one of the same size. There a fixed mmap threshold, or another malloc, gives large blocks back."""

    def check(self, case: Case) -> Finding:
        limit = case.value("memory.limit_bytes")
        allocated, reserved = _peaks(case)
        lost = max(0.0, reserved.value - allocated.value)
        of_reserved, of_limit = lost / max(reserved.value, 1.0), lost / limit
        evidence = (reserved, allocated, Evidence("lost", of_reserved, "ratio", LOST.value, "1 - allocated / reserved"))
        level = min(of_reserved / LOST.value, of_limit / MATTERS.value)
        if level < 1:
            return self.clear(level, evidence)
        return self.fires(
            f"with memory at its fullest, {_mb(allocated.value)} of {_mb(reserved.value)} reserved are in use: {of_limit:.0%} of what the run"
            " may use is lost to fragments",
            recoverable=of_limit,
            confidence="high",
            evidence=(*evidence, case.evidence("memory.limit_bytes")),
            suggestions=[*(_on_gpu(case) if case.get("is_gpu", 0.0) else _on_cpu(case))],
            level=level,
        )


def _peaks(case: Case) -> tuple[Evidence, Evidence]:
    """Allocated and reserved when memory was fullest. On a CPU that takes a probe, run only where the figures at rest leave it open.

    Raises Missing.
    """
    if case.value("is_gpu"):
        return case.evidence("memory.allocated_peak_bytes"), case.evidence("memory.reserved_peak_bytes")
    at_rest = case.evidence("memory.heap_allocated_bytes"), case.evidence("memory.heap_reserved_bytes")
    lost = at_rest[1].value - at_rest[0].value
    if lost < LOST.value * at_rest[1].value or lost < MATTERS.value * case.value("memory.limit_bytes"):
        return at_rest  # memory in use only adds to what is allocated then
    return case.evidence("memory.heap_allocated_peak_bytes"), case.evidence("memory.heap_reserved_peak_bytes")


def _on_gpu(case: Case) -> tuple[Suggestion | None, ...]:
    return (
        suggest(
            case,
            {"pytorch_alloc_conf": "expandable_segments:True"},
            None,
            "the allocator maps pages into segments that grow, instead of asking for another that fits",
            "PYTORCH_ALLOC_CONF=expandable_segments:True python train.py",
        ),
        suggest(
            case,
            {"pad_to_multiple_of": LENGTHS},
            None,
            "a handful of sizes instead of hundreds, so that blocks fit again",
            f"DataCollatorWithPadding(tokenizer, pad_to_multiple_of={LENGTHS})",
        )
        if case.knobs.get("pad_to_multiple_of") == 0
        else None,
    )


def _on_cpu(case: Case) -> tuple[Suggestion | None, ...]:
    return (
        suggest(
            case,
            {"malloc_mmap_threshold_kb": MMAP_KB},
            None,
            "large blocks are mapped one by one and given back when freed; their pages are zeroed anew each time, which costs time",
            f"MALLOC_MMAP_THRESHOLD_={MMAP_KB * 1024} python train.py   # or LD_PRELOAD=libjemalloc.so.2",
        ),
    )


def _mb(value: float) -> str:
    return f"{value / 1e6:,.0f} MB".replace(",", " ")
