"""The agent keeps no object of the program alive."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

FIRST = """
    import gc, weakref
    from gpuconsole.agent.hooks.guard import switch
    from gpuconsole.agent.hooks.watch import watch

    class Batch: ...

    batch = Batch()
    kept = weakref.ref(batch)
"""
PROGRAMS = {
    "the inputs that a probe waits for, once the agent is off": """
        from gpuconsole.agent.hooks import install
        install.begin("/nowhere", "")
        watch.keep_inputs, watch.last_inputs = True, (batch,)
        del batch
        switch.off("", None)
        assert not watch.keep_inputs
    """,
}


@pytest.mark.parametrize("what", PROGRAMS)
def test_the_agent_does_not_keep(what: str) -> None:
    program = textwrap.dedent(FIRST) + textwrap.dedent(PROGRAMS[what]) + "\nassert kept() is None\n"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
