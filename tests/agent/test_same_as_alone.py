"""Programs that look at themselves, and at what they call, run as without the agent: output, errors
and exit code are the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.listener import Listener, Watched

PROGRAMS = Path(__file__).parent / "programs" / "innocent"


def same_as_alone(tmp_path: Path, name: str, *arguments: str) -> list[Watched]:
    """Run a program with and without the agent, and compare. Returns what the agents have sent."""
    command = (sys.executable, str(PROGRAMS / f"{name}.py"), *arguments)
    alone = subprocess.run(
        command, capture_output=True, text=True, env=dict(os.environ), check=False, timeout=270
    )
    listener = Listener(tmp_path)
    done = listener.run(*command)
    assert (done.returncode, done.stdout, done.stderr) == (
        alone.returncode,
        alone.stdout,
        alone.stderr,
    )
    assert alone.returncode == 0, alone.stderr
    return listener.watched


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "caller",
        "recursive",
        "reloaded",
        "descriptor",
        "introspected",
        "dictionaries",
        "odd_objects",
        "callers_of_logs",
        "observed_calls",
    ],
)
def test_a_program_that_looks_at_itself_runs_as_without_the_agent(
    name: str, tmp_path: Path
) -> None:
    (watched,) = same_as_alone(tmp_path, name)
    assert watched.off is None, watched.off
    assert len(watched.steps) >= 12


@pytest.mark.slow
def test_a_model_that_is_compiled_as_one_graph_trains_as_without_the_agent(tmp_path: Path) -> None:
    """No mode of torch's may be on where torch.compile works: torch leaves out what it would
    compile then, and raises an exception."""
    cases = ["function", "method", "blocks", "late"]
    watched = {one.first.script: one for one in same_as_alone(tmp_path, "fullgraph", *cases)}
    assert {case: (watched[case].off, len(watched[case].steps)) for case in cases} == dict.fromkeys(
        cases, (None, 60)
    )


@pytest.mark.slow
def test_an_exception_from_a_signal_or_another_thread_arrives(tmp_path: Path) -> None:
    cases = [f"{how}{off}" for how in ("signal", "once", "thread") for off in ("", "-off")]
    watched = {one.first.script: one for one in same_as_alone(tmp_path, "interrupted", *cases)}
    for case in cases:
        off = watched[case].off
        assert off is None, (case, off)
