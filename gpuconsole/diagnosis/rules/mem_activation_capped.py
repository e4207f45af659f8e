"""mem.activation_capped: the activations that the forward pass keeps for the backward pass fill the
memory."""

from __future__ import annotations

from gpuconsole.diagnosis.families import passes
from gpuconsole.diagnosis.families.memory import memory_evidence, memory_of
from gpuconsole.diagnosis.rule import (
    Case,
    Finding,
    Interval,
    Knobs,
    Rule,
    Suggestion,
    Threshold,
    percent,
    short_of,
)
from gpuconsole.model.knobs.training import GRAPH_MODES

USED = Threshold(
    "memory_used", 0.90, "ratio", "90 % of the limit (PyTorch profiler 90 %, TraceML 92 %)"
)
PART = Threshold(
    "activations", 0.50, "ratio", "half of the used memory: otherwise the states are larger"
)
CHECKPOINTED = 0.90
"""Share of the activations that checkpointing of every block frees: 91 % measured on a GPT of 6
blocks; only the inputs of blocks stay."""
SLOWER = Interval(0.75, 0.85)
"""Throughput with every block checkpointed: one more forward pass is 4/3 of the FLOPs (0.75); +24 %
time measured (0.81); Hugging Face: 20 %."""


class MemActivationCapped(Rule):
    id = "mem.activation_capped"
    title = "Activations fill the memory"
    clear_title = "Activations leave memory free"
    resource = "memory"
    thresholds = (USED, PART)
    knobs = ("attention", "gradient_checkpointing", "batch_size", "gradient_accumulation_steps")
    reads = (
        "memory.parameters_bytes", "memory.gradients_bytes", "memory.optimizer_bytes",
        "memory.activations_bytes", "memory.limit_bytes", "memory.allocated_peak_bytes",
    )  # fmt: skip
    text = """Every forward pass keeps what its backward pass needs. This part grows with batch size
times sequence length (with unfused attention with the square of the length); parameters, gradients
and optimizer state do not. Bytes are counted exactly: each storage that one forward pass saves,
once, without parameters and batch. The limit is `memory_limit_mb`, or without it the memory of the
device; on a CPU the limit is not enforced. Checkpointing trades time for memory and alone is
slower: it pays if the memory then holds a larger batch or a longer sequence. The share of this
finding is a share of memory, not of time."""

    def judge(self, case: Case) -> Finding:
        memory = memory_of(case)
        evidence = memory_evidence(case, USED)
        part = memory.activations / memory.used
        level = memory.used_ratio / USED
        if memory.used_ratio < USED or part < PART:
            return self.clear(short_of(level) if part >= PART else 0.0, evidence)
        summary = (
            f"{percent(memory.used_ratio)} of the memory is used, and activations are"
            f" {percent(part)} of it. A longer sequence or a larger batch will fail"
        )
        why = "the scores of all heads, T x T each, are no longer kept; the step becomes faster too"
        code = (
            "F.scaled_dot_product_attention(q, k, v, is_causal=True)  # is_causal only where the"
            " mask is causal: not in BERT or ViT"
        )
        fused = (
            case.suggest({"attention": "sdpa"}, None, why, code)
            if case.knobs.get("attention") == "math"
            else None
        )
        why = (
            "about 90 % less activation memory for about 25 % more time: the backward pass computes"
            " the inside of each block again"
        )
        code = "x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)"
        changes = [
            fused,
            case.suggest({"gradient_checkpointing": True}, SLOWER, why, code),
            _smaller_passes(case),
        ]
        recoverable = memory.freed_ratio(CHECKPOINTED * memory.activations)
        return self.fires(
            level,
            evidence,
            summary,
            recoverable=recoverable,
            confidence="high",
            suggestions=changes,
        )


def _smaller_passes(case: Case) -> Suggestion | None:
    """The same training in twice the passes."""
    batch, count = (
        int(case.knobs.get("batch_size", 1)),
        2 * int(case.knobs.get("gradient_accumulation_steps", 1)),
    )
    if batch < 2 or batch % 2:
        return None
    if case.knobs.get("torch_compile") in GRAPH_MODES and not passes.graphs_keep_gradients(
        case, count
    ):
        return None
    changes: Knobs = {"batch_size": batch // 2, "gradient_accumulation_steps": count}
    return case.suggest(
        changes,
        None,
        "half of the activations, with the same samples per optimizer step",
        "(loss / passes).backward()",
    )
