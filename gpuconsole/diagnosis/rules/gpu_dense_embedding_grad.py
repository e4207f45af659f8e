"""gpu.dense_embedding_grad: a step looks up a few rows of an embedding table, and its gradient and update are the whole table's."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case, Rule, Threshold, clear, fires, some, speedup_interval, suggest
from gpuconsole.model.finding import Finding

ID = "gpu.dense_embedding_grad"
TITLE = "The whole embedding table is updated for a few rows"
TOUCHED = Threshold(
    "rows_touched", 0.10, "ratio", "an indexed row costs about 10 rows of a dense pass (see INDEXED): above a tenth nothing is won"
)
SHARE = Threshold("backward_and_optimizer", 0.30, "ratio", "below that the table is not what the step is made of")
INDEXED = 10.0
"""Time of a row that is looked up, sorted, summed and updated by its index, over that of a row in a dense pass: 7.5 and 10.4 measured on
a CPU (tables of 51 and 128 MB, 32 columns, SparseAdam against fused AdamW)."""
DENSE_PASSES = 8
"""Gradient zeroed; gradient, parameter and two moments read; parameter and two moments written."""


def check(case: Case) -> Finding:
    share = case.value("backward_ratio") + case.value("optimizer_ratio")
    if case.knobs.get("sparse") is not False:
        return clear(ID, TITLE, 0.0, (), "no embedding table with dense gradients")
    touched = case.value("embedding.rows_touched_ratio")
    evidence = (
        case.evidence("embedding.rows_touched_ratio", TOUCHED.value),
        case.evidence("embedding.table_bytes"),
        case.evidence("backward_ratio", SHARE.value),
        case.evidence("optimizer_ratio", SHARE.value),
    )
    table = table_share(case)
    if touched > TOUCHED.value or share < SHARE.value:
        return clear(ID, TITLE, min(0.99, share / SHARE.value) if touched <= TOUCHED.value else 0.0, evidence)
    moved = DENSE_PASSES * case.value("embedding.table_bytes")
    gain = 1 / (1 - table * (1 - INDEXED * touched))
    return fires(
        ID,
        TITLE,
        f"a step touches {touched:.1%} of the rows, and its backward pass and optimizer move the whole table {DENSE_PASSES} times"
        f" ({moved / 1e9:.2g} GB): {share:.0%} of the step",
        recoverable=1 - 1 / gain,
        confidence="high",
        evidence=evidence,
        suggestions=some(
            suggest(
                case,
                {"sparse": True},
                speedup_interval(gain, 0.4),
                "only rows that were looked up get a gradient and an update; moments of the others rest, which changes Adam a little",
                "table = nn.EmbeddingBag(rows, columns, mode='sum', sparse=True)\n"
                "optimizers = [torch.optim.SparseAdam(table.parameters()), torch.optim.AdamW(the_rest)]",
            )
        ),
        level=share / SHARE.value,
    )


def claimed(case: Case) -> float:
    """Share of the step that this rule has a name for, so that no other counts it again; 0 where it does not fire."""
    return check(case).recoverable_ratio


def table_share(case: Case) -> float:
    """Share of the step that the table's gradient and update take: backward and optimizer, less twice the forward pass for the rest."""
    return max(0.0, case.value("backward_ratio") + case.value("optimizer_ratio") - 2 * case.value("forward_ratio"))


RULE = Rule(
    id=ID,
    title=TITLE,
    signals=("backward_ratio", "optimizer_ratio", "forward_ratio", "embedding.rows_touched_ratio", "embedding.table_bytes"),
    thresholds=(TOUCHED, SHARE),
    knobs=("sparse",),
    text="""A dense gradient of an embedding table is a table of the same size, zero but for the rows that the batch looked up; it is written,
and the optimizer reads it and passes over parameters and both moments of every row: eight tables of traffic for a few rows. With
sparse=True the gradient holds those rows only, and SparseAdam updates them alone. Its moments of a row that is not looked up
do not decay meanwhile. A larger batch spreads the same traffic over more samples, which is why probe P2 alone would call it
too small: what this rule claims is taken off there.""",
    check=check,
)
