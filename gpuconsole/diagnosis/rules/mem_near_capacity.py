"""mem.near_capacity: memory is nearly full; the next larger batch or a longer sequence will not fit."""

from __future__ import annotations

from collections.abc import Callable

from gpuconsole.diagnosis.case import Case, Missing, Rule, Threshold, clear, fires, some, suggest
from gpuconsole.diagnosis.rules import mem_activation_capped, mem_state_capped
from gpuconsole.model.finding import Finding

ID = "mem.near_capacity"
TITLE = "Memory is nearly full"
USED = Threshold("memory_used", 0.90, "ratio", "90 % of device memory (PyTorch profiler 90 %, TraceML 92 %)")


def check(case: Case) -> Finding:
    used = case.value("memory_used_ratio")
    evidence = (case.evidence("memory_used_ratio", USED.value),)
    if not case.knobs.get("memory_limit_mb") and any(_fires(rule.check, case) for rule in (mem_activation_capped, mem_state_capped)):
        return clear(ID, TITLE, 0.0, evidence, "another finding says what of this run fills it")
    if used < USED.value:
        return clear(ID, TITLE, used / USED.value * 0.99, evidence)
    batch = int(case.knobs.get("batch_size", 1))
    return fires(
        ID,
        TITLE,
        f"{used:.0%} of memory is in use; little more will fit",
        recoverable=0.0,
        confidence="high",
        evidence=evidence,
        suggestions=some(
            suggest(
                case,
                {"gradient_checkpointing": True},
                None,
                "activations are recomputed instead of kept; expect about a fifth more time per step",
                "x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
            ),
            suggest(
                case,
                {"batch_size": max(1, batch // 2)},
                None,
                "half of the activations",
                f"DataLoader(dataset, batch_size={max(1, batch // 2)}, ...)",
            )
            if batch > 1
            else None,
        ),
        level=used / USED.value,
        note=True,
    )


def _fires(check: Callable[[Case], Finding], case: Case) -> bool:
    try:
        return check(case).state == "fires"
    except Missing:
        return False


RULE = Rule(
    id=ID,
    title=TITLE,
    signals=("memory_used_ratio",),
    thresholds=(USED,),
    knobs=("gradient_checkpointing", "batch_size"),
    text="""Device memory in use (all processes) over its size; on a CPU, host memory that is not available to new programs. Near the top,
an allocation may fail at the next larger input, and on a GPU the caching allocator starts to free and retry, which stalls.""",
    check=check,
)
