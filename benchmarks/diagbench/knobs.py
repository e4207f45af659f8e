"""Every knob that the oracle changes: one knob at a time, to values that a user would try."""

from __future__ import annotations

from gpuconsole.model.knobs.catalogue import CATALOGUE, Knobs, Value

FAULTS = (
    "storage_latency_ms",
    "slow_sample_ratio",
    "storage_reads",
    "tensors_per_sample",
    "leak_mb",
    "straggler_ms",
    "straggler_phase",
    "varied_lengths",
)
"""Injected faults, which no user can change."""
MEANING = ("seq_len", "lr_scheduler", "warmup_steps", "max_train_samples", "memory_limit_mb")
"""They change what is learnt, not the speed."""
NOTHING_HERE = ("pin_memory", "non_blocking", "h2d_stream", "pytorch_alloc_conf", "precision")
"""No effect on a CPU, or, for half precision, several times slower on a CPU without instructions
for it."""
LOAD = ("request_rate", "concurrency", "prompt_tokens", "output_tokens")


def changes_to_try(knobs: Knobs, fix: tuple[str, ...] = ()) -> list[Knobs]:
    """Every knob that can change in a running process. Knobs of a model server and knobs that need
    a new process are left out.

    If a `fix` is known, other changes of what is learnt are left out, too: a larger batch
    compensates every cost per step.
    """
    found: list[Knobs] = []
    for name, value in knobs.items():
        left_out = (*FAULTS, *MEANING, *NOTHING_HERE, *LOAD)
        if (name in left_out and name not in fix) or CATALOGUE[name].serving:
            continue
        if CATALOGUE[name].apply == "cold" or (
            fix and CATALOGUE[name].changes_training and name not in fix
        ):
            continue
        found += [{name: other} for other in _others(name, value) if other != value]
    return found


def _others(name: str, value: Value) -> tuple[Value, ...]:
    if name in ("batch_size", "gradient_accumulation_steps"):
        return (int(value) * 4,)
    if name in ("log_every", "save_every", "eval_every"):
        return (int(value) * 20,) if int(value) else ()
    if name == "num_workers":
        return (int(value) + 1, 4)
    if name == "prefetch_factor":
        return (int(value) * 4,)
    if name == "num_threads":
        # 0 leaves a core to the console on purpose: to take it is an offer, and cures no fault
        return (1, 2) if value else (1,)
    if name == "transform_cost":
        return (int(value) // 2,)
    if name in ("gc_collect_every", "eval_batch_size"):
        return (0,)
    if name == "optim":
        return ("adamw_fused", "adamw_foreach")
    if name == "gradient_percentiles":
        return ("torch",) if value == "python" else ()
    if name == "gradient_checkpointing":
        return (False,)
    return CATALOGUE[name].examples
