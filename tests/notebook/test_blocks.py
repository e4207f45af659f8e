"""Many blocks of `gpuconsole.watch()` in one process: what is left of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.listener import TOKEN, Listener
from tests.notebook.running import FIRST, start, told

pytestmark = pytest.mark.xdist_group("a job")

LEFT = (
    FIRST
    + """
import gc, os, threading
from types import ModuleType

def of_agent(candidate):
    kind = type(candidate)
    name = candidate.__name__ if kind is ModuleType else kind.__module__
    return isinstance(name, str) and name.startswith("gpuconsole.agent.hooks")

def left():
    gc.collect()
    objects = {}
    for candidate in gc.get_objects():
        if of_agent(candidate):
            name = candidate.__name__ if type(candidate) is ModuleType else type(candidate).__name__
            objects[name] = objects.get(name, 0) + 1
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "callbacks": len(gc.callbacks),
        "threads": threading.active_count(),
        "modules": len(sys.modules),
        "agent": objects,
    }
"""
)


def test_agents_that_have_left_hold_nothing(tmp_path: Path) -> None:
    """The agent without a console process, which takes most of the time of a block."""
    listener = Listener(tmp_path)
    code = f"""
        from gpuconsole.mcp.messages import Joined
        from gpuconsole.notebook.here import Agent

        def block(steps):
            agent = Agent(Joined({str(listener.folder.path)!r}, {TOKEN!r}))
            train(steps)
            agent.leave(None)

        block(22)
        first = left()
        for steps in (2, 2, 2, 2, 2, 22):
            block(steps)
        tell(first=first, last=left())
    """
    with start(tmp_path, code, first=LEFT) as program:
        out, err = program.communicate(timeout=120)
    listener.close()
    assert program.returncode == 0, err
    facts = told(out)
    assert [bool(watched.steps) for watched in listener.watched] == [True] * 7
    assert facts["last"] == facts["first"]
    assert facts["last"]["agent"] == {}
