"""mem.state_capped: parameters, gradients and optimizer state fill the memory, whatever the
batch."""

from __future__ import annotations

from gpuconsole.diagnosis.families.memory import ProcessMemory, memory_evidence, memory_of
from gpuconsole.diagnosis.rule import (
    Case,
    Finding,
    Interval,
    Rule,
    Suggestion,
    Threshold,
    percent,
    short_of,
)

USED = Threshold(
    "memory_used",
    0.70,
    "ratio",
    "70 % of the limit: states do not shrink with the batch, so only the rest is left for training",
)
PART = Threshold(
    "states", 0.50, "ratio", "half of the used memory: otherwise activations are larger"
)
LORA_FASTER = Interval(1.1, 1.5)
"""No weight gradients and no update of frozen weights: 1.19x measured on a CPU, 1.47x published for
Llama 2 7B (NVIDIA NeMo)."""
ADAPTED = 16
"""Rows and columns of the four Linears of a block in units of its width: (1 + 3) + (1 + 1) +
(1 + 4) + (4 + 1)."""
BYTES = 4


class MemStateCapped(Rule):
    id = "mem.state_capped"
    title = "Parameters, gradients and optimizer state fill the memory"
    clear_title = "Parameters, gradients and optimizer state leave memory free"
    resource = "memory"
    thresholds = (USED, PART)
    knobs = ("sharding", "peft", "optim")
    reads = (
        "memory.parameters_bytes", "memory.gradients_bytes", "memory.optimizer_bytes",
        "memory.activations_bytes", "memory.limit_bytes", "memory.allocated_peak_bytes",
    )  # fmt: skip
    text = """AdamW in fp32 holds 16 bytes for each trained parameter: the parameter, its gradient
and two moments (also 16 in mixed precision with fp32 masters). The batch size does not change these
bytes. Several processes can share them (ZeRO-1: optimizer state; ZeRO-2: also gradients; ZeRO-3:
also parameters). Fine-tuning can use low-rank adapters, whose gradients and moments are a few per
cent. 8-bit moments save three quarters of the optimizer state. Bytes are those of the tensors of
this process. The limit is `memory_limit_mb`, or without it the memory of the device. The share of
this finding is a share of memory, not of time."""

    def judge(self, case: Case) -> Finding:
        memory = memory_of(case)
        evidence = memory_evidence(case, USED)
        part = memory.states / memory.used
        level = memory.used_ratio / USED
        if memory.used_ratio < USED or part < PART:
            return self.clear(short_of(level) if part >= PART else 0.0, evidence)
        changes = [
            change
            for change in (*_sharded(case, memory), _lora(case, memory), _eight_bit(case, memory))
            if change is not None
        ]
        summary = (
            f"{percent(memory.used_ratio)} of the memory is used; parameters, gradients and"
            f" optimizer state are {percent(part)} of it. A smaller batch would not help"
        )
        recoverable = memory.freed_ratio(changes[0][1]) if changes else 0.0
        suggestions = [suggestion for suggestion, _ in changes]
        return self.fires(
            level,
            evidence,
            summary,
            recoverable=recoverable,
            confidence="high",
            suggestions=suggestions,
        )


Freed = tuple[Suggestion, float]
"""A suggestion, and the bytes that it frees."""


def _sharded(case: Case, memory: ProcessMemory) -> list[Freed | None]:
    """ZeRO: N processes share optimizer state, gradients and parameters. `why` gives the remaining
    bytes of the 16 P bytes (AdamW in fp32)."""
    n = int(case.knobs.get("nproc", 1))
    if n < 2 or case.knobs.get("sharding") not in ("none", "ddp"):
        return []
    zero1 = "ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW)"
    zero2, zero3 = (f"fully_shard(block, reshard_after_forward={flag})" for flag in (False, True))
    stages = (
        (
            "zero2",
            # FSDP2 stores its shard in addition to the gathered parameters
            memory.optimizer + memory.gradients - memory.parameters / (n - 1),
            f"4P + 16P/{n} bytes instead of 16P, with the same traffic as DDP",
            zero2,
        ),
        (
            "zero3",
            memory.states,
            f"16P/{n} bytes instead of 16P, with 1.5x the traffic of DDP",
            zero3,
        ),
        (
            "zero1",
            memory.optimizer,
            f"8P + 8P/{n} bytes instead of 16P, with 1.5x the traffic of DDP",
            zero1,
        ),
    )
    return [
        _freeing(case.suggest({"sharding": stage}, None, why, code), (1 - 1 / n) * size)
        for stage, size, why, code in stages
    ]


def _lora(case: Case, memory: ProcessMemory) -> Freed | None:
    if case.knobs.get("peft") != "none":
        return None
    adapters = (
        BYTES
        * ADAPTED
        * int(case.knobs["lora_rank"])
        * int(case.knobs["d_model"])
        * int(case.knobs["n_layer"])
    )
    freed = memory.gradients + memory.optimizer - 4 * adapters
    why = (
        "for fine-tuning: gradients and optimizer state of low-rank adapters only; the model can"
        " learn less"
    )
    return _freeing(
        case.suggest(
            {"peft": "lora"}, LORA_FASTER, why, "peft.get_peft_model(model, LoraConfig(r=8, ...))"
        ),
        freed,
    )


def _eight_bit(case: Case, memory: ProcessMemory) -> Freed | None:
    if (
        not str(case.knobs.get("optim", "")).startswith("adamw")
        or case.knobs.get("optim") == "adamw_8bit"
    ):
        return None
    why = "moments in one byte instead of four; needs torchao or bitsandbytes"
    suggestion = case.suggest(
        {"optim": "adamw_8bit"}, None, why, "torchao.optim.AdamW8bit(model.parameters())"
    )
    return _freeing(suggestion, 0.75 * memory.optimizer)


def _freeing(suggestion: Suggestion | None, size: float) -> Freed | None:
    return (suggestion, size) if suggestion is not None and size > 0 else None
