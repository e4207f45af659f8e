"""What Python 3.11 has in place of sys.monitoring: registered functions and two names, which
programs may write out and compile."""

from __future__ import annotations

import logging
import pickle
import sys
from types import FrameType
from typing import Any

import pytest

from gpuconsole.agent.hooks.borders.older import Level, StepHook

torch = pytest.importorskip("torch")


def test_a_pickled_function_of_steps_does_nothing_and_a_pickled_logger_is_the_programs() -> None:
    def act(optimizer: Any, frame: FrameType) -> None:
        raise AssertionError

    again = pickle.loads(pickle.dumps(StepHook(torch, act)))
    assert again(None, (), {}) is None
    logger = logging.getLogger("torch.autograd.graph")
    assert pickle.loads(pickle.dumps(Level(logger, None))) is logger


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="newer versions have sys.monitoring")
def test_a_compiled_step_calls_no_function_of_the_agent_and_has_one_graph() -> None:
    called = []
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight])
    hook = StepHook(torch, lambda optimizer, frame: called.append(frame.f_code.co_name))
    handle = optimizer.register_step_pre_hook(hook)
    weight.grad = torch.ones(2)
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch.compile(lambda: optimizer.step(), backend=backend)()
    assert (len(graphs), called) == (1, [])
    handle.remove()
