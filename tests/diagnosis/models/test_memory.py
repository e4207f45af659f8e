"""States by part against torch's own optimizers and its ways to shard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch
import torch.distributed as dist

from gpuconsole.diagnosis.models.inputs import GptShape, ParameterTensor, gpt_tensors
from gpuconsole.diagnosis.models.memory import (
    gathered_bytes,
    greedy_share,
    optimizer_bytes,
    states,
    states_by_count,
)
from gpuconsole.workloads.training.gpt import GPT
from gpuconsole.workloads.training.probes import memory
from gpuconsole.workloads.training.settings import make_optimizer
from tests.diagnosis.models.gpt import POSITIONS, Case, batch_of, build, forward

SHAPE = GptShape(2, 16, 16, 128, 2, 256)


@pytest.mark.parametrize("optim", ["adamw", "adamw_foreach", "adamw_fused", "sgd"])
@pytest.mark.parametrize("rank", [0, 4], ids=["all", "lora"])
def test_states_of_one_process(optim: str, rank: int) -> None:
    case = Case("", replace(SHAPE, lora_rank=rank), "sdpa", "bf16", False)
    model = build(case)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = make_optimizer(trained, optim)
    # autocast keeps parameters and gradients in fp32
    forward(model, batch_of(case.shape), "bf16")().backward()
    optimizer.step()
    predicted = states(gpt_tensors(case.shape, POSITIONS), optim)
    assert predicted.parameters == memory.held_bytes(model.parameters())
    assert predicted.gradients == memory.held_bytes(parameter.grad for parameter in trained)
    # SGD counts no steps
    assert predicted.optimizer == pytest.approx(memory.state_bytes(optimizer), rel=1e-3)


@pytest.fixture(params=[0, 1, 2])
def rank(request: pytest.FixtureRequest) -> Iterator[int]:
    """One of three processes, whose collectives do nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=request.param, world_size=3)
    yield request.param
    dist.destroy_process_group()


def test_zero1_shares_whole_parameters_as_torch_does(rank: int) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    optimizer = ZeroRedundancyOptimizer(
        GPT(128, 2, POSITIONS).parameters(), optimizer_class=torch.optim.AdamW, lr=1e-3
    )
    owned = sum(
        parameter.numel() for group in optimizer.optim.param_groups for parameter in group["params"]
    )
    tensors = gpt_tensors(SHAPE, POSITIONS)
    assert sum(tensor.elements for tensor in greedy_share(tensors, 3, rank)) == owned
    predicted = states(tensors, "adamw", "zero1", 3, rank)
    assert predicted.optimizer == pytest.approx(8 * owned, rel=1e-3)
    assert predicted.parameters == predicted.gradients == states(tensors, "adamw").parameters


@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
def test_fsdp2_shards_rows_of_every_tensor(sharding: str, rank: int) -> None:
    model = _sharded(GPT(128, 2, POSITIONS), sharding, 3, 1, rank)
    predicted = states(gpt_tensors(SHAPE, POSITIONS), "adamw", sharding, 3, rank)
    assert predicted.parameters == memory.held_bytes(model.parameters())
    assert predicted.optimizer == pytest.approx(2 * predicted.parameters, rel=1e-3)


def test_tensor_parallelism_splits_matrices(rank: int) -> None:
    model = _sharded(GPT(192, 2, POSITIONS), "none", 3, 3, rank)
    predicted = states(
        gpt_tensors(replace(SHAPE, d_model=192), POSITIONS), "adamw", tensor_parallel=3
    )
    assert predicted.parameters == memory.held_bytes(model.parameters())


@dataclass
class World:
    rank: int
    size: int


def _sharded(
    model: GPT, sharding: str, size: int, tensor_parallel: int, rank: int
) -> torch.nn.Module:
    from gpuconsole.workloads.training.parallel.sharded import Sharded

    return Sharded(World(rank, size), sharding, tensor_parallel).wrap(
        model, {}, torch.device("cpu")
    )  # type: ignore[arg-type]


def test_zero_in_the_large() -> None:
    """Per GPU, of 16 B a parameter: 8P + 8P/N, 16P/N, 16P/N between steps."""
    p, n = 8e9, 8
    total = {
        sharding: states_by_count(p, p, "adamw", sharding, n).total
        for sharding in ("none", "ddp", "zero1", "zero2", "zero3")
    }
    assert total["none"] == total["ddp"] == pytest.approx(16 * p)
    assert total["zero1"] == pytest.approx(8 * p + 8 * p / n)
    assert total["zero2"] == total["zero3"] == pytest.approx(16 * p / n)


def test_fsdp2_gathers_all_or_two_at_a_time() -> None:
    assert gathered_bytes([1, 5, 3], "zero2") == 9
    assert gathered_bytes([1, 5, 3], "zero3") == 8
    assert gathered_bytes([1, 5, 3], "ddp") == 0


def test_eight_bits_are_a_quarter_and_a_little() -> None:
    """torchao's subclass: codes, a scale for each 256, a table of 256 values; small tensors and odd
    ones stay in fp32."""
    large = 1 << 20
    assert optimizer_bytes(large, "adamw_8bit") == 4 + 2 * (large + large // 64 + 1024)
    assert optimizer_bytes(1024, "adamw_8bit") == optimizer_bytes(1024, "adamw")
    assert optimizer_bytes(4096 + 1, "adamw_8bit") == optimizer_bytes(4096 + 1, "adamw")


def test_lora_keeps_states_of_adapters_only() -> None:
    tensors = [
        ParameterTensor((100, 100), trained=False),
        ParameterTensor((4, 100)),
        ParameterTensor((100, 4)),
    ]
    found = states(tensors, "adamw_fused")
    assert (found.parameters, found.gradients, found.optimizer) == (43_200, 3_200, 6_408)
