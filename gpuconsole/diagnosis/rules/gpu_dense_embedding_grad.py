"""gpu.dense_embedding_grad: a step reads a few rows of an embedding table, but its gradient and
update cover the whole table."""

from __future__ import annotations

from gpuconsole.diagnosis.families import passes
from gpuconsole.diagnosis.families.passes import SHARE, TOUCHED
from gpuconsole.diagnosis.rule import Case, Finding, Rule, percent, short_of, speedup_interval

DENSE_PASSES = 8
"""The gradient is zeroed; gradient, parameter and two moments are read; parameter and two moments
are written."""


class GpuDenseEmbeddingGrad(Rule):
    id = "gpu.dense_embedding_grad"
    title = "The whole embedding table is updated for a few rows"
    clear_title = "Embedding updates cost no avoidable time"
    thresholds = (TOUCHED, SHARE)
    knobs = ("sparse",)
    reads = (
        "backward_ratio",
        "optimizer_ratio",
        "embedding.rows_touched_ratio",
        "embedding.table_bytes",
        "forward_ratio",
        "loss_ratio",
    )
    text = """The dense gradient of an embedding table has the size of the table and is zero except
for the rows in the batch. The backward pass writes it, and the optimizer reads it and updates the
parameters and both moments of every row: eight times the table's bytes for a few rows. With
sparse=True the gradient holds only these rows, and SparseAdam updates only these rows. Moments of
other rows do not decay, which changes Adam a little.
A larger batch spreads the same traffic over more samples, so probe P2 alone would call the batch
too small. gpu.small_batch therefore subtracts the time that this rule claims."""

    def judge(self, case: Case) -> Finding:
        share = case.value("backward_ratio") + case.value("optimizer_ratio")
        if case.knobs.get("sparse") is not False:
            return self.clear(summary="no embedding table with dense gradients")
        touched = case.value("embedding.rows_touched_ratio")
        evidence = case.evidence(
            ("embedding.rows_touched_ratio", TOUCHED),
            "embedding.table_bytes",
            ("backward_ratio", SHARE),
            ("optimizer_ratio", SHARE),
        )
        if touched > TOUCHED or share < SHARE:
            return self.clear(short_of(share / SHARE) if touched <= TOUCHED else 0.0, evidence)
        moved = DENSE_PASSES * case.value("embedding.table_bytes")
        gain = 1 / (1 - passes.embedding_claim(case))
        summary = (
            f"a step uses {percent(touched, 1)} of the rows, but backward pass and optimizer move"
            f" the whole table {DENSE_PASSES} times ({moved / 1e9:.2g} GB). They take"
            f" {percent(share)} of the step"
        )
        why = (
            "only rows in the batch get a gradient and an update; moments of other rows do not"
            " decay, which changes Adam a little"
        )
        code = (
            "table = nn.EmbeddingBag(rows, columns, mode='sum', sparse=True)\n"
            "optimizers = [torch.optim.SparseAdam(table.parameters()), torch.optim.AdamW(the_rest)]"
        )
        change = case.suggest({"sparse": True}, speedup_interval(gain, 0.4), why, code)
        return self.fires(
            share / SHARE,
            evidence,
            summary,
            recoverable=1 - 1 / gain,
            confidence="high",
            suggestions=[change],
        )
