"""What counts as samples of a step."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from gpuconsole.agent.hooks import watch as module
from gpuconsole.agent.hooks.recorder import Recorder
from gpuconsole.agent.hooks.watch import Watch, count_samples


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """That of a program with one optimizer."""
    monkeypatch.setattr(module, "watch", watch := Watch())
    monkeypatch.setattr(module, "recorder", recorder := Recorder())
    optimizer = torch.optim.SGD([torch.zeros(2)], lr=0.1)
    watch.optimizers.append(weakref.ref(optimizer))
    yield recorder
    del optimizer  # it is alive until here


def change_weights() -> None:
    optimizer: Any = module.watch.optimizers[-1]()
    optimizer.param_groups[0]["params"][0].add_(1.0)


def test_a_batch_that_is_passed_again_with_other_weights_counts_once(recorder: Recorder) -> None:
    """As in L-BFGS and SAM; in L-BFGS the closure often makes a view of the batch in each pass."""
    x = torch.zeros(16, 3, 4)
    for _ in range(5):
        count_samples((x.flatten(1),), {})
        change_weights()
    assert recorder.samples == 16 and module.watch.newest_batch == 16
    recorder.index += 1
    count_samples((x.flatten(1),), {})
    assert recorder.samples == 32, "the next step"


def test_micro_batches_count_even_where_they_are_the_same_tensor(recorder: Recorder) -> None:
    x = torch.zeros(16, 4)
    for _ in range(3):
        count_samples((x,), {})
    assert recorder.samples == 48


def test_parts_of_a_batch_count_each(recorder: Recorder) -> None:
    x = torch.zeros(16, 4)
    for part in x.split(4):
        count_samples((part,), {})
        change_weights()
    assert recorder.samples == 16


@pytest.mark.parametrize(
    "value", [torch.zeros(16, 4).to_sparse(), type("Slots", (), {"shape": (16, 4), "dtype": torch.float32, "__slots__": ()})()]
)
def test_what_is_no_usual_tensor_counts(recorder: Recorder, value: Any) -> None:
    for _ in range(2):
        count_samples((), {"given": value} if isinstance(value, torch.Tensor) else {"given": [value]})
    assert recorder.samples == 32
