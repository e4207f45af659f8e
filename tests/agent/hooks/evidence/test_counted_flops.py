"""What one counted step says beside its FLOPs: the share of convolutions, and what a causal mask
leaves out. Without a GPU: on shapes only."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from gpuconsole.agent.hooks.evidence import arithmetic as module
from gpuconsole.agent.hooks.evidence.arithmetic import Arithmetic, StepCount, number_type
from gpuconsole.agent.hooks.passes import state

FLASH = torch.ops.aten._scaled_dot_product_flash_attention  # as torch calls it on a GPU


@pytest.fixture(autouse=True)
def _nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another test of this process may have compiled a model: no step would be counted."""
    monkeypatch.setattr(module, "has_compiled", lambda: False)


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
def test_causal_attention_leaves_out_half_and_counts_all_scores(
    causal: bool | None, seen: bool
) -> None:
    count = counted(attention(causal))
    assert count.flops == 2 * 4 * 2 * 16 * 16 * 64 * 2
    assert count.masked == count.flops / 2 * seen


def test_the_share_of_convolutions() -> None:
    x = torch.empty(2, 3, 8, 8, device="meta", requires_grad=True)
    convolution, linear = (
        torch.nn.Conv2d(3, 4, 3, device="meta"),
        torch.nn.Linear(4 * 36, 10, device="meta"),
    )
    count = counted(lambda: linear(convolution(x).flatten(1)).sum().backward())
    products = 3 * 2 * 2 * 144 * 10
    assert count.masked == 0 and count.flops is not None
    assert count.flops - count.convolved == products
    assert count.convolved == 3 * 2 * 2 * 36 * 4 * 27


def test_the_facts_of_a_counted_step(monkeypatch: pytest.MonkeyPatch) -> None:
    # another test of this process may have compiled a model
    monkeypatch.setattr(module, "is_compiled", lambda: False)
    arithmetic = Arithmetic()
    assert arithmetic.step_ended(2) and arithmetic.facts == {}
    assert state.counting is not None
    state.counting.enter()
    attention(True)()
    state.counting.leave()
    assert not arithmetic.step_ended(2)
    each = 2 * 4 * 2 * 16 * 16 * 64
    assert arithmetic.facts == {
        "flops_per_sample": each,
        "convolution_flops_ratio": 0.0,
        "causal_flops_per_sample": each / 2,
        "flops_bf16_ratio": 1.0,
        "operators_per_step": 2.0,
        "embedding.table_bytes": 0.0,
    }


def gradients(
    work: Callable[[], torch.Tensor], weights: torch.Tensor, count: StepCount | None
) -> torch.Tensor:
    """Of a forward pass and a backward pass, each of which `count` counts, and of a loss that is
    made between the passes."""
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
    """torch takes another way through the backward pass of torch.prod where any dispatch mode is
    on."""
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


@pytest.mark.parametrize("place", ["in the pass", "in a checkpoint"])
def test_gradients_of_a_learned_fill_are_the_same_bits_in_the_step_that_is_counted(
    place: str,
) -> None:
    torch.manual_seed(0)
    fill, x = torch.tensor(0.3, requires_grad=True), torch.randn(64, 512)

    def filled() -> torch.Tensor:
        return (x.masked_fill(x > 0, fill) * x).sigmoid().sum()

    def work() -> torch.Tensor:
        return filled() if place == "in the pass" else checkpoint(filled, use_reentrant=False)

    count = StepCount()
    assert torch.equal(gradients(work, fill, None), gradients(work, fill, count))
    assert count.flops is None and "masked_fill" in count.reason


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


# --- number types ---------------------------------------------------------------------------------


def test_flops_are_counted_by_the_number_type_of_the_operands() -> None:
    """Autocast inside of the model, as accelerate puts it around `forward`: the weights say fp32,
    the products are in bf16."""
    x, weights = torch.randn(8, 16), torch.randn(16, 32, requires_grad=True)

    def work() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            hidden = x @ weights
        (hidden.float() @ torch.ones(32, 4)).sum()

    count = counted(work)
    assert count.by_type == {"bf16": 2 * 8 * 16 * 32, "fp32": 2 * 8 * 32 * 4}


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (torch.float32, "fp32"),
        (torch.bfloat16, "bf16"),
        (torch.float8_e4m3fn, "fp8"),
        (torch.float4_e2m1fn_x2, "fp4"),
        (torch.int8, "int8"),
    ],
)
def test_the_names_of_number_types(dtype: torch.dtype, name: str) -> None:
    assert number_type((torch.empty(2, device="meta", dtype=dtype), 1.0)) == name


