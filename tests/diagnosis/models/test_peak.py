"""The peak of a step against every tensor's life in a real one."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from gpuconsole.diagnosis.models.inputs import GptShape, gpt_tensors
from gpuconsole.diagnosis.models.memory import Pass, activations, peak_bytes, states
from tests.diagnosis.models.gpt import POSITIONS, Case, batch_of, build, forward
from tests.matrix import matrix

LARGE_BATCH = GptShape(4, 96, 96, 128, 3, 256)
LARGE_MODEL = GptShape(1, 16, 16, 256, 2, 256)
LORA = GptShape(2, 64, 64, 128, 3, 256, lora_rank=4)
LONG = GptShape(1, 256, 256, 64, 2, 256)


class Live(TorchDispatchMode):
    """Bytes of all storages that operations make, while they live; and the most there were."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.peak = 0
        self._seen: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage not in self._seen:
            self._seen.add(storage)
            self.bytes += storage.nbytes()
            weakref.finalize(storage, self._gone, storage.nbytes())
            self.peak = max(self.peak, self.bytes)

    def _gone(self, size: int) -> None:
        self.bytes -= size

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = operation(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            if isinstance(tensor, torch.Tensor):
                self.add(tensor)
        return result


def measured_peak(case: Case, optim: str, passes: int) -> int:
    """Of the second step of a training, so that the optimizer has its states."""
    model, batch = build(case), batch_of(case.shape)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(
        trained, foreach=optim == "adamw_foreach", fused=optim == "adamw_fused"
    )

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        for _ in range(passes):
            forward(model, batch, case.precision)().backward()
        optimizer.step()

    step()
    optimizer.zero_grad(set_to_none=True)
    live = Live()
    with live:
        for tensor in (
            *model.parameters(),
            *(value for values in optimizer.state.values() for value in values.values()),
        ):
            live.add(tensor.data)
        step()
    return live.peak


SHAPES = (LARGE_BATCH, LARGE_MODEL, LORA, LONG)
PEAKS = list(itertools.product(SHAPES, ("sdpa", "math"), ("fp32", "bf16"), (False, True)))
IN_CI = [
    (LARGE_BATCH, "sdpa", "fp32", False),
    (LARGE_MODEL, "math", "bf16", False),
    (LORA, "sdpa", "bf16", True),
    (LONG, "math", "fp32", True),
]
"""Each shape, each attention, each precision, with and without checkpointing: twice."""


@pytest.mark.parametrize(
    ("shape", "attention", "precision", "checkpointing"), matrix(PEAKS, in_ci=IN_CI)
)
def test_peak_within_10_percent(
    shape: GptShape, attention: str, precision: str, checkpointing: bool
) -> None:
    case = Case("", shape, attention, precision, checkpointing)
    assert _predicted(case, "adamw_fused", 1) == pytest.approx(
        measured_peak(case, "adamw_fused", 1), rel=0.10
    )


@pytest.mark.parametrize(
    ("optim", "passes"), [("adamw_foreach", 1), ("adamw", 1), ("adamw_fused", 2)]
)
@pytest.mark.parametrize("shape", [LARGE_BATCH, LARGE_MODEL], ids=["large batch", "large model"])
def test_peak_with_other_optimizers_and_accumulation(
    shape: GptShape, optim: str, passes: int
) -> None:
    case = Case("", shape, "sdpa", "fp32", False)
    assert _predicted(case, optim, passes) == pytest.approx(
        measured_peak(case, optim, passes), rel=0.10
    )


def _predicted(case: Case, optim: str, passes: int) -> float:
    kept = activations(case.shape, case.precision, case.attention, case.checkpointing)
    run = Pass(case.precision, case.attention, optim, gradients_stay=passes > 1, is_gpu=False)
    return peak_bytes(case.shape, states(gpt_tensors(case.shape, POSITIONS), optim), kept, run)
