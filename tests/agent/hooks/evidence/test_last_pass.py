"""What a probe puts back after its passes: what modules, Python and numpy keep."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gpuconsole.agent.hooks.evidence import probes
from gpuconsole.agent.hooks.evidence.probes import LastPass, check
from gpuconsole.agent.hooks.segment_breakdown import SegmentBreakdown
from gpuconsole.agent.probes import ProbeError, untouched


class Caching(nn.Module):
    """Keeps tensors of the size and the precision of the last pass."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("table", torch.ones(4), persistent=False)
        self.masks: dict[int, torch.Tensor] = {}
        self.generator = torch.Generator()
        self.last: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.linear(x)
        if self.table.dtype != out.dtype:
            self.table = self.table.to(out.dtype)
        self.masks.setdefault(len(x), torch.ones(len(x)))
        self.last = out.detach()
        noise = (
            torch.rand((), generator=self.generator).item()
            + random.random()
            + float(np.random.rand())
        )
        return out * self.table + noise


def test_what_a_model_refers_to_and_all_random_states_are_as_before() -> None:
    model = Caching()
    model(torch.ones(2, 4))
    model.linear.weight.grad = torch.ones(4, 4)
    subject = LastPass(
        model, ((torch.ones(2, 4),), {}), SegmentBreakdown.__new__(SegmentBreakdown), {}
    )
    before = dict(model.__dict__), dict(model._buffers), dict(model.masks)
    states = (
        random.getstate(),
        np.random.get_state()[1].tolist(),
        model.generator.get_state().tolist(),
        torch.get_rng_state().tolist(),
    )
    with untouched(subject):
        subject.run_pass(subject.repeated(subject.batch, 2))
        assert 4 in model.masks
    assert {name: id(value) for name, value in model.__dict__.items()} == {
        name: id(value) for name, value in before[0].items()
    }
    assert [id(buffer) for buffer in model._buffers.values()] == [
        id(buffer) for buffer in before[1].values()
    ]
    assert model.masks.keys() == before[2].keys() == {2}
    assert states == (
        random.getstate(), np.random.get_state()[1].tolist(), model.generator.get_state().tolist(),
        torch.get_rng_state().tolist(),
    )  # fmt: skip
    assert (
        torch.equal(model.linear.weight.grad, torch.ones(4, 4)) and model.linear.bias.grad is None
    )


DRAWN = random.Random(0)


class Drawing(nn.Module):
    """A model that draws random numbers from a generator of its own."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.held = kind, SimpleNamespace(numbers=np.random.RandomState(0))
        self.rng: Any = np.random.default_rng(0) if kind == "numpy" else random.Random(0)
        self.draw = random.Random(0).random
        self.count, self.unused = iter(range(9)) if kind == "iterator" else 0, iter(range(9))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "state":
            self.held.numbers.rand()
        elif self.kind == "method":
            self.draw()
        elif self.kind == "global":
            DRAWN.random()
        elif self.kind == "iterator":
            next(self.count)
        elif self.kind != "none":
            self.rng.random()
        return x


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("none", []),
        ("python", ["rng"]),
        ("numpy", ["rng"]),
        ("state", ["held"]),
        ("method", ["draw"]),
        ("global", ["DRAWN"]),
    ],
)
def test_random_generators_of_the_model_are_state_that_a_pass_changes(
    kind: str, changes: list[str]
) -> None:
    model = Drawing(kind)
    before = probes.python_state(model)
    model(torch.ones(1))
    after = probes.python_state(model)
    assert [name for name in after if before.get(name) != after[name]] == changes
    assert not probes.unknown_state(model), (
        "forward names all but the iterator that it does not use"
    )


class Recurrent(nn.Module):
    """A recurrent network, and attributes that each pass makes anew with the same content, or with
    another one."""

    def __init__(self, cell: type[nn.Module], changes: str = "") -> None:
        super().__init__()
        self.cell, self.conv, self.head = (
            cell(4, 8, batch_first=True),
            nn.Conv2d(1, 1, 1),
            nn.Linear(8, 2),
        )
        self.changes = changes
        self.weights: list[Any] = []
        self.named: dict[str, Any] = {}
        self.mask = self.kept = torch.zeros(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weights = [self.head.weight, self.head.bias]
        self.named = {"other" if self.changes == "a key" and self.named else "mask": self.mask}
        self.mask = torch.ones(3) * (
            len(self.weights) + (self.mask.sum() if self.changes == "values" else 0)
        )
        if self.changes == "in place":
            self.kept.zero_()
        out, _ = self.cell(self.conv(x[:, None])[:, 0])
        return self.head(out[:, -1])


def trained(model: nn.Module) -> None:
    """Two steps of a program."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, 3, 4)).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU, nn.RNN])
