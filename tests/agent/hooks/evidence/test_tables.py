"""Embedding tables with dense gradients are seen in one counted step by the sizes of its
operators."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpuconsole.agent.hooks.evidence import arithmetic, tables
from gpuconsole.agent.hooks.evidence.arithmetic import StepCount
from gpuconsole.agent.hooks.watch import Watch

ROWS, COLUMNS = 1000, 8
INDICES = torch.arange(20).view(4, 5)


def facts_of(
    module: nn.Module, loss: Callable[[], Tensor], monkeypatch: pytest.MonkeyPatch
) -> dict[str, float]:
    """The facts of a step of `module` with an optimizer for all of its parameters."""
    watch = Watch()
    optimizer = torch.optim.Adam(module.parameters())
    watch.add(watch.optimizers, optimizer)
    monkeypatch.setattr(tables, "watch", watch)
    # another test of this process may have compiled a model: no step would be counted
    monkeypatch.setattr(arithmetic, "has_compiled", lambda: False)
    count = StepCount()
    count.enter()
    value = loss()
    count.leave()
    count.enter(value)
    value.backward()
    count.leave()
    return count.tables.facts()


def test_a_table_of_which_a_step_reads_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    table, rest = nn.Embedding(ROWS, COLUMNS), nn.Linear(COLUMNS, 25)
    both = nn.ModuleList([table, rest])
    facts = facts_of(both, lambda: rest(table(INDICES)).sum(), monkeypatch)
    assert facts == {
        "embedding.table_bytes": 4.0 * ROWS * COLUMNS,
        "embedding.rows_touched_ratio": 20 / ROWS,
        "embedding.trained_ratio": ROWS * COLUMNS / (ROWS * COLUMNS + 25 * (COLUMNS + 1)),
    }


def test_each_lookup_of_a_step_counts_and_bags_too(monkeypatch: pytest.MonkeyPatch) -> None:
    table, bag = nn.Embedding(ROWS, COLUMNS), nn.EmbeddingBag(ROWS, COLUMNS, mode="sum")
    both = nn.ModuleList([table, bag])
    facts = facts_of(
        both, lambda: table(INDICES).sum() + table(INDICES).sum() + bag(INDICES).sum(), monkeypatch
    )
    assert facts["embedding.rows_touched_ratio"] == (40 + 20) / (2 * ROWS)
    assert facts["embedding.table_bytes"] == 2 * 4.0 * ROWS * COLUMNS


@pytest.mark.parametrize("kind", ["sparse", "tied", "frozen"])
def test_tables_without_avoidable_rows_are_left_alone(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = nn.Embedding(ROWS, COLUMNS, sparse=kind == "sparse")
    rest = nn.Linear(COLUMNS, COLUMNS)
    table.weight.requires_grad_(kind != "frozen")

    def loss() -> Tensor:
        hidden = rest(table(INDICES))
        return (F.linear(hidden, table.weight) if kind == "tied" else hidden).sum()

    facts = facts_of(nn.ModuleList([table, rest]), loss, monkeypatch)
    assert facts == {"embedding.table_bytes": 0.0}
