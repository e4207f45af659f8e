"""The code that findings about communication show to copy: run on a small model under
DistributedDataParallel, it exchanges once for each step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gpuconsole.agent.hooks.changes.change import FIXED
from gpuconsole.diagnosis.rules.comm_accum_without_no_sync import CODE as WITHOUT_NO_SYNC
from gpuconsole.diagnosis.rules.comm_exposed import code_for

PASSES = 4


@pytest.fixture(scope="module", autouse=True)
def one_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    store: Path = tmp_path_factory.mktemp("store") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def exchanges(code: str, passes: int = PASSES) -> list[int]:
    """The passes of one step after which gradients were exchanged."""
    exchanged: list[int] = []
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    number = 0

    def hook(state, bucket):  # torch compares the annotations themselves, so there are none
        exchanged.append(number)
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    model.register_comm_hook(None, hook)
    names = {
        "model": model,
        "inputs": torch.ones(2, 4),
        "targets": torch.ones(2, 1),
        "loss_function": torch.nn.functional.mse_loss,
    }
    for number in range(passes):
        exec(
            code,
            {
                **names,
                "nullcontext": contextlib.nullcontext,
                "i": number,
                "last_pass": number == passes - 1,
            },
        )
    return exchanged


@pytest.mark.parametrize(
    "code", [WITHOUT_NO_SYNC, code_for(PASSES)], ids=["comm.accum_without_no_sync", "comm.exposed"]
)
def test_only_the_last_pass_of_a_step_exchanges(code: str) -> None:
    assert exchanges(code) == [PASSES - 1]


def test_the_line_of_a_knob_that_cannot_change_exchanges_nothing() -> None:
    assert exchanges(FIXED["sync_each_batch"].code) == []
