"""What the modules of a model say about the FLOPs of a token: experts of which a token goes through
a few, and weights of 4 bits."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from gpuconsole.agent.hooks.structure import Structure
from gpuconsole.session.figures.flops import flops_of_sample

WIDTH, INNER, EXPERTS, LAYERS = 64, 128, 8, 2
ATTENTION, ROUTER, EXPERT = 4 * WIDTH * WIDTH, WIDTH * EXPERTS, 3 * WIDTH * INNER


class Block(nn.Module):
    def __init__(self, stacked: bool, name: str) -> None:
        super().__init__()
        self.attention = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        if stacked:  # transformers 5
            experts = nn.Module()
            experts.gate_up_proj = nn.Parameter(torch.empty(EXPERTS, 2 * INNER, WIDTH))
            experts.down_proj = nn.Parameter(torch.empty(EXPERTS, WIDTH, INNER))
        else:  # Mixtral as published, and scripts
            experts = nn.ModuleList(
                nn.ModuleList(
                    (nn.Linear(WIDTH, 2 * INNER, bias=False), nn.Linear(INNER, WIDTH, bias=False))
                )
                for _ in range(EXPERTS)
            )
        setattr(self, name, experts)


def facts_of(
    stacked: bool, config: SimpleNamespace | None, name: str = "experts"
) -> dict[str, float]:
    model = nn.Module()
    model.layers = nn.ModuleList(Block(stacked, name) for _ in range(LAYERS))
    if config is not None:
        model.config = config
    found = Structure(list(model.modules()))
    parameters = sum(weight.numel() for weight in model.parameters())
    sizes = {
        "parameters": parameters,
        "trainable_parameters": parameters,
        "linear_parameters": found.linear_parameters,
        "tokens_per_sample": 16,
    }
    return {**sizes, **found.transformer, **found.experts}


def config_of(**experts: int) -> SimpleNamespace:
    return SimpleNamespace(num_hidden_layers=LAYERS, hidden_size=WIDTH, **experts)


@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize(
    "experts",
    [
        {"num_local_experts": EXPERTS, "num_experts_per_tok": 2},
        {"n_routed_experts": EXPERTS, "num_experts_per_tok": 2},
    ],
)
def test_a_token_is_multiplied_with_the_experts_that_it_goes_through(
    stacked: bool, experts: dict[str, int]
) -> None:
    work = flops_of_sample(facts_of(stacked, config_of(**experts)), {}, 16)
    assert work is not None
    active = LAYERS * (ATTENTION + ROUTER + 2 * EXPERT)
    assert work.full == pytest.approx((6 * active + 12 * LAYERS * WIDTH * 16) * 16)


@pytest.mark.parametrize("config", [None, config_of(num_local_experts=EXPERTS)])
@pytest.mark.parametrize("stacked", [True, False])
def test_without_the_number_of_active_experts_there_is_no_estimate(
    stacked: bool, config: SimpleNamespace | None
) -> None:
    assert flops_of_sample(facts_of(stacked, config), {}, 16) is None


def test_a_model_without_experts_has_none() -> None:
    assert (
        Structure(
            list(nn.Sequential(nn.Linear(8, 8), nn.ModuleList([nn.Linear(8, 8)] * 2)).modules())
        ).experts
        == {}
    )


class FourBits(nn.Linear):
    """As bitsandbytes stores the weights: two in a byte."""

    def __init__(self) -> None:
        super().__init__(64, 32, bias=False)
        self.weight = nn.Parameter(
            torch.empty(64 * 32 // 2, 1, dtype=torch.uint8), requires_grad=False
        )


def test_weights_of_four_bits_count_one_by_one() -> None:
    found = Structure([FourBits(), nn.Linear(64, 32)])
    assert (found.linear_parameters, found.packed_parameters) == (2 * 64 * 32, 64 * 32 // 2)
