"""What Python 3.11 has in place of sys.monitoring: registered functions and two names, which
programs may write out and compile."""

from __future__ import annotations

import logging
import pickle
import sys
from types import FrameType
from typing import Any

import pytest

from gpuconsole.agent.hooks import tracing
from gpuconsole.agent.hooks.borders.older import GraphHooks, Level, StepHook

torch = pytest.importorskip("torch")


def test_what_is_pickled_is_torchs_or_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def act(optimizer: Any, frame: FrameType) -> None:
        raise AssertionError

    again = pickle.loads(pickle.dumps(StepHook(act)))
    assert again(None, (), {}) is None
    logger = logging.getLogger("torch.autograd.graph")
    assert pickle.loads(pickle.dumps(Level(logger))) is logger
    graph = torch.autograd.graph
    plain = graph._register_logging_hooks_on_whole_graph
    hooks = GraphHooks(logger, plain)
    with monkeypatch.context() as replaced:
        replaced.setattr(graph, plain.__name__, hooks)
        pickled = pickle.dumps(hooks)
    assert pickle.loads(pickled) is plain


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="newer versions have sys.monitoring")
def test_a_compiled_step_calls_no_function_of_the_agent_and_has_one_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called = []
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight])
    monkeypatch.setattr(tracing, "is_compiling", torch.compiler.is_compiling)
    hook = StepHook(lambda optimizer, frame: called.append(frame.f_code.co_name))
    handle = optimizer.register_step_pre_hook(hook)
    weight.grad = torch.ones(2)
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch.compile(lambda: optimizer.step(), backend=backend)()
    assert (len(graphs), called) == (1, [])
    handle.remove()
