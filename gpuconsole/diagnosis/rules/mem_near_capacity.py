"""mem.near_capacity: memory is nearly full; a larger batch or a longer sequence will not fit."""

from __future__ import annotations

from gpuconsole.diagnosis.families import loader
from gpuconsole.diagnosis.rule import Case, Finding, Rule, Threshold, percent

USED = Threshold("memory_used", 0.90, "ratio", "90 % of device memory (PyTorch profiler 90 %, TraceML 92 %)")


class MemNearCapacity(Rule):
    id = "mem.near_capacity"
    title = "Memory is nearly full"
    clear_title = "Memory has room"
    thresholds = (USED,)
    knobs = ("gradient_checkpointing", "batch_size")
    reads = ("memory_used_ratio",)
    ignore = "The run fits into the memory, and its inputs do not grow."
    text = """Device memory in use by all processes over its size; on a CPU, host memory that is not available to new programs. Near the limit, an allocation
may fail at the next larger input. On a GPU, the caching allocator also starts to free and retry, which stalls the step."""

    def judge(self, case: Case) -> Finding:
        used = case.value("memory_used_ratio")
        evidence = case.evidence(("memory_used_ratio", USED))
        if used < USED:
            return self.clear(used / USED * 0.99, evidence)
        summary = f"{percent(used)} of the memory is in use"
        why = "activations are computed again instead of kept; a step takes about 20 % longer"
        code = "x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)"
        again = case.suggest({"gradient_checkpointing": True}, None, why, code)
        batch = int(case.knobs.get("batch_size", 1)) // 2
        smaller = case.suggest({"batch_size": batch}, None, "half of the activations", loader.batch_code(case, batch)) if batch else None
        return self.note(used / USED, evidence, summary, confidence="high", suggestions=[again, smaller])
