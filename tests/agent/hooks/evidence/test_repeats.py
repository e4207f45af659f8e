"""Modules that one forward pass calls several times: whether the calls could be one."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gpuconsole.agent.hooks.evidence import arithmetic
from gpuconsole.agent.hooks.evidence.arithmetic import StepCount
from gpuconsole.agent.protocol import Signal


class Model(nn.Module):
    """A model that calls one module again and again, in a way of its subclass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 24))
        self.cell = nn.GRUCell(24, 24)


class Views(Model):
    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.inner(x[:, i]) for i in range(x.shape[1])]).mean(0)


class FrozenViews(Views):
    def __init__(self) -> None:
        super().__init__()
        self.inner.requires_grad_(False)


class Sizes(Model):
    """A head for maps of several sizes."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.inner(x[:, : i + 1]).mean() for i in range(x.shape[1])])


class Siamese(Model):
    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x[:, 0]) - self.inner(x[:, 1])


class Recurrent(Model):
    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(x.shape[0], 24)
        for i in range(x.shape[1]):
            state = self.cell(x[:, i], state)
        return state


class Shared(Model):
    """One layer in place of eight, frozen as in a sampler."""

    def __init__(self) -> None:
        super().__init__()
        self.inner.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(8):
            x = self.inner(x)
        return x


class Unrolled(Model):
    """A sampler whose state carries no graph from step to step."""

    def forward(self, x: Tensor) -> Tensor:
        state = x[:, 0]
        for _ in range(8):
            state = (state - 0.1 * self.inner(state)).detach()
        return self.inner(state)


class Chosen(Model):
    """The result of a call decides what the next one reads."""

    def forward(self, x: Tensor) -> Tensor:
        at, total = 0, x.new_zeros(x.shape[0], 24)
        for _ in range(8):
            out = self.inner(x[:, at])
            total, at = total + out, int(out.sum().item() > 0)
        return total


class InPlace(Model):
    """The results lie in one buffer, from which the next call reads."""

    def forward(self, x: Tensor) -> Tensor:
        kept = torch.zeros(9, x.shape[0], 24)
        with torch.no_grad():
            for i in range(8):
                kept[i + 1] = self.inner(kept[i])
        return self.inner(kept[-1])


class Cache:
    """A cache of the program, which says when somebody asks it something."""

    def __init__(self) -> None:
        self.rows: list[Tensor] = []
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        raise AttributeError(name)


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(24, 24)

    def forward(self, x: Tensor, cache: Cache) -> Tensor:
        cache.rows.append(self.linear(x))
        return torch.stack(cache.rows).mean(0)


class Cached(Model):
    """Each call reads what the calls before have left in a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.attends = Attends()

    def forward(self, x: Tensor) -> Tensor:
        cache = Cache()
        out = torch.stack([self.attends(x[:, i], cache) for i in range(x.shape[1])]).mean(0)
        assert cache.asked == []
        return out


class Remembers(nn.Module):
    """A module that keeps its state in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(24, 24)
        self.state = torch.zeros(2, 24)

    def forward(self, x: Tensor) -> Tensor:
        self.state = self.cell(x, self.state)
        return self.state


class Stateful(Model):
    def __init__(self) -> None:
        super().__init__()
        self.remembers = Remembers()

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.remembers(x[:, i]) for i in range(x.shape[1])]).mean(0)


class Normalized(Views):
    """Running statistics are no state that a result depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(24, 24), nn.BatchNorm1d(24), nn.Linear(24, 24))


def calls_of(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> tuple[Signal, Signal]:
    """What the counted step says of a forward pass of `model`, for two samples of 12 parts."""
    # another test of this process may have compiled a model: no step would be counted
    monkeypatch.setattr(arithmetic, "has_compiled", lambda: False)
    count = StepCount()

    def called(module: nn.Module, args: Any, kwargs: Any) -> None:
        if module is not model:
            count.repeats.called(module, args, kwargs, count.operators, sys._getframe(1))

    for module in model.modules():
        module.register_forward_pre_hook(called, with_kwargs=True)
    count.enter()
    model(torch.randn(2, 12, 24))
    count.leave()
    signals = count.repeats.signals()
    return signals["repeated.calls"], signals["repeated.operators_ratio"]


@pytest.mark.parametrize("kind", [Views, FrozenViews, Normalized])
def test_calls_that_could_be_one_are_counted_with_their_line(
    kind: type[Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, ratio = calls_of(kind(), monkeypatch)
    assert calls.value == 12 and ratio.value > 0.8
    assert calls.place is not None
    assert calls.place.line == f"test_repeats.py:{Views.forward.__code__.co_firstlineno + 1}"


@pytest.mark.parametrize(
    "kind", [Sizes, Siamese, Recurrent, Shared, Unrolled, Chosen, InPlace, Cached, Stateful]
)
def test_calls_that_need_each_other_or_differ_are_left_alone(
    kind: type[Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, ratio = calls_of(kind(), monkeypatch)
    assert calls.value == ratio.value == 0
