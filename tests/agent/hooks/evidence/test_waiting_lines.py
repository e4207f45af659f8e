"""Lines of the program that wait for the GPU, as a profiler window marks them."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from gpuconsole.agent.hooks.evidence import probes
from gpuconsole.agent.hooks.evidence.probes import LINE, WAITING, WaitingLines, may_wait
from gpuconsole.agent.hooks.watch import recorder
from gpuconsole.workloads.profiling.trace import read_trace

HOST, GPU = (SimpleNamespace(device=torch.device(kind), data_ptr=0) for kind in ("cpu", "cuda"))


@pytest.mark.parametrize(
    ("name", "tensor", "args", "kwargs", "waits"),
    [
        ("item", GPU, (), {}, True),
        ("item", HOST, (), {}, False),
        ("__bool__", GPU, (), {}, True),
        ("cpu", GPU, (), {}, True),
        ("cuda", HOST, (), {}, True),
        ("cuda", GPU, (), {}, False),
        ("to", GPU, ("cpu",), {}, True),
        ("to", GPU, (torch.float16,), {}, False),
        ("to", GPU, (), {"device": torch.device("cpu")}, True),
        ("to", HOST, (GPU,), {}, True),
        ("to", HOST, ("cuda:1",), {}, True),
        ("to", HOST, (), {"dtype": torch.float16}, False),
        ("copy_", GPU, (HOST,), {}, True),
        ("copy_", GPU, (GPU,), {}, False),
        ("__getitem__", GPU, (GPU,), {}, True),
        ("__getitem__", GPU, ((slice(None), GPU),), {}, True),
        ("__getitem__", GPU, (3,), {}, False),
    ],
)
def test_calls_that_may_wait(name: str, tensor: Any, args: tuple[Any, ...], kwargs: dict[str, Any], waits: bool) -> None:
    assert may_wait(name, tensor, args, kwargs) == waits


def test_the_trace_has_the_line_and_torch_is_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "may_wait", lambda name, tensor, args, kwargs: name in ("item", "__bool__"))
    before = dict(torch.Tensor.__dict__)
    recorder.begin([])
    values = torch.arange(4.0)
    try:
        with profile(activities=[ProfilerActivity.CPU]) as window:
            lines = WaitingLines()
            assert torch.Tensor.__dict__.keys() - before.keys() == {name for name in WAITING if name not in before}
            first = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
            total = values.sum().item()
            positive = bool(values[1:].min() > 0)
            lines.stop()
    finally:
        recorder.reset()
    assert (total, positive) == (6.0, True)
    assert dict(torch.Tensor.__dict__) == before
    window.export_chrome_trace(str(tmp_path / "trace.json"))
    marked = [event.name for event in read_trace(tmp_path / "trace.json") if event.name.startswith(LINE)]
    here = f"{LINE}{Path(__file__).name}"
    name = test_the_trace_has_the_line_and_torch_is_as_before.__name__
    assert marked == [f"{here}:{first} {name}", f"{here}:{first + 1} {name}"]
