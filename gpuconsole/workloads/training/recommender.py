"""A recommender in the manner of DLRM: one large embedding table, sums of looked-up rows, and a
small MLP.

The ids are generated with a skewed popularity, as catalogues have it: only the pattern of touched
rows matters. The label follows from the ids, so there is something to learn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.workloads.device import Kind
from gpuconsole.workloads.training.parallel.plan import Parameters
from gpuconsole.workloads.training.settings import LEARNING_RATE, make_optimizer
from gpuconsole.workloads.training.task import Batch, count_training_flops

FEATURES = 26
"""Categorical features of a sample, as in the Criteo data sets."""
HIDDEN = 128
SKEW = 3
"""Ids are rows * u^SKEW, u uniform: the first 1 % of the rows receive 22 % of the look-ups."""
LABEL_HASH = 2654435761
"""Knuth's multiplicative hash: bit 16 of the product decides whether an id votes for or against."""


class Recommender(nn.Module):
    def __init__(self, rows: int, columns: int, sparse: bool) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(rows, columns, mode="sum", sparse=sparse)
        nn.init.normal_(self.table.weight, std=0.01)
        self.mlp = nn.Sequential(
            nn.Linear(columns, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, 1),
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """(batch, features) int64 to logits (batch,)."""
        return self.mlp(self.table(ids)).squeeze(-1)


class ClickStream:
    """Samples generated in the training process at almost no cost."""

    def __init__(self, rows: int, batch_size: int, seed: int) -> None:
        self._rows = rows
        self._batch_size = batch_size
        self._random = torch.Generator().manual_seed(seed)

    def next(self) -> Batch:
        draws = torch.rand(self._batch_size, FEATURES, generator=self._random, dtype=torch.float64)
        ids = (draws.pow(SKEW) * self._rows).long()
        votes = ((ids * LABEL_HASH) >> 16 & 1) * 2 - 1
        return ids, (votes.sum(1) > 0).float()

    def close(self) -> None:
        """Nothing to close."""


class DenseAndSparse(torch.optim.Optimizer):
    """One optimizer for the loop, two inside: SparseAdam for tables with sparse gradients, another
    for all other parameters.

    Parameter groups and states are those of the parts, so a schedule or a checkpoint covers all of
    them.
    """

    def __init__(self, dense: torch.optim.Optimizer, sparse: torch.optim.Optimizer) -> None:
        super().__init__([*dense.param_groups, *sparse.param_groups], {})
        self._parts = (dense, sparse)
        for part in self._parts:
            part.state = self.state

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        for part in self._parts:
            part.step()


def sparse_maker(tables: list[nn.Parameter]) -> Callable[[Parameters, str], torch.optim.Optimizer]:
    """A function that makes the optimizer `optim` for a model whose `tables` have sparse gradients;
    only SparseAdam accepts those."""
    sparse = {id(table) for table in tables}

    def make(parameters: Parameters, optim: str) -> torch.optim.Optimizer:
        dense = [parameter for parameter in parameters if id(parameter) not in sparse]
        single = torch.optim.SparseAdam(tables, lr=LEARNING_RATE)
        return DenseAndSparse(make_optimizer(dense, optim), single)  # type: ignore[arg-type]

    return make


class RecommenderTask:
    dense_kind: Kind = "matrix product"

    def __init__(self, knobs: Knobs, device: torch.device, seed: int) -> None:
        self._rows, self._columns = int(knobs["num_embeddings"]), int(knobs["embedding_dim"])
        self._seed = seed
        with device:  # creates a table of many GB directly on the device
            model = Recommender(self._rows, self._columns, bool(knobs["sparse"]))
        self.model: nn.Module = model
        self.make_optimizer = (
            sparse_maker(list(model.table.parameters())) if knobs["sparse"] else make_optimizer
        )
        with torch.device("meta"):
            self._twin = Recommender(self._rows, self._columns, sparse=False)

    def check(self, knobs: Knobs) -> None:
        """Every combination runs."""

    def open_stream(self, knobs: Knobs) -> ClickStream:
        return ClickStream(self._rows, int(knobs["batch_size"]), self._seed)

    def eval_batch(self, knobs: Knobs) -> Batch:
        return ClickStream(self._rows, int(knobs["batch_size"]), self._seed + 1).next()

    def loss(self, batch: Batch) -> torch.Tensor:
        ids, clicked = batch
        return F.binary_cross_entropy_with_logits(self.model(ids).float(), clicked)

    def sizes(self, batch: Batch) -> tuple[int, int]:
        return len(batch[0]), 0

    def flops_per_sample(self, knobs: Knobs) -> float:
        ids = torch.zeros(1, FEATURES, dtype=torch.int64, device="meta")
        return count_training_flops(self._twin, lambda twin: twin(ids).sum())

    def facts(self, knobs: Knobs) -> dict[str, float]:
        """The share of the table that an optimizer step touches, counted on generated batches of
        the same kind; and the size of the table."""
        ids, _ = ClickStream(
            self._rows,
            int(knobs["batch_size"]) * int(knobs["gradient_accumulation_steps"]),
            self._seed + 2,
        ).next()
        return {
            "embedding.rows_touched_ratio": ids.unique().numel() / self._rows,
            "embedding.table_bytes": float(self._rows * self._columns * 4),
        }


def create(knobs: Knobs, device: torch.device, seed: int) -> RecommenderTask:
    return RecommenderTask(knobs, device, seed)
