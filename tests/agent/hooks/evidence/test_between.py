"""What the program does between two forward passes: functions of torch, or lines without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from gpuconsole.agent.hooks import recorder as recorder_module
from gpuconsole.agent.hooks.evidence import between as between_module
from gpuconsole.agent.hooks.evidence.between import LAST_RATIO, RATIO, BetweenPasses
from gpuconsole.agent.hooks.recorder import BACKWARD, FORWARD
from gpuconsole.agent.hooks.watch import recorder


class Clock:
    """The clocks of the gaps: time passes where a test says so, and by a microsecond at each reading. A busy machine changes nothing."""

    def __init__(self) -> None:
        self._wall_s = self._busy_s = 1.0

    def now(self) -> float:
        self._wall_s += 1e-6
        return self._wall_s

    def thread_time(self) -> float:
        return self._busy_s

    def compute(self, seconds: float = 0.001) -> None:
        self._wall_s += seconds
        self._busy_s += seconds

    def wait(self) -> None:
        self._wall_s += 0.001

    def multiply(self) -> None:
        """A function of torch that takes a millisecond: torch calls `product` for the element."""

        def product(element: float) -> float:
            self.compute()
            return element

        torch.ones(1).apply_(product)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(recorder_module, "now", clock.now)
    monkeypatch.setattr(between_module, "now", clock.now)
    monkeypatch.setattr(between_module, "time", SimpleNamespace(thread_time=clock.thread_time))
    return clock


@pytest.fixture(autouse=True)
def recording() -> Iterator[None]:
    recorder.begin([])
    yield
    recorder.reset()
    assert torch._C._len_torch_function_stack() == 0


def gaps(between: BetweenPasses, work: Callable[[], None], count: int = 5) -> None:
    """Passes with `work` between them, and a backward pass."""
    for _ in range(count + 1):
        recorder.enter(FORWARD)
        between.end()
        between.begin()
        recorder.leave()
        work()
    recorder.enter(BACKWARD)
    between.end()
    recorder.leave()


def test_lines_without_torch_and_functions_of_torch_are_told_apart(clock: Clock) -> None:
    python, products = BetweenPasses(), BetweenPasses()
    gaps(python, clock.compute)
    gaps(products, clock.multiply)
    assert python.facts()[RATIO] < 0.2 and python.facts()[LAST_RATIO] < 0.2
    assert products.facts() == {}, "work of the model"
    assert (len(python.gaps), len(python.last_gaps)) == (5, 1)
    assert all(gap.torch_s == pytest.approx(0.001, rel=0.1) and gap.rest_s == 0 for gap in products.gaps)


def test_python_between_the_parts_of_a_model_is_no_work_of_its_own(clock: Clock) -> None:
    between = BetweenPasses()
    gaps(between, lambda: clock.compute(0.0001))
    assert between.gaps and between.facts() == {}


def test_a_figure_in_python_after_the_only_pass_is_work_of_its_own_and_a_loss_of_many_functions_is_not(clock: Clock) -> None:
    figure, loss, waits = BetweenPasses(), BetweenPasses(), BetweenPasses()

    def many() -> None:
        for _ in range(500):
            clock.compute(4e-6)
            clock.multiply()

    for between, work in ((figure, clock.compute), (loss, many), (waits, clock.wait)):
        gaps(between, work, 0)
    assert figure.facts()[LAST_RATIO] < 0.2 and RATIO not in figure.facts()
    assert loss.facts() == {}
    assert waits.facts() == {}, "a thread that waits for a core looks like this"


def test_the_choice_of_an_action_between_policy_and_value_is_no_work_of_its_own(clock: Clock) -> None:
    """torch.distributions takes as long in Python as in torch's functions, in many short stretches."""
    between, logits = BetweenPasses(), torch.randn(8, 4)

    def choose() -> None:
        chances = torch.distributions.Categorical(logits=logits)
        for _ in range(40):
            clock.compute(8e-6)
            chances.log_prob(chances.sample()).exp().clamp(0.8, 1.2).mean()

    gaps(between, choose, 9)
    assert len(between.gaps) == 9 and between.facts() == {}


def test_a_gap_with_another_segment_in_it_is_not_counted() -> None:
    between = BetweenPasses()

    def backward() -> None:
        recorder.enter(BACKWARD)
        recorder.leave()

    gaps(between, backward)
    assert between.gaps == [] and between.facts() == {}


def test_a_backward_pass_begins_within_a_function_of_torch() -> None:
    """Torch takes the mode away while `Tensor.backward` runs, and puts it back after."""
    between, weight = BetweenPasses(), torch.ones(1, requires_grad=True)
    plain = torch.autograd.backward

    def backward(*args: Any, **kwargs: Any) -> None:
        recorder.enter(BACKWARD)
        between.end()
        plain(*args, **kwargs)
        recorder.leave()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.autograd, "backward", backward)
        for _ in range(2):
            recorder.enter(FORWARD)
            loss = 2 * weight
            between.begin()
            recorder.leave()
            loss.backward()
    assert between.gaps == [] and torch._C._len_torch_function_stack() == 1
    assert between.stop() and torch._C._len_torch_function_stack() == 0


class Doubling(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        return 2 * out if func is torch.ones else out


@pytest.mark.parametrize("mode", [lambda: torch.device("meta"), Doubling], ids=["device", "mode"])
@pytest.mark.parametrize("device", ["", "meta"])
def test_modes_that_the_program_enters_and_leaves_in_gaps_are_its_own(mode: Callable[[], Any], device: str) -> None:
    """In each order: a mode is left in the gap in which it was entered, or in a later one."""
    between = BetweenPasses()

    def told() -> tuple[str, Any]:
        made = torch.ones(1)
        return made.device.type, None if made.device.type == "meta" else made.item()

    def passes() -> None:
        recorder.enter(FORWARD)
        between.end()
        between.begin()
        recorder.leave()

    def program(works: Callable[[], None]) -> list[tuple[str, Any]]:
        seen = []
        if device:
            torch.set_default_device(device)
        try:
            for _ in range(2):
                works()
                with mode():
                    seen.append(told())
                    works()
                    seen.append(told())
                    with mode():
                        works()
                        seen.append(told())
                    seen.append(told())
                seen.append(told())
                works()
        finally:
            torch.set_default_device(None)
        return [*seen, told()]

    expected = program(lambda: None)
    assert program(passes) == expected
    between.stop()
