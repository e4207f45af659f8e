"""mem.near_capacity: memory is nearly full; a larger batch or a longer sequence will not fit."""

from __future__ import annotations

from gpuconsole.diagnosis.families import loader
from gpuconsole.diagnosis.rule import Case, Evidence, Finding, Rule, Threshold, percent

USED = Threshold(
    "memory_used", 0.90, "ratio", "90 % of device memory (PyTorch profiler 90 %, TraceML 92 %)"
)


class MemNearCapacity(Rule):
    id = "mem.near_capacity"
    title = "Memory is nearly full"
    clear_title = "Memory has room"
    thresholds = (USED,)
    knobs = ("gradient_checkpointing", "batch_size")
    reads = (
        "is_gpu",
        "memory.allocated_peak_bytes",
        "memory.limit_bytes",
        "memory.others_bytes",
        "hw.memory_bytes",
        "memory_used_ratio",
    )
    ignore = "The run fits into the memory, and its inputs do not grow."
    text = """A job of ours on a GPU: the peak of the run of the memory that its tensors use, with
what the CUDA context and other processes hold, over the size of the device. Memory that torch's
allocator only keeps for later does not count: it has room for new tensors. Other runs: device
memory in use by all processes over its size; on a CPU, host memory that is not available to new
programs. On a GPU with the memory of the host, the page cache of the kernel does not count. Near
the limit, an allocation may fail at the next larger input. On a GPU, the caching allocator also
starts to free and retry, which stalls the step."""

    def judge(self, case: Case) -> Finding:
        used, what, evidence = _used(case)
        if used < USED:
            return self.clear(used / USED * 0.99, evidence)
        summary = f"{percent(used)} of the memory is in use{what}"
        why = "activations are computed again instead of kept; a step takes about 20 % longer"
        code = "x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)"
        again = case.suggest({"gradient_checkpointing": True}, None, why, code)
        batch = int(case.knobs.get("batch_size", 1)) // 2
        smaller = (
            case.suggest(
                {"batch_size": batch},
                None,
                "half of the activations",
                loader.batch_code(case, batch),
            )
            if batch
            else None
        )
        return self.note(
            used / USED, evidence, summary, confidence="high", suggestions=[again, smaller]
        )


def _used(case: Case) -> tuple[float, str, tuple[Evidence, ...]]:
    """Return the share of the memory in use, at which moment, and the evidence. Raises Missing."""
    if not case.get("is_gpu", 0.0) or not case.has(
        "memory.allocated_peak_bytes", "memory.limit_bytes"
    ):
        return case.value("memory_used_ratio"), "", case.evidence(("memory_used_ratio", USED))
    peak, limit, others = (
        case.value("memory.allocated_peak_bytes"),
        case.value("memory.limit_bytes"),
        case.get("memory.others_bytes", 0.0),
    )
    # a limit of the run's own is not the device's memory
    used = (peak + others) / case.get("hw.memory_bytes", limit)
    whole = Evidence(
        "memory needed",
        used,
        "ratio",
        USED.value,
        "the peak of the tensors over the run, with what other processes and the CUDA context hold",
    )
    known = case.evidence("memory.allocated_peak_bytes", "memory.limit_bytes") + case.if_known(
        "memory.others_bytes", "memory_used_ratio"
    )
    return used, " at the peak of the run, without the allocator's cache", (whole, *known)
