"""Many blocks of `gpuconsole.watch()` in one process: nothing is left of them. `test_watch.py` has
two blocks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.listener import TOKEN, Listener
from tests.notebook.running import run

pytestmark = [pytest.mark.xdist_group("a job"), pytest.mark.slow]


def test_agents_that_have_left_hold_nothing(tmp_path: Path) -> None:
    """No process of a console is started here, because its start takes most of the time of a
    block."""
    listener = Listener(tmp_path)
    code = f"""
        from left import left
        from gpuconsole.mcp.messages import Joined
        from gpuconsole.notebook.here import BlockAgent

        def block(steps):
            agent = BlockAgent(Joined({str(listener.folder.path)!r}, {TOKEN!r}))
            train(steps)
            agent.leave(None)

        block(22)
        first = left()
        for _ in range(18):
            block(2)
        block(22)
        tell(first=first, last=left())
    """
    try:
        facts, _ = run(tmp_path, code)
    finally:
        listener.close()
    assert [bool(watched.steps) for watched in listener.watched] == [True] * 20
    assert facts["last"] == facts["first"] and facts["last"]["agent"] == {}


def test_blocks_hold_nothing_where_the_program_keeps_their_sessions(tmp_path: Path) -> None:
    facts, _ = run(
        tmp_path,
        """
        from left import left
        sessions = []
        def block():
            with gpuconsole.watch(quiet=True) as session:
                train(3)
            sessions.append(session)
        block()
        first = left()
        for _ in range(3):
            block()
        tell(first=first, last=left(), states=[session.status.state for session in sessions])
        """,
    )
    assert facts["states"] == ["finished"] * 4
    assert facts["last"] == facts["first"] and facts["last"]["agent"] == {}
