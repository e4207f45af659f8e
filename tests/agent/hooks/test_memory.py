"""What the agent keeps of an error of memory: its place and its pass, and no tensor."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from gpuconsole.agent.hooks import memory as hook
from gpuconsole.agent.hooks.evidence.observed import memory_parts, state
from gpuconsole.agent.hooks.evidence.observed import peaks as memory_peaks
from gpuconsole.agent.hooks.memory import (
    OwnedMemory,
    begin_emptying,
    memory,
    place_of,
    raised,
    tensors_of_program,
)
from gpuconsole.agent.hooks.watch import watch

MESSAGE = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB of"
    " which 1.00 GiB is free."
)


class Fails(nn.Module):
    """Its forward pass raises the error, with a large tensor in the frame."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = x + self.weight
        held.append(weakref.ref(kept))
        raise torch.OutOfMemoryError(MESSAGE)

    def _apply(self, *_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError(MESSAGE)


class FailsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        raise torch.OutOfMemoryError(MESSAGE)


held: list[weakref.ref[torch.Tensor]] = []


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """The reports of failures. Without a GPU there are no figures of an allocator."""
    reports: list[dict[str, Any]] = []
    monkeypatch.setattr(hook, "_read", lambda text: {"device": "cuda:0", "peak_bytes": 1.0})
    memory.reset()
    memory.send = reports.append
    yield reports
    memory.send = None
    memory.reset()


def forward() -> None:
    Fails()(torch.zeros(4))


def backward() -> None:
    FailsInBackward.apply(torch.zeros(4, requires_grad=True)).sum().backward()


def move() -> None:
    nn.Module.to(Fails(), "cpu")


def elsewhere() -> None:
    raise torch.OutOfMemoryError(MESSAGE)


@pytest.mark.parametrize(
    ("work", "phase"),
    [(forward, "forward"), (backward, "backward"), (move, "move"), (elsewhere, "other")],
)
def test_the_pass_is_known_from_the_traceback(
    work: Callable[[], None], phase: str, sent: list[dict[str, Any]]
) -> None:
    with pytest.raises(torch.OutOfMemoryError) as caught:
        work()
    raised(caught.value)
    assert memory.off == ""
    (report,) = sent
    assert report["phase"] == phase
    assert report["file"] == str(Path(__file__))
    assert report["function"].rpartition(".")[2] in (work.__name__, "forward", "backward", "_apply")
    raised(caught.value)
    assert len(sent) == 1, "an error that passes several hooks is reported once"


def test_without_a_line_of_the_program_in_the_traceback_the_caller_counts() -> None:
    assert place_of(RuntimeError("CUDA out of memory"), sys._getframe()).function.startswith(
        "test_without_a_line"
    )


def test_no_tensor_of_the_traceback_lives_on(sent: list[dict[str, Any]]) -> None:
    held.clear()
    try:
        forward()
    except torch.OutOfMemoryError as problem:
        raised(problem)
        assert held[0]() is not None, "the traceback holds it"
    gc.collect()
    assert len(sent) == 1 and held[0]() is None


def test_a_program_that_frees_the_cache_while_it_handles_the_error_is_seen(
    sent: list[dict[str, Any]],
) -> None:
    here = sys._getframe()
    assert not begin_emptying(here) and not sent
    try:
        forward()
    except torch.OutOfMemoryError:
        begin_emptying(here)
    assert [report["phase"] for report in sent] == ["forward"]


def test_other_errors_are_none_of_ours(sent: list[dict[str, Any]]) -> None:
    raised(RuntimeError("shapes cannot be multiplied"))
    raised(ValueError("CUDA out of memory"))
    assert not sent


def test_a_failure_of_the_explanation_reaches_nobody(
    sent: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(text: str) -> dict[str, Any]:
        raise KeyError("broken by the test")

    monkeypatch.setattr(hook, "_read", broken)
    raised(torch.OutOfMemoryError(MESSAGE))
    raised(torch.OutOfMemoryError(MESSAGE + "again"))
    assert not sent and memory.off == "KeyError: 'broken by the test'"


def test_counters_that_cannot_be_read_end_the_readings_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(index: int) -> hook.OwnerCounts:
        raise RuntimeError("broken by the test")

    own = OwnedMemory()
    monkeypatch.setattr(hook, "counted", broken)
    assert own.due(1.0)
    assert own.owners(0) == {} and own.off == "RuntimeError: broken by the test"
    assert not own.due(1e9)


def test_gradients_of_an_embedding_may_be_sparse(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Embedding(100, 4, sparse=True)
    model(torch.tensor([1, 2])).sum().backward()
    optimizer = torch.optim.SparseAdam(model.parameters())
    monkeypatch.setattr(watch, "optimizers", [weakref.ref(optimizer)])
    tensors = tensors_of_program([model])
    assert (tensors.parameters, tensors.trained, tensors.elements) == (1600.0, 1600.0, 400)
    assert tensors.gradients == 1600.0


def test_nobody_looks_at_every_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at every object makes `tuple(generator)` of another thread fail, and stalls a step for
    seconds."""
    optimizer = torch.optim.SGD(nn.Linear(4, 4).parameters())
    # the whole step is one compiled function: no call of a module is seen
    monkeypatch.setattr(watch, "roots", [])
    monkeypatch.setattr(watch, "optimizers", [weakref.ref(optimizer)])
    monkeypatch.delattr(gc, "get_objects")
    assert memory_parts()["memory.parameters_bytes"].value == 80.0
    assert hook._read("CUDA out of memory")["parameters_bytes"] == 0.0, (
        "a failure before the first pass of a model"
    )


def test_a_peak_of_a_failed_attempt_says_nothing_about_later_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = OwnedMemory()
    peak = [8.0]
    monkeypatch.setattr(
        hook, "counted", lambda index: hook.OwnerCounts(2.0, peak[0], 9.0, 0.0, 1.0, 12.0)
    )
    monkeypatch.setattr(
        hook, "tensors_of_program", lambda roots, index=None: hook.Tensors(1.0, 1.0, 1, 0.0, 2.0)
    )
    assert own.sample(0)["activations"] == 4.0 and own.step_peak == 8.0
    own._failed_peak, own.step_peak = 10.0, 0.0
    peak[0] = 10.0
    assert own.sample(0) == {
        "parameters": 1.0,
        "gradients": 1.0,
        "optimizer": 2.0,
        "others": 2.0,
        "kept": 0.0,
        "total": 12.0,
        "unknown": 5.0,
    }
    assert own.step_peak == 0.0


def test_the_peaks_are_known_again_later_and_not_those_of_a_failed_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They were read once, after about 20 steps: fragments and activations grow later."""
    own, peaks = OwnedMemory(), [(8.0, 9.0)]
    monkeypatch.setattr(
        hook,
        "counted",
        lambda index: hook.OwnerCounts(2.0, peaks[0][0], 3.0, 1.0, 5.0, 12.0, peaks[0][1], 2.0),
    )
    monkeypatch.setattr(
        hook, "tensors_of_program", lambda roots, index=None: hook.Tensors(1.0, 1.0, 1, 0.0, 2.0)
    )
    own.owners(0)
    peaks[0] = (10.0, 20.0)
    own.owners(0)
    assert own.figures is not None
    assert not own.peak_failed
    signals = memory_peaks(own.figures, own.states) | state(own.figures)
    assert {name: signal.value for name, signal in signals.items()} == {
        "memory.activations_bytes": 6.0,
        "memory.allocated_peak_bytes": 10.0,
        "memory.reserved_peak_bytes": 20.0,
        "memory.limit_bytes": 12.0,
        "memory.others_bytes": 4.0,
        "memory.inactive_split_bytes": 1.0,
        "memory.alloc_retries": 2.0,
    }
    own._failed_peak = 10.0
    own.owners(0)
    assert own.peak_failed
    assert state(own.figures)["memory.alloc_retries"].value == 2.0


@pytest.mark.parametrize(("place", "peak"), [("cpu", 0.0), ("cuda:1", 7e9)])
def test_the_peak_of_the_passes_before_the_first_update_is_kept(
    place: str, peak: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        torch.cuda, "max_memory_allocated", {torch.device("cuda:1"): 7e9}.__getitem__
    )
    seen = OwnedMemory()
    optimizer = SimpleNamespace(
        param_groups=[{"params": [SimpleNamespace(device=torch.device(place))]}]
    )
    seen.first_update(optimizer)
    assert (seen.pass_peak, seen.off) == (peak, "")


def test_peaks_that_fall_were_reset_by_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.cuda.reset_peak_memory_stats, as torchtitan calls it at each log."""
    peaks = iter((8, 8, 9, 3, 3))

    def stats(index: int) -> dict[str, Any]:
        kinds = ("allocated_bytes", "reserved_bytes", "inactive_split_bytes")
        values = {"all": {"current": 2, "peak": next(peaks)}}
        return {**dict.fromkeys(kinds, values), "num_alloc_retries": 1}

    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", stats)
    monkeypatch.setattr(hook, "free_and_total", lambda index: (5.0, 12.0))
    monkeypatch.setattr(hook, "_highest", {})
    seen = [hook.counted(0) for _ in range(5)]
    assert [figures.was_reset for figures in seen] == [False, False, False, True, True]
    assert "memory.peaks_reset" in state(seen[-1])
    assert state(seen[0])["memory.alloc_retries"].value == 1
