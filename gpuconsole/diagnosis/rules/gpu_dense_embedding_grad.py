"""gpu.dense_embedding_grad: a step reads a few rows of an embedding table, but its gradient and
update cover the whole table."""

from __future__ import annotations

from gpuconsole.diagnosis.families import passes
from gpuconsole.diagnosis.families.passes import DENSE_PASSES, TABLE, TOUCHED
from gpuconsole.diagnosis.rule import (
    Case,
    Finding,
    Rule,
    high_if,
    percent,
    short_of,
    speedup_interval,
)

MIN_TRAINED = 0.5
"""With this share of the trained parameters or more, the update of the tables counts as the whole
update."""


class GpuDenseEmbeddingGrad(Rule):
    id = "gpu.dense_embedding_grad"
    title = "The whole embedding table is updated for a few rows"
    clear_title = "Embedding updates cost no avoidable time"
    thresholds = (TOUCHED, TABLE)
    knobs = ("sparse",)
    reads = (
        "backward_ratio",
        "optimizer_ratio",
        "embedding.rows_touched_ratio",
        "embedding.table_bytes",
        "embedding.trained_ratio",
        "model.embeddings",
        "forward_ratio",
        "loss_ratio",
        "recomputed.flops_ratio",
        "is_gpu",
        "hw.memory_bytes_per_s",
        "step_s",
    )
    text = """The dense gradient of an embedding table has the size of the table and is zero except
for the rows in the batch. The backward pass writes it, and the optimizer reads it and updates the
parameters and both moments of every row: eight times the table's bytes for a few rows. With
sparse=True the gradient holds only these rows, and SparseAdam updates only these rows. Moments of
other rows do not decay, which changes Adam a little.
A larger batch spreads the same traffic over more samples, so probe P2 alone would call the batch
too small. gpu.small_batch therefore subtracts the time that this rule claims.
In a job of your own, the operators of one step show the tables and the number of indices. The rule
ignores a table that another operator reads too, such as an output layer with the same weights."""

    def judge(self, case: Case) -> Finding:
        share = case.value("backward_ratio") + case.value("optimizer_ratio")
        rest = share - 2 * (case.value("forward_ratio") + case.get("loss_ratio", 0.0))
        if rest < TABLE:  # whatever tables there are
            return self.clear(
                short_of(max(0.0, rest) / TABLE),
                case.evidence("backward_ratio", "optimizer_ratio", "forward_ratio"),
            )
        table_bytes = passes.dense_table_bytes(case)
        if not table_bytes:
            return self.clear(summary="no embedding table with dense gradients")
        touched, claim = case.value("embedding.rows_touched_ratio"), passes.embedding_claim(case)
        evidence = case.evidence(
            ("embedding.rows_touched_ratio", TOUCHED),
            "embedding.table_bytes",
            "backward_ratio",
            "optimizer_ratio",
        ) + case.if_known("embedding.trained_ratio")
        if claim < TABLE:
            return self.clear(short_of(claim / TABLE), evidence)
        most = "at most " if case.is_job else ""
        moved, gain = DENSE_PASSES * table_bytes, 1 / (1 - claim)
        summary = (
            f"a step uses {most}{percent(touched, 1)} of the rows, but backward pass and optimizer"
            f" move the whole table {DENSE_PASSES} times ({moved / 1e9:.2g} GB). They take"
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
        if case.is_job:
            code = code.replace("nn.EmbeddingBag(rows, columns, mode='sum', ", "nn.Embedding(..., ")
        change = case.advise({"sparse": True}, speedup_interval(gain, 0.4), why, code)
        return self.fires(
            claim / TABLE,
            evidence,
            summary,
            recoverable=claim,
            confidence=high_if(case.get("embedding.trained_ratio", 1.0) >= MIN_TRAINED),
            suggestions=[change],
        )
