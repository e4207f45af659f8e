"""The closed formulas against torch's own count on the meta device, and against published
figures."""

from __future__ import annotations

import pytest
import torch

from gpuconsole.diagnosis.models import flops
from gpuconsole.diagnosis.models.inputs import transformer_linear
from gpuconsole.session.figures.flops import flops_of_sample
from gpuconsole.workloads.training.gpt import GPT, add_lora, next_token_loss
from gpuconsole.workloads.training.task import count_training_flops

VOCABULARY = 256
SIZES = [(192, 4, 128), (128, 2, 64), (256, 6, 256)]
"""d_model, n_layer, tokens; the first is train-gpt at CPU scale."""


def counted(
    d_model: int,
    n_layer: int,
    tokens: int,
    rank: int = 0,
    checkpointing: bool = False,
    attention: str = "sdpa",
) -> float:
    """FLOPs per token of the real model."""
    model = GPT(d_model, n_layer, 1024)
    if rank:
        add_lora(model, rank)
    model.gradient_checkpointing, model.attention = checkpointing, attention
    batch = torch.zeros(1, tokens, dtype=torch.int64, device="meta")
    return count_training_flops(model, lambda twin: next_token_loss(twin, batch, batch)) / tokens


@pytest.mark.parametrize(("d_model", "n_layer", "tokens"), SIZES)
@pytest.mark.parametrize("attention", ["sdpa", "math"])
def test_training_formula_is_torchs_count(
    d_model: int, n_layer: int, tokens: int, attention: str
) -> None:
    linear = transformer_linear(d_model, n_layer, VOCABULARY)
    formula = flops.training_per_token(linear, n_layer, d_model, tokens)
    assert formula == pytest.approx(
        counted(d_model, n_layer, tokens, attention=attention), rel=1e-9
    )


@pytest.mark.parametrize("rank", [0, 8])
def test_recomputation_is_what_torch_computes_again(rank: int) -> None:
    plain, again = (counted(192, 3, 64, rank, checkpointing) for checkpointing in (False, True))
    assert flops.recomputed_per_token(192, 3, 64, rank) == pytest.approx(again - plain, rel=1e-9)
    assert flops.lora_per_token(192, 3, VOCABULARY, 8, 64) == pytest.approx(
        counted(192, 3, 64, 8), rel=1e-9
    )


def test_causal_counts_half_of_attention() -> None:
    """At 8B and 8K it is 57.9 against 51.5 GFLOP a token (torchtitan, ml-engineering)."""
    linear, attention = 7.50e9, 12 * 32 * 4096 * 8192
    assert flops.training_per_token(linear, 32, 4096, 8192) == pytest.approx(57.9e9, rel=0.002)
    assert flops.training_per_token_causal(linear, 32, 4096, 8192) == pytest.approx(
        51.5e9, rel=0.002
    )
    assert flops.training_per_token(linear, 32, 4096, 8192) - attention == 6 * linear


def megatron_per_step(
    batch: float, tokens: float, n_layer: int, d_model: int, vocabulary: int
) -> float:
    """72 B s l h^2 (1 + s/(6h) + V/(12 l h)), not causal (Narayanan et al. 2021)."""
    return (
        72
        * batch
        * tokens
        * n_layer
        * d_model**2
        * (1 + tokens / (6 * d_model) + vocabulary / (12 * n_layer * d_model))
    )


def test_megatrons_formula_gives_the_same_flops_per_step() -> None:
    batch, tokens, layers, width, vocabulary = 4, 2048, 24, 2048, 50304
    linear = transformer_linear(width, layers, vocabulary)
    ours = batch * tokens * flops.training_per_token(linear, layers, width, tokens)
    assert ours == pytest.approx(megatron_per_step(batch, tokens, layers, width, vocabulary))


@pytest.mark.parametrize("shape", [{}, {"layers": 12.0, "width": 1024.0}])
def test_an_estimate_says_whether_attention_is_in_it(shape: dict[str, float]) -> None:
    """A model of one's own that torch.compile has compiled: nothing is counted."""
    facts = {"parameters": 2e8, "linear_parameters": 1.8e8, "trainable_parameters": 2e8, **shape}
    work = flops_of_sample(facts, {}, 8192.0)
    assert work is not None
    attention = 12 * 12 * 1024 * 8192.0 if shape else 0.0
    assert work.full == pytest.approx((6 * 1.8e8 + attention) * 8192)
    assert work.at_least == (not shape) and ("12 L d T" in work.source) == bool(shape)
