"""Attention that keeps its scores in memory is seen in one counted step, with its bytes and its
place. Without a GPU: on shapes only."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpuconsole.agent.hooks.evidence import arithmetic
from gpuconsole.agent.hooks.evidence.arithmetic import StepCount
from gpuconsole.agent.protocol import CodePlace, Signal

BATCH, HEADS, TOKENS, WIDTH = 4, 8, 1024, 64
SCORES = BATCH * HEADS * TOKENS**2
HERE = Path(__file__).name


@pytest.fixture(autouse=True)
def _nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another test of this process may have compiled a model: no step would be counted."""
    monkeypatch.setattr(arithmetic, "has_compiled", lambda: False)


def seen(
    forward: Callable[[Tensor, Tensor, Tensor], Tensor],
    tokens: int = TOKENS,
    batch: int = BATCH,
    by_torch: bool = False,
) -> Signal:
    """What a forward and a backward pass of an attention in bf16 show."""
    q, k, v = (
        torch.empty(
            batch, HEADS, tokens, WIDTH, dtype=torch.bfloat16, device="meta", requires_grad=True
        )
        for _ in range(3)
    )
    count = StepCount()
    count.enter()
    loss = forward(q, k, v).sum()
    count.leave()
    count.enter(loss)
    loss.backward()
    count.leave()
    assert count.flops
    signals = count.scores.signals()
    assert ("attention.by_torch" in signals) == by_torch
    return signals["attention.scores_bytes"]


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.transpose(-2, -1)) * 0.125
    later = torch.ones(TOKENS, TOKENS, dtype=torch.bool, device=q.device).triu(1)
    scores = scores.masked_fill(later, float("-inf"))
    return F.softmax(scores, dim=-1) @ v


LINE = by_hand.__code__.co_firstlineno + 4


def test_attention_by_hand_shows_the_bytes_of_its_scores_and_its_line() -> None:
    """Scaling, mask and softmax read and write the scores; so do their gradients, and that of
    softmax reads two matrices. The products write the scores and read their softmax, and do four
    such things in the backward pass."""
    signal = seen(by_hand)
    assert signal.value == (6 + 7 + 6) * 2 * SCORES
    assert signal.place == CodePlace(f"{HERE}:{LINE}")


def test_einsum_and_the_weights_of_multi_head_attention() -> None:
    def written(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = torch.einsum("bhqd,bhkd->bhqk", q, k).softmax(-1)
        return torch.einsum("bhqk,bhkd->bhqd", weights, v)

    assert seen(written).value >= 11 * 2 * SCORES
    module = nn.MultiheadAttention(
        HEADS * WIDTH, HEADS, batch_first=True, device="meta", dtype=torch.bfloat16
    )

    def with_weights(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        x = q.transpose(1, 2).flatten(2)
        out: Tensor = module(x, x, x)[0]
        return out

    signal = seen(with_weights)
    assert signal.value >= 11 * 2 * SCORES
    assert signal.place is not None and signal.place.line.startswith(f"{HERE}:"), (
        "the line of the program that calls the module"
    )


def test_a_fused_kernel_shows_no_scores() -> None:
    assert (
        seen(
            lambda q, k, v: torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[
                0
            ]
        ).value
        == 0
    )


def test_torchs_attention_without_a_fused_kernel_is_no_code_of_the_program() -> None:
    def of_torch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    signal = seen(of_torch, by_torch=True)
    assert signal.value >= 11 * 2 * SCORES
    assert signal.place is not None and signal.place.line.startswith(f"{HERE}:")


def test_other_softmaxes_and_small_scores_are_no_attention() -> None:
    def router(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The softmax of no product, before a product."""
        return (q @ k.transpose(-2, -1)).relu() @ F.softmax(v, dim=-2)

    def linear(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Linear attention: the softmax of queries and keys, without their product."""
        return F.softmax(q, dim=-1) @ (F.softmax(k, dim=-2).transpose(-2, -1) @ v)

    assert seen(router).value == seen(linear).value == 0
    assert (
        seen(lambda q, k, v: F.softmax(q @ k.transpose(-2, -1), dim=-1) @ v, tokens=256).value == 0
    )
    assert (
        seen(
            lambda q, k, v: F.softmax(q @ k.transpose(-2, -1), dim=-1) @ v, tokens=100, batch=300
        ).value
        == 0
    ), "windows of an image"


def test_nested_tensors_have_no_shape_and_no_scores() -> None:
    count = StepCount()
    count.enter()
    torch.nested.nested_tensor(
        [torch.zeros(2**12, 2**12, dtype=torch.bfloat16)], layout=torch.strided
    ) * 2
    count.leave()
    assert count.scores.signals()["attention.scores_bytes"].value == 0


def test_the_name_of_a_module_runs_no_code_of_the_program() -> None:
    class Own(dict[str, object]):
        def get(self, *_: object) -> object:
            raise AssertionError("the program's own get")

    class Name:
        def __str__(self) -> str:
            raise AssertionError("the program's own str")

    frames = Own(frame=sys._getframe, __name__=Name())
    exec("here = frame()", frames)
    assert arithmetic.caller(frames["here"], ("nothing",)) is frames["here"]  # type: ignore[arg-type]