def test_references_that_a_pass_makes_anew_are_no_state_and_the_former_ones_come_back(
    cell: type[nn.Module],
) -> None:
    model = Recurrent(cell)
    trained(model)
    before = probes.python_state(model)
    trained(model)
    after = probes.python_state(model)
    assert [name for name in after if before.get(name) != after[name]] == []
    assert not probes.unknown_state(model)
    flat, weights = model.cell._flat_weights, model.weights
    held = [*flat, *model.cell._flat_weight_refs, *weights, model.mask, *model.named.values()]
    subject = LastPass(
        model, ((torch.ones(2, 3, 4),), {}), SegmentBreakdown.__new__(SegmentBreakdown), {}
    )
    with untouched(subject):
        subject.run_pass(subject.repeated(subject.batch, 2))
        assert model.weights is not weights
    assert model.cell._flat_weights is flat and model.weights is weights
    present = [*flat, *model.cell._flat_weight_refs, *weights, model.mask, *model.named.values()]
    assert list(map(id, present)) == list(map(id, held))


@pytest.mark.parametrize(
    ("changes", "name"), [("values", "mask"), ("a key", "named"), ("in place", "kept")]
)
def test_what_a_pass_makes_anew_with_another_content_is_state(changes: str, name: str) -> None:
    model = Recurrent(nn.GRU, changes)
    model(torch.ones(2, 3, 4))
    before = probes.python_state(model)
    model(torch.ones(2, 3, 4))
    after = probes.python_state(model)
    assert name in [name for name in after if before.get(name) != after[name]]


def test_an_object_of_unknown_state_that_a_pass_calls_refuses() -> None:
    assert probes.unknown_state(nn.Sequential(nn.Linear(1, 1), Drawing("iterator"))) == "1.count"


def test_models_whose_passes_alone_would_do_harm_are_refused() -> None:
    model = nn.Linear(2, 2)
    model.find_unused_parameters = True  # type: ignore[assignment]
    with pytest.raises(ProbeError, match="unused parameters"):
        check(model)
    spread = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    with pytest.raises(ProbeError, match="several devices"):
        check(spread)


@pytest.mark.parametrize("probe", [probes.launch, probes.batch_elasticity])
def test_a_compiled_model_is_left_alone(probe: Callable[[Any], probes.Probing]) -> None:
    with pytest.raises(ProbeError, match="the model is compiled"):
        next(probe(SimpleNamespace(knobs={"torch_compile": "default"})))


@pytest.mark.parametrize("probe", [name for name in probes.PROBES if name not in ("script_lines",)])
def test_one_of_several_processes_makes_no_pass(probe: str) -> None:
    with pytest.raises(ProbeError, match="several processes train together"):
        next(probes.PROBES[probe](SimpleNamespace(knobs={"nproc": 2})))


def test_a_table_that_was_made_in_inference_mode_is_compared_by_its_values() -> None:
    """Such a tensor has no version."""
    model = torch.nn.Linear(2, 2)

    def remember(value: float) -> None:
        with torch.inference_mode():
            model.__dict__["table"] = torch.full((3,), value)

    remember(1.0)
    before = probes.python_state(model)
    remember(1.0)
    assert probes.python_state(model) == before
    remember(2.0)
    assert probes.python_state(model) != before


@pytest.mark.parametrize(
    ("make", "refused"),
    [
        (torch.optim.Adam, ""),
        (torch.optim.AdamW, ""),
        (lambda weights: torch.optim.SGD(weights, 0.1), "neither Adam nor AdamW"),
        (lambda weights: torch.optim.Adam(weights, fused=True), "fused already"),
        (lambda weights: torch.optim.Adam(weights, amsgrad=True), "no fused form"),
    ],
)
def test_updates_of_adam_and_adamw_run_on_copies(
    make: Callable[[Any], torch.optim.Optimizer], refused: str
) -> None:
    model = nn.Linear(4, 4)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = make(model.parameters())
    if refused:
        with pytest.raises(ProbeError, match=refused):
            probes.updates_on_copies([optimizer])
        return
    device, present, fused = probes.updates_on_copies([optimizer])
    present()
    fused()
    assert device.type == "cpu" and not optimizer.state
    assert all(map(torch.equal, before, model.parameters()))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_copies_of_the_parameters_need_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "free_bytes", lambda device: 100.0)
    with pytest.raises(ProbeError, match="no room for copies of the parameters"):
        probes.updates_on_copies([torch.optim.Adam(nn.Linear(4, 4).parameters())])
