"""Step time that belongs to one rule and that other rules therefore subtract: no two findings claim the same milliseconds."""

from __future__ import annotations

from gpuconsole.diagnosis.rule import Case, Threshold

UNFUSED = ("adamw", "adamw_foreach")
"""Values of `optim` that a fused optimizer would replace."""
TOUCHED = Threshold("rows_touched", 0.10, "ratio", "an indexed row costs as much as about 10 rows of a dense pass (measured: 7.5 and 10.4)")
SHARE = Threshold("backward_and_optimizer", 0.30, "ratio", "below 30 % of the step the table is not the main cost of the step")
INDEXED = 10.0
"""Time of an indexed row (lookup, sort, sum and update) over the time of a row in a dense pass. Measured on a CPU: 7.5
and 10.4 (tables of 51 and 128 MB, 32 columns, SparseAdam against fused AdamW)."""


def optimizer_claim(case: Case) -> float:
    """Share of the step that a fused optimizer would save (gpu.optimizer_unfused); 0 if it is fused or was not measured."""
    present = case.get("probe.optim_present_step_s", 0.0)
    if case.knobs.get("optim") not in UNFUSED or present <= 0:
        return 0.0
    return max(0.0, case.value("optimizer_ratio") * (1 - case.value("probe.optim_fused_step_s") / present))


def embedding_claim(case: Case) -> float:
    """Share of the step that sparse embedding gradients would save; 0 where gpu.dense_embedding_grad does not apply. Raises Missing.

    The gradient and update of the table take the time of backward pass and optimizer minus twice the forward pass.
    """
    share = case.value("backward_ratio") + case.value("optimizer_ratio")
    if case.knobs.get("sparse") is not False:
        return 0.0
    touched = case.value("embedding.rows_touched_ratio")
    if touched > TOUCHED or share < SHARE:
        return 0.0
    table = max(0.0, share - 2 * case.value("forward_ratio"))
    return table * (1 - INDEXED * touched)
