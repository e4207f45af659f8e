"""The real model for the models' tests, small, on the CPU; and its passes."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from gpuconsole.diagnosis.models.inputs import GptShape
from gpuconsole.workloads.training.gpt import GPT, VOCABULARY, add_lora, next_token_loss

POSITIONS = 1024
SHAPES = {
    "even": GptShape(3, 48, 48, 128, 2, VOCABULARY),
    "odd tokens": GptShape(2, 65, 65, 192, 3, VOCABULARY),
    "one block": GptShape(4, 32, 32, 64, 1, VOCABULARY),
    "padded": GptShape(2, 40, 33, 128, 2, VOCABULARY),
    "narrow head": GptShape(2, 24, 24, 32, 2, VOCABULARY),
}


@dataclass(frozen=True)
class Case:
    """One way to train it."""

    name: str
    shape: GptShape
    attention: str
    precision: str
    checkpointing: bool


def cases() -> list[Case]:
    """Every way to train, with and without LoRA, on one shape; the other shapes with a few of
    them."""
    ways = list(itertools.product((0, 4), ("sdpa", "math"), ("fp32", "bf16"), (False, True)))
    chosen = [
        (name, shape, way)
        for name, shape in SHAPES.items()
        for way in (ways if name == "odd tokens" else ways[1::5])
    ]
    return [
        Case(
            f"{name}-rank{rank}-{attention}-{precision}-{'ckpt' if again else 'keep'}",
            replace(shape, lora_rank=rank),
            attention,
            precision,
            again,
        )
        for name, shape, (rank, attention, precision, again) in chosen
    ]


def build(case: Case) -> GPT:
    model = GPT(case.shape.d_model, case.shape.n_layer, POSITIONS)
    if case.shape.lora_rank:
        add_lora(model, case.shape.lora_rank)
    model.attention, model.gradient_checkpointing = case.attention, case.checkpointing
    return model


def batch_of(shape: GptShape) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets as the workload's stream makes them: targets are a view of the text."""
    window = torch.randint(0, VOCABULARY, (shape.batch, shape.targets + 1))
    return torch.randint(0, VOCABULARY, (shape.batch, shape.tokens)), window[:, 1:]


def forward(
    model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor], precision: str
) -> Callable[[], torch.Tensor]:
    def run() -> torch.Tensor:
        with (
            torch.autocast("cpu", dtype=torch.bfloat16)
            if precision == "bf16"
            else contextlib.nullcontext()
        ):
            return next_token_loss(model, *batch)

    return run
