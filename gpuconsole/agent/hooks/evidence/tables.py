"""Find embedding tables with dense gradients, their sizes, and how many of their rows a step reads
at most. The source is the operators of the counted step. The code reads only sizes, no values."""

from __future__ import annotations

import sys
from typing import Any

from ..watch import watch

LOOKUPS = {"embedding": 4, "_embedding_bag": 5}
"""Operators that read rows of a table, with the place of the argument `sparse`. Their first two
arguments are the table and the indices."""
DENSE = {"embedding_dense_backward": 2, "_embedding_bag_dense_backward": 5}
"""Operators that make the dense gradient of a table, with the place of its number of rows."""


class EmbeddingTable:
    """A table whose rows operators have read. `read`: the number of indices, so at least the number
    of different rows. `dense`: an operator has made a dense gradient of the table. `shared`:
    another operator has read the table too, such as an output layer with the same weights. The
    gradient of a shared table has no empty rows."""

    def __init__(self, rows: int, columns: int, element: int) -> None:
        self.rows, self.columns, self.element = rows, columns, element
        self.read = 0
        self.dense = self.shared = False

    @property
    def elements(self) -> int:
        return self.rows * self.columns


class Tables:
    """The tables of one step, by the address of their memory."""

    def __init__(self) -> None:
        self._tables: dict[int, EmbeddingTable] = {}

    def see(self, name: str, args: Any) -> None:
        """Record an operator of torch after it has run."""
        if name in LOOKUPS:
            weight, indices, sparse = args[0], args[1], args[LOOKUPS[name] :]
            if is_trained(weight) and not (sparse and sparse[0]):
                table = self._tables.setdefault(
                    weight.data_ptr(),
                    EmbeddingTable(weight.shape[0], weight.shape[-1], weight.element_size()),
                )
                table.read += indices.numel()
        elif not self._tables:
            return
        elif name in DENSE:
            rows, columns = args[DENSE[name]], args[0].shape[-1]
            for table in self._tables.values():
                table.dense |= (table.rows, table.columns) == (rows, columns)
        else:
            self._note_reader(args)

    def _note_reader(self, args: Any) -> None:
        """Record an operator that is not a lookup, with its arguments."""
        for argument in args:
            if is_trained(argument):
                table = self._tables.get(argument.data_ptr())
                if table is not None and argument.numel() == table.elements:
                    table.shared = True

    def facts(self) -> dict[str, float]:
        """Return the bytes of the tables with dense gradients, the share of their rows that the
        step reads at most, and the tables' share of the trained parameters."""
        dense = [table for table in self._tables.values() if table.dense and not table.shared]
        elements = sum(table.elements for table in dense)
        facts = {
            "embedding.table_bytes": float(sum(table.elements * table.element for table in dense))
        }
        if not dense:
            return facts
        read = sum(min(table.rows, table.read) * table.columns for table in dense)
        trained = {
            id(parameter): parameter.numel()
            for optimizer in watch.alive(watch.optimizers)
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        ratio = min(1.0, elements / max(1, sum(trained.values())))
        return facts | {
            "embedding.rows_touched_ratio": read / elements,
            "embedding.trained_ratio": ratio if trained else 1.0,
        }


def is_plain(argument: Any) -> bool:
    """Return whether an argument of an operator is a tensor in plain memory, and not of a class of
    the program."""
    torch = sys.modules["torch"]
    is_tensor = type(argument) in (torch.Tensor, torch.nn.Parameter)
    return is_tensor and argument.layout is torch.strided


def is_trained(argument: Any) -> bool:
    """Return whether an argument of an operator is a trained parameter in plain memory."""
    return is_plain(argument) and argument.requires_grad and argument.is_leaf
