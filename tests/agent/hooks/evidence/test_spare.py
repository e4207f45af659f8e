"""Work of the passes whose result nobody needs, and its healthy neighbours: each program runs one
step, whose operators are counted."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from gpuconsole.agent.hooks import passes
from gpuconsole.agent.hooks.evidence import arithmetic
from gpuconsole.agent.hooks.evidence.arithmetic import StepCount
from gpuconsole.agent.hooks.evidence.spare import padded_ratio
from gpuconsole.agent.hooks.watch import watch
from gpuconsole.agent.loop import Signals

RUNS = ("(module, args, {}))", "enter((loss,))", "enter((out,), False)")
"""The lines of `Program` that make the passes."""


class Program:
    """A program whose passes and updates the counting step sees, as the hooks show them to it."""

    def __init__(self, count: StepCount) -> None:
        self.count = count

    def call(self, module: nn.Module, *args: Tensor) -> Tensor:
        self.count.enter(None, False, (module, args, {}))
        out: Tensor = module(*args)
        self.count.leave()
        return out

    def backward(self, loss: Tensor, retain: bool = False) -> None:
        self.count.enter((loss,))
        loss.backward(retain_graph=retain)  # type: ignore[no-untyped-call]
        self.count.leave()

    def grad(self, out: Tensor, x: Tensor) -> Tensor:
        self.count.enter((out,), False)
        (gradient,) = torch.autograd.grad(out, x, create_graph=True)
        self.count.leave()
        return gradient

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        self.count.stepped(optimizer)
        optimizer.step()


def net(*sizes: int) -> nn.Sequential:
    layers = [nn.Linear(before, after) for before, after in itertools.pairwise(sizes)]
    return nn.Sequential(*[part for layer in layers for part in (layer, nn.Tanh())])


# --- programs: each has a fault with `fault`, and is its healthy neighbour without it -------------


def same_pass(run: Program, fault: bool) -> None:
    model, x = net(16, 32, 8), torch.randn(4, 16)
    out = run.call(model, x)
    again = run.call(model, x if fault else torch.randn(4, 16))
    run.backward(out.sum() + again.pow(2).sum())


def pass_thrown_away(run: Program, fault: bool) -> None:
    model, x = net(16, 32, 8), torch.randn(4, 16)
    if fault:
        run.call(model, x)
    run.backward(run.call(model, x).sum())


def dropped_out(run: Program, fault: bool) -> None:
    """Two passes with dropout give two results (R-Drop, SimCSE)."""
    model, x = nn.Sequential(net(16, 32), nn.Dropout(0.0 if fault else 0.1)), torch.randn(4, 16)
    out, again = run.call(model, x), run.call(model, x)
    run.backward((out * again).sum())


def sharpness(run: Program, fault: bool) -> None:
    """Between two passes the program moves its parameters (SAM), in a way that nobody sees."""
    model, x = net(16, 32, 8), torch.randn(4, 16)
    first = run.call(model, x)
    if not fault:
        run.backward(first.sum())
        for weight in model.parameters():
            weight.data.add_(0.1)
    run.backward(run.call(model, x).sum() + (first.sum() if fault else 0))


def backward_again(run: Program, fault: bool) -> None:
    body, heads = net(16, 32, 32), (net(32, 4), net(32, 4))
    hidden = run.call(body, torch.randn(4, 16))
    losses = [run.call(head, hidden).sum() for head in heads]
    if fault:
        run.backward(losses[0], retain=True)
        run.backward(losses[1])
    else:
        run.backward(losses[0] + losses[1])


def gradients_apart(run: Program, fault: bool) -> None:
    """The gradients of two losses are kept apart, and projected (PCGrad)."""
    model = net(16, 32, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watched([optimizer])
    out = run.call(model, torch.randn(4, 16))
    run.backward(out[:, 0].sum(), retain=True)
    if not fault:
        for weight in model.parameters():
            assert weight.grad is not None
            weight.grad.zero_()
    run.backward(out[:, 1].sum())


def unused_gradients(run: Program, fault: bool) -> None:
    generator, critic = net(16, 64, 32), net(32, 32, 1)
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (critic, generator)]
    watched(optimizers)
    fake = run.call(generator, torch.randn(4, 16))
    run.backward(run.call(critic, fake if fault else fake.detach()).sum())
    run.step(optimizers[0])
    optimizers[1].zero_grad()
    run.backward(run.call(critic, run.call(generator, torch.randn(4, 16))).sum())
    run.step(optimizers[1])


def frozen(run: Program, fault: bool) -> None:
    """A part of the model is in no optimizer."""
    body, head = net(16, 64, 32), net(32, 4)
    body.requires_grad_(fault)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    watched([optimizer])
    run.backward(run.call(head, run.call(body, torch.randn(4, 16))).sum())
    run.step(optimizer)


def master_weights(run: Program, fault: bool) -> None:
    """The optimizer holds copies of the parameters."""
    body, head = net(16, 64, 32), net(32, 4)
    held = head.parameters() if fault else [p.detach().clone() for p in head.parameters()]
    optimizer = torch.optim.SGD(held, lr=0.1)
    watched([optimizer])
    run.backward(run.call(head, run.call(body, torch.randn(4, 16))).sum())
    run.step(optimizer)


class OneHot(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(512, 8))

    def forward(self, ids: Tensor) -> Tensor:
        return functional.one_hot(ids, 512).float() @ self.weight  # spare


class Dense(OneHot):
    def forward(self, ids: Tensor) -> Tensor:
        return torch.randn(len(ids), 512) @ self.weight


def zeros(run: Program, fault: bool) -> None:
    ids = torch.randint(512, (32,))
    run.backward(run.call((OneHot if fault else Dense)(), ids).sum())


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(50, 8), nn.Linear(8, 50)

    def forward(self, ids: Tensor) -> Tensor:
        scores: Tensor = self.head(self.words(ids))  # spare
        return scores


def unlabelled(run: Program, fault: bool) -> None:
    scores = run.call(Tagger(), torch.randint(50, (4, 16)))
    labels = torch.randint(50, (4, 16))
    labels[:, 0 if fault else 15 : 14 if fault else 16] = -100
    run.backward(functional.cross_entropy(scores.flatten(0, 1), labels.flatten()))


def padding(run: Program, fault: bool) -> None:
    ids = torch.randint(1, 50, (4, 16))
    for row in range(4):
        ids[row, 2 + row if fault else 15 :] = 0
    run.backward(run.call(Tagger(), ids).pow(2).sum())


def jacobian(run: Program, fault: bool) -> None:
    x = torch.randn(4, 16, requires_grad=True)
    out = run.call(net(16, 32, 8), x)
    total = torch.zeros(())
    for column in range(8 if fault else 2):
        total = total + run.grad(out[:, column].sum(), x).pow(2).sum()
    run.backward(total)


def derivatives(run: Program, fault: bool) -> None:
    """Each derivative is that of the one before: the calls need each other."""
    x = torch.randn(4, 16, requires_grad=True)
    out = run.call(net(16, 32, 8), x)
    each = out[:, 0].sum()
    for order in range(4):
        each = run.grad(out[:, order].sum() if fault else each, x).sum()
    run.backward(each + out.sum())


def watched(optimizers: Sequence[torch.optim.Optimizer]) -> None:
    for optimizer in optimizers:
        watch.add(watch.optimizers, optimizer)


def counted(
    program: Callable[[Program, bool], None], fault: bool, monkeypatch: pytest.MonkeyPatch
) -> Signals:
    # another test of this process may have compiled a model: no step would be counted
    monkeypatch.setattr(arithmetic, "has_compiled", lambda: False)
    monkeypatch.setattr(watch, "optimizers", [])
    torch.manual_seed(0)
    count = StepCount()
    assert passes.state.counting is None
    program(Program(count), fault)
    assert count.flops, count.reason
    return count.spare.signals(count.flops, count.operators)


@pytest.mark.parametrize(
    ("program", "signal", "least", "most"),
    [
        (same_pass, "spare.same_pass_ratio", 0.49, 0.51),
        (pass_thrown_away, "spare.same_pass_ratio", 0.2, 0.35),
        (dropped_out, "spare.same_pass_ratio", 0.49, 0.51),
        (sharpness, "spare.same_pass_ratio", 0.45, 0.51),
        (backward_again, "spare.backward_again_ratio", 0.2, 0.5),
        (gradients_apart, "spare.backward_again_ratio", 0.3, 0.5),
        (unused_gradients, "spare.unused_gradients_ratio", 0.1, 0.3),
        (frozen, "spare.unused_gradients_ratio", 0.3, 0.6),
        (master_weights, "spare.unused_gradients_ratio", 0.3, 0.6),
        (zeros, "spare.zeros_ratio", 0.99, 1.0),
        (unlabelled, "spare.unlabelled_ratio", 0.8, 0.9),
        (padding, "spare.padding_ratio", 0.7, 0.9),
        (jacobian, "gradient_loop.calls", 8, 8),
        (derivatives, "gradient_loop.calls", 4, 4),
    ],
)
def test_spare_work_is_found_with_its_line_and_its_neighbour_is_left_alone(
    program: Callable[[Program, bool], None],
    signal: str,
    least: float,
    most: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = counted(program, True, monkeypatch)[signal]
    assert least <= found.value <= most
    file, _, number = str(found.place.line if found.place is not None else "").partition(":")
    line = Path(__file__).read_text().splitlines()[int(number) - 1]
    assert file == "test_spare.py" and line.endswith((*RUNS, "# spare"))
    healthy = counted(program, False, monkeypatch)
    assert signal not in healthy or healthy[signal].value < 0.1


# --- programs without a fault that look like one --------------------------------------------------


class Adapted(nn.Module):
    """A layer with an adapter that the program switches, and a factor that it sets."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.adapter = nn.Linear(64, 64), nn.Linear(64, 64)
        self.is_on, self.factor = True, 1.0
        self.register_buffer("state", torch.zeros(8, 64))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) * self.factor + self.state
        return out + self.adapter(x) if self.is_on else out


