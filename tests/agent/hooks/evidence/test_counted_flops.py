"""What one counted step says beside its FLOPs: the share of convolutions, and what a causal mask leaves out. Without a GPU: on shapes only."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from gpuconsole.agent.hooks.evidence import observed
from gpuconsole.agent.hooks.evidence.observed import Arithmetic, StepCount
from gpuconsole.agent.hooks.passes import state

FLASH = torch.ops.aten._scaled_dot_product_flash_attention  # as torch calls it on a GPU


@pytest.fixture(autouse=True)
def _nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another test of this process may have compiled a model: no step would be counted."""
    monkeypatch.setattr(observed, "has_compiled", lambda: False)


def counted(work: Callable[[], object]) -> StepCount:
    count = StepCount()
    count.enter()
    try:
        work()
    finally:
        count.leave()
    return count


def attention(causal: bool | None) -> Callable[[], object]:
    q = torch.empty(2, 4, 16, 64, device="meta", dtype=torch.bfloat16)
    return lambda: FLASH(q, q, q, 0.0, causal) if causal is not None else FLASH(q, q, q)


@pytest.mark.parametrize(("causal", "seen"), [(True, True), (False, False), (None, False)])
def test_causal_attention_leaves_out_half_and_counts_all_scores(causal: bool | None, seen: bool) -> None:
    count = counted(attention(causal))
    assert count.flops == 2 * 4 * 2 * 16 * 16 * 64 * 2
    assert count.masked == count.flops / 2 * seen


def test_the_share_of_convolutions() -> None:
    x = torch.empty(2, 3, 8, 8, device="meta", requires_grad=True)
    convolution, linear = torch.nn.Conv2d(3, 4, 3, device="meta"), torch.nn.Linear(4 * 36, 10, device="meta")
    count = counted(lambda: linear(convolution(x).flatten(1)).sum().backward())
    products = 3 * 2 * 2 * 144 * 10
    assert count.masked == 0 and count.flops is not None
    assert count.flops - count.convolved == products
    assert count.convolved == 3 * 2 * 2 * 36 * 4 * 27


def test_the_facts_of_a_counted_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observed, "is_compiled", lambda: False)  # another test of this process may have compiled a model
    arithmetic = Arithmetic()
    assert arithmetic.step_ended(2) and arithmetic.facts == {}
    assert state.counting is not None
    state.counting.enter()
    attention(True)()
    state.counting.leave()
    assert not arithmetic.step_ended(2)
    each = 2 * 4 * 2 * 16 * 16 * 64
    assert arithmetic.facts == {"flops_per_sample": each, "convolution_flops_ratio": 0.0, "causal_flops_per_sample": each / 2}


def gradients(work: Callable[[], torch.Tensor], weights: torch.Tensor, count: StepCount | None) -> torch.Tensor:
    """Of a forward pass and a backward pass, each of which `count` counts, and of a loss that is made between the passes."""
    weights.grad = None
    if count is not None:
        count.enter()
    out = work()
    if count is not None:
        count.leave()
    loss = out.prod(dim=-1).sum() if out.ndim else out
    if count is not None:
        count.enter(loss)
    loss.backward()
    if count is not None:
        count.leave()
    assert weights.grad is not None
    return weights.grad


@pytest.mark.parametrize("place", ["in the pass", "in the loss", "in a checkpoint"])
def test_gradients_of_products_are_the_same_bits_in_the_step_that_is_counted(place: str) -> None:
    """torch takes another way through the backward pass of torch.prod where any dispatch mode is on."""
    torch.manual_seed(0)
    weights, x = torch.randn(64, 32, requires_grad=True), torch.randn(16, 64)

    def product() -> torch.Tensor:
        return (x @ weights).sigmoid().prod(dim=1).sum()

    def work() -> torch.Tensor:
        if place == "in the loss":
            return (x @ weights).sigmoid()
        return product() if place == "in the pass" else checkpoint(product, use_reentrant=False)

    count = StepCount()
    assert torch.equal(gradients(work, weights, None), gradients(work, weights, count))
    assert count.flops is None and "torch.prod" in count.reason


def test_a_pass_without_products_is_counted_whole() -> None:
    weights, x = torch.randn(64, 32, requires_grad=True), torch.randn(16, 64)
    count = StepCount()
    gradients(lambda: (x @ weights).square().sum(), weights, count)
    assert count.flops == 2 * 2 * 16 * 64 * 32


def test_a_higher_order_operator_runs_and_its_step_has_no_figure() -> None:
    x = torch.randn(4)
    count = StepCount()
    count.enter()
    torch.ops.higher_order.cond(torch.tensor(True), lambda v: v.sin(), lambda v: v.cos(), (x,))
    count.leave()
    assert count.flops is None
