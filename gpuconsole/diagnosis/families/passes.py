"""Shared by rules about the passes and the optimizer: what another way to compute them would save,
and who claims which part of a step."""

from __future__ import annotations

from dataclasses import dataclass

from gpuconsole.diagnosis.families import device, host, loader
from gpuconsole.diagnosis.rule import (
    Case,
    Confidence,
    Evidence,
    Interval,
    Threshold,
    percent,
    speedup_interval,
)


def compute_ratio(case: Case) -> float:
    """Return the share of a step in forward and backward passes, with the loss between them. Raise
    Missing if it was not measured."""
    return case.value("forward_ratio") + case.get("loss_ratio", 0.0) + case.value("backward_ratio")


def graphs_keep_gradients(case: Case, passes: int | None = None) -> bool:
    """Return whether CUDA graphs keep accumulated gradients. A replayed graph overwrites the
    gradients of the previous pass, unless these gradients are in DDP buckets."""
    passes_per_step = (
        int(case.knobs.get("gradient_accumulation_steps", 1)) if passes is None else passes
    )
    return passes_per_step == 1 or case.knobs.get("sharding", "none") != "none"


# --- probe P5 runs a pass in another way ----------------------------------------------------------

GAIN = Threshold("recoverable", 0.05, "ratio", "a gain below 5 % of the step counts as none")
MIN_ERROR = 0.15
"""Least relative error of a predicted gain: a timed pass is not exactly a step."""
UNKNOWN_SPREAD = 0.1


@dataclass(frozen=True)
class Swap:
    """What a step gains if its passes run in another way, as probe P5 measured it. `name` stands
    for that way in the signals `probe.{name}_speedup` and `probe.{name}_spread`. A property raises
    Missing where a signal that it needs was not measured."""

    case: Case
    name: str

    @property
    def speedup(self) -> float:
        """The time of a pass now over its time in the other way."""
        return self.case.value(f"probe.{self.name}_speedup")

    @property
    def saves(self) -> float:
        """Share of a step that the other way saves; below 0 where it is slower."""
        return compute_ratio(self.case) * (1 - 1 / self.speedup)

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """The figures of the probe, and the shares of the step that they apply to."""
        min_speedup = 1 / (1 - min(0.9, GAIN / max(compute_ratio(self.case), 0.1)))
        measured = self.case.evidence((f"probe.{self.name}_speedup", min_speedup))
        measured += self.case.if_known(f"probe.{self.name}_spread")
        shares = self.case.evidence("forward_ratio", "backward_ratio")
        return measured + shares + self.case.if_known("loss_ratio")

    @property
    def confidence(self) -> Confidence:
        """High if the lower end of the measured interval is also enough."""
        at_least = max(1.0, self.speedup - self._spread)
        return "high" if compute_ratio(self.case) * (1 - 1 / at_least) >= GAIN else "medium"

    @property
    def error(self) -> float:
        """Relative error of the gain that the probe measured."""
        return min(1.0, self._spread / (self.speedup - 1)) if self.speedup > 1 else 1.0

    @property
    def predicted(self) -> Interval:
        """The speed-up of a step, with the probe's error or MIN_ERROR."""
        return speedup_interval(1 / (1 - self.saves), max(MIN_ERROR, self.error))

    @property
    def _spread(self) -> float:
        return self.case.get(f"probe.{self.name}_spread", UNKNOWN_SPREAD)


# --- step time that belongs to one rule -----------------------------------------------------------
# Other rules subtract this time, so that no two findings claim the same milliseconds.

UNFUSED = ("adamw", "adamw_foreach")
"""Values of `optim` that a fused optimizer would replace."""
TOUCHED = Threshold(
    "rows_touched",
    0.10,
    "ratio",
    "an indexed row costs as much as about 10 rows of a dense pass (measured: 7.5 and 10.4)",
)
TABLE = Threshold(
    "recoverable",
    0.10,
    "ratio",
    "below 10 % of the step, a second optimizer for the table gains too little",
)
DENSE_PASSES = 8
"""The gradient is zeroed; gradient, parameter and two moments are read; parameter and two moments
are written."""
INDEXED = 10.0
"""Time of an indexed row (lookup, sort, sum and update) over the time of a row in a dense pass.
Measured on a CPU: 7.5 and 10.4 (tables of 51 and 128 MB, 32 columns, SparseAdam against fused
AdamW)."""


