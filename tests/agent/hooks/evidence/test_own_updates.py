"""What the account of a program without an optimizer reads of its weights. test_iterations.py shows the steps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from gpuconsole.agent.hooks.evidence import steps as module
from gpuconsole.agent.hooks.evidence.steps import OwnUpdates, some_bytes
from gpuconsole.agent.hooks.recorder import BACKWARD
from gpuconsole.agent.hooks.watch import recorder, watch


@pytest.fixture
def account() -> Iterator[OwnUpdates]:
    yield OwnUpdates()
    recorder.reset()
    watch.weights = []


def trained_weight() -> torch.Tensor:
    """A weight with a gradient, as after a backward pass."""
    weight = torch.ones(4, requires_grad=True)
    weight.grad = torch.ones(4)
    return weight


def test_the_bytes_of_a_weight_are_read_where_it_lies() -> None:
    weights = torch.arange(100, dtype=torch.int16)
    last = weights[90:]
    assert some_bytes(last) == bytes(last.clone().numpy())
    assert len(some_bytes(weights)) == module.VALUE_BYTES
    weights.untyped_storage().resize_(0)
    assert some_bytes(last) == b"", "the storage is freed"
    assert some_bytes(torch.empty(0)) == b""


def test_nothing_begins_or_is_compared_while_a_cuda_graph_is_captured(account: OwnUpdates, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = trained_weight()
    monkeypatch.setattr(module, "with_gradients", lambda: [weight])
    monkeypatch.setattr(module, "capturing", lambda: True)
    assert account.may_begin()
    account.begin()
    assert not account.on and not account.over
    monkeypatch.setattr(module, "capturing", lambda: False)
    account.begin()
    assert account.on
    weight.data.zero_()
    monkeypatch.setattr(module, "capturing", lambda: True)
    assert not account.backward_begins()
    monkeypatch.setattr(module, "capturing", lambda: False)
    assert account.backward_begins()


def test_a_weight_on_another_device_is_not_compared_with_its_copy(account: OwnUpdates, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = trained_weight()
    monkeypatch.setattr(module, "with_gradients", lambda: [weight])
    account.begin()
    weight.grad = None
    account._copies = [weight.detach().to("meta")]
    assert not account.backward_begins()
    recorder.enter(BACKWARD)
    recorder.leave()
    account.backward_ended()
    assert account.on and not account.confirmed