# --- work done twice ------------------------------------------------------------------------------

LINEAR_FLOPS = 2 * 8 * 16 * 16


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_a_checkpoint_repeats_is_no_work_of_the_model(reentrant: bool) -> None:
    linear, x = torch.nn.Linear(16, 16), torch.randn(8, 16, requires_grad=True)
    count = StepCount()
    count.enter()
    loss = checkpoint(
        torch.nn.Sequential(linear, torch.nn.ReLU()), x, use_reentrant=reentrant
    ).sum()
    count.leave()
    count.enter(loss)
    loss.backward()
    count.leave()
    assert (count.flops, count.recomputed) == (4 * LINEAR_FLOPS, LINEAR_FLOPS)


def test_a_backward_pass_that_is_differentiated_again_repeats_nothing() -> None:
    linear, x = torch.nn.Linear(16, 16), torch.randn(8, 16, requires_grad=True)
    count = StepCount()
    count.enter()
    loss = linear(x).square().sum()
    count.leave()
    count.enter(loss)
    loss.backward(create_graph=True)
    count.leave()
    assert (count.flops, count.recomputed) == (3 * LINEAR_FLOPS, 0)


def test_fused_attention_makes_its_scores_again() -> None:
    q = torch.randn(1, 2, 16, 8, requires_grad=True)
    count = StepCount()
    count.enter()
    loss = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum()
    count.leave()
    count.enter(loss)
    loss.backward()
    count.leave()
    product = 2 * 2 * 16 * 16 * 8
    assert count.flops == pytest.approx((2 + 5) * product) and count.recomputed == pytest.approx(
        product
    )
    assert count.masked == pytest.approx((2 + 4) * product / 2)


# --- operators without a formula of torch's -------------------------------------------------------


def test_an_operator_of_another_library_makes_the_count_a_lower_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = torch.library.Library("gpuconsole_test", "FRAGMENT")
    library.define("product(Tensor a, Tensor b) -> Tensor")
    library.impl("product", torch.mm, "CPU")
    x = torch.randn(8, 16)
    count = counted(lambda: torch.ops.gpuconsole_test.product(x, x.T) @ x)
    assert count.unknown == {"gpuconsole_test::product"}
    monkeypatch.setattr(module, "is_compiled", lambda: False)
    arithmetic = Arithmetic()
    arithmetic.step_ended(8)
    assert state.counting is not None
    state.counting.enter()
    torch.ops.gpuconsole_test.product(x, x.T) @ x
    state.counting.leave()
    arithmetic.step_ended(8)
    assert arithmetic.facts["operators_without_formula"] == 1
    library._destroy()


def test_products_of_experts_have_no_formula() -> None:
    tokens, experts = (
        torch.empty(64, 32, device="meta", dtype=torch.bfloat16),
        torch.empty(4, 32, 48, device="meta", dtype=torch.bfloat16),
    )
    ends = torch.empty(4, device="meta", dtype=torch.int32)
    count = counted(lambda: torch._grouped_mm(tokens, experts, offs=ends))
    assert not count.flops and count.unknown == {"aten::_grouped_mm"}


# --- classes of tensors ---------------------------------------------------------------------------


def test_a_class_of_tensors_runs_as_ever_and_its_inner_products_count() -> None:
    """DTensor is such a class: its shapes are those of all ranks, and the operators within it are
    those of this rank."""
    from torch.testing._internal.two_tensor import TwoTensor

    def work() -> torch.Tensor:
        torch.manual_seed(0)
        pair = TwoTensor(torch.randn(8, 16), torch.randn(8, 16))
        return pair @ torch.ones(16, 4)

    plain = work()
    results = list[torch.Tensor]()
    count = counted(lambda: results.append(work()))
    assert count.flops == 2 * (2 * 8 * 16 * 4)
    assert torch.equal(results[0].a, plain.a) and torch.equal(results[0].b, plain.b)