def optimizer_claim(case: Case) -> float:
    """Return the share of the step that a fused optimizer would save (gpu.optimizer_unfused); 0 if
    the optimizer is fused, or was not measured."""
    present = case.get("probe.optim_present_step_s", 0.0)
    if case.knobs.get("optim") not in UNFUSED or present <= 0:
        return 0.0
    return max(
        0.0, case.value("optimizer_ratio") * (1 - case.value("probe.optim_fused_step_s") / present)
    )


def embedding_claim(case: Case) -> float:
    """Return the share of the step that sparse embedding gradients would save; 0 where no table has
    a dense gradient, or a step reads too many of its rows. Raise Missing where a signal was not
    measured.

    The table takes its part of the optimizer's time. The gradient of the table takes the time of
    the backward pass beyond twice the time of the forward pass and the loss. A GPU needs no more
    than twice the time in which its memory moves the table DENSE_PASSES times.
    """
    if (case.is_job and not case.has("embedding.table_bytes")) or not dense_table_bytes(case):
        return 0.0
    touched = case.value("embedding.rows_touched_ratio")
    passes = 2 * (case.value("forward_ratio") + case.get("loss_ratio", 0.0))
    table = (
        case.value("optimizer_ratio") * case.get("embedding.trained_ratio", 1.0)
        + case.value("backward_ratio")
        - passes
    )
    if again := case.get("recomputed.flops_ratio", 0.0):
        table -= again * compute_ratio(case)
    if case.get("is_gpu", 0.0) and case.has("hw.memory_bytes_per_s", "embedding.table_bytes"):
        moved = DENSE_PASSES * case.value("embedding.table_bytes")
        table = min(table, 2 * moved / case.value("hw.memory_bytes_per_s") / case.value("step_s"))
    return max(0.0, table) * (1 - INDEXED * touched) if touched <= TOUCHED else 0.0


def dense_table_bytes(case: Case) -> float:
    """Return the bytes of the embedding tables with dense gradients that could be sparse: none
    where FSDP shards them, which takes no sparse gradients. Raise Missing if the model has modules
    with tables, and the job's operators were not counted."""
    sparse = case.knobs.get("sparse")
    if sparse or case.knobs.get("sharding") in ("zero2", "zero3"):
        return 0.0
    if sparse is None and not case.get("model.embeddings", 0.0):
        return case.get("embedding.table_bytes", 0.0) if case.is_job else 0.0
    return case.value("embedding.table_bytes")


def attention_claim(case: Case) -> float:
    """Return the smallest share of the step in which the operators on attention scores can move the
    scores through the memory of the GPU: their bytes at the full bandwidth. The share is 0 where
    the agent has seen no such operators, or on a CPU, whose caches may hold the scores. Raise
    Missing where a signal was not measured."""
    moved = case.get("attention.scores_bytes", 0.0)
    if not moved or not case.get("is_gpu", 0.0):
        return 0.0
    return min(
        compute_ratio(case), moved / case.value("hw.memory_bytes_per_s") / case.value("step_s")
    )


# --- a healthy run: no phase except the passes takes too much time --------------------------------

LIMITS = {
    "data_wait_ratio": loader.WAIT,
    "h2d_ratio": device.COPIES,
    "logging_ratio": host.SIDE_WORK,
    "checkpoint_ratio": host.SIDE_WORK,
    "eval_ratio": host.EVALUATION,
    "other_ratio": host.SCRIPT,
}
"""The limit of each phase other than the passes, the optimizer and `comm`: the threshold of the
rule about that phase."""


def lost_beside_passes(case: Case) -> tuple[tuple[Evidence, ...], str]:
    """Return the evidence of the phases within their limits, and a text about the first phase
    beyond its limit. The text is empty if no phase is beyond its limit. Raise Missing where a phase
    was not measured."""
    evidence: tuple[Evidence, ...] = ()
    for signal, limit in LIMITS.items():
        if case.value(signal) >= limit:
            return evidence, f"{signal} is {percent(case.value(signal))}"
        evidence += case.evidence((signal, limit))
    return evidence, ""
