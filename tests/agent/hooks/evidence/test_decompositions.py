"""Decompositions of matrices are seen in the graph of a loss."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gpuconsole.agent.hooks.evidence.arithmetic import nodes_of
from gpuconsole.agent.hooks.evidence.decompositions import Decompositions


def square(x: Tensor) -> Tensor:
    return x.mT @ x + torch.eye(x.shape[-1])


@pytest.mark.parametrize(
    ("loss", "flops"),
    [
        (lambda x: torch.linalg.svdvals(x).sum(), 20 * 3 * 5 * 4 * 4),
        (lambda x: torch.linalg.matrix_norm(x, "nuc").sum(), 20 * 3 * 5 * 4 * 4),
        (lambda x: torch.linalg.eigvalsh(square(x)).sum(), 9 * 3 * 4**3),
        (lambda x: torch.linalg.cholesky(square(x)).sum(), 3 * 4**3 / 3),
        (lambda x: torch.linalg.inv(square(x)).sum(), 2 * 3 * 4**3),
        (lambda x: torch.linalg.qr(x).R.sum(), 3 * 3 * 5 * 4 * 4),
        (lambda x: torch.linalg.matrix_exp(square(x)).sum(), 20 * 3 * 4**3),
        (lambda x: (x @ x.mT).sum(), 0),
    ],
)
def test_the_flops_of_the_decompositions_of_a_loss(
    loss: Callable[[Tensor], Tensor], flops: float
) -> None:
    found = Decompositions()
    found.see(nodes_of(loss(torch.randn(3, 5, 4, requires_grad=True))))
    assert found.flops == pytest.approx(flops)
    assert found.signals(1000.0)["decomposition.flops_ratio"].value == pytest.approx(flops / 1000)