def reference_without_adapter(run: Program) -> None:
    """The reference of a policy is the same module with its adapters off (DPO with LoRA)."""
    model, x = Adapted(), torch.randn(8, 64)
    model.is_on = False
    with torch.no_grad():
        reference = run.call(model, x)
    model.is_on = True
    run.backward((run.call(model, x) - reference).pow(2).sum())


def other_factor(run: Program) -> None:
    """The program sets a number of the module between two passes."""
    model, x = Adapted(), torch.randn(8, 64)
    first = run.call(model, x)
    model.factor = 0.5
    run.backward((first * run.call(model, x)).sum())


def other_state(run: Program) -> None:
    """A pass reads what an earlier pass has left in the module."""
    model, x = Adapted(), torch.randn(8, 64)
    first = run.call(model, x)
    model.state = first.detach()
    run.backward((first * run.call(model, x)).sum())


def averaged_weights(run: Program) -> None:
    """The teacher is the same module with averaged weights."""
    model, x = net(64, 64), torch.randn(8, 64)
    own = [weight.data for weight in model.parameters()]
    for weight in model.parameters():
        weight.data = weight.data * 0.9
    with torch.no_grad():
        teacher = run.call(model, x)
    for weight, data in zip(model.parameters(), own, strict=True):
        weight.data = data
    run.backward((run.call(model, x) - teacher).pow(2).sum())


def evolution(run: Program) -> None:
    """The program moves the weights, in a way that nobody sees, and compares losses (MeZO)."""
    model, x = net(64, 64), torch.randn(8, 64)
    with torch.no_grad():
        for _ in range(4):
            for weight in model.parameters():
                weight.data.add_(0.1)
            run.call(model, x)


def gradients_read(run: Program) -> None:
    """The program reads the gradients of each loss, and puts their mean in their place."""
    model, x = net(64, 64, 8), torch.randn(8, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watched([optimizer])
    kept = []
    for each in (x[:4], x[4:]):
        optimizer.zero_grad()
        run.backward(run.call(model, each).sum())
        kept.append([weight.grad for weight in model.parameters() if weight.grad is not None])
    for weight, *grads in zip(model.parameters(), *kept, strict=True):
        weight.grad = torch.stack(grads).mean(0)
    run.step(optimizer)


def updated_by_hand(run: Program) -> None:
    """The program updates a part of its parameters itself."""
    body, head = net(64, 64, 64), net(64, 8)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    watched([optimizer])
    run.backward(run.call(head, run.call(body, torch.randn(8, 64))).sum())
    with torch.no_grad():
        for weight in body.parameters():
            assert weight.grad is not None
            weight.sub_(0.1 * weight.grad)
    run.step(optimizer)


def updated_in_backward(run: Program) -> None:
    """An optimizer steps within the backward pass, as soon as its gradient is there."""
    body, head = net(64, 64, 64), net(64, 8)
    last = torch.optim.SGD(head.parameters(), lr=0.1)
    optimizers = {weight: torch.optim.SGD([weight], lr=0.1) for weight in body.parameters()}
    watched([*optimizers.values(), last])

    def update(weight: Tensor) -> None:
        run.step(optimizers[weight])  # type: ignore[index]
        optimizers[weight].zero_grad()  # type: ignore[index]

    for weight in body.parameters():
        weight.register_post_accumulate_grad_hook(update)  # type: ignore[no-untyped-call]
    run.backward(run.call(head, run.call(body, torch.randn(8, 64))).sum())
    run.step(last)


@pytest.mark.parametrize(
    "program",
    [
        reference_without_adapter,
        other_factor,
        other_state,
        averaged_weights,
        evolution,
        gradients_read,
        updated_by_hand,
        updated_in_backward,
    ],
)
def test_a_program_that_only_looks_wasteful_is_left_alone(
    program: Callable[[Program], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    signals = counted(lambda run, fault: program(run), False, monkeypatch)
    assert {name for name, signal in signals.items() if signal.value >= 0.1} == set()


@pytest.mark.parametrize(
    ("ids", "ratio"),
    [
        ([[5, 3, 0, 0], [7, 0, 0, 0]], 5 / 8),
        ([[0, 0, 5, 3], [0, 0, 0, 7]], 5 / 8),
        ([[0, 0, 0, 0], [0, 0, 0, 0]], 0.0),  # the kinds of tokens of one text
        ([[5, 3, 2, 0], [7, 4, 6, 1]], 0.0),
        ([[5, 3, 1, 1], [7, 4, 6, 1]], 0.25),
        ([[1, 1, 1, 1, 5, 1, 1, 1, 1], [1, 1, 1, 1, 6, 1, 1, 1, 1]], 0.0),  # the walls of a map
        ([[3, 0, 4, 0, 0], [5, 2, 0, 0, 0], [0, 2, 7, 0, 1]], 0.0),  # columns that are often 0
    ],
)
def test_padding_is_a_run_of_one_id_at_an_end_of_rows(ids: list[list[int]], ratio: float) -> None:
    assert padded_ratio(torch.tensor(ids)) == pytest.approx(ratio)


def test_no_weak_reference_to_a_tensor_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.utils.swap_tensors refuses a tensor that has one."""
    monkeypatch.setattr(arithmetic, "has_compiled", lambda: False)
    model, x, counting = net(16, 8), torch.randn(4, 16), arithmetic.Arithmetic()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monkeypatch.setattr(watch, "optimizers", [])
    watched([optimizer])
    before = [weakref.getweakrefcount(each) for each in (x, *model.parameters())]
    assert counting.step_ended(4)
    run = Program(passes.state.counting)
    run.backward(run.call(model, x).sum())
    run.step(optimizer)
    for weight in model.parameters():
        torch.utils.swap_tensors(weight, nn.Parameter(weight.detach().clone()))  # type: ignore[no-untyped-call]
    held = [weakref.getweakrefcount(each) for each in (x, *model.parameters())]
    assert sum(held) > sum(before)
    assert not counting.step_ended(4) and counting.facts["flops_per_sample"]
    assert [weakref.getweakrefcount(each) for each in (x, *model.parameters())] == before
