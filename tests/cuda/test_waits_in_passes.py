"""A job that waits for the GPU within its passes, in ways that no method of a tensor shows:
torch.tensor(number, device="cuda"), a mask, a copy of a module's own. The agent counts the waits
and names their line, so no rule takes a host that waits for a host that is slow."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpuconsole.model.finding import CodePlace
from gpuconsole.wire.events import ProbeDone
from tests.agent.listener import Listener
from tests.cuda.conftest import Machines

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).parent / "programs" / "waiting.py"
BLOCKS = 8


@pytest.mark.parametrize(
    ("way", "waits"), [("number", BLOCKS), ("mask", BLOCKS), ("copy", BLOCKS), ("none", 0)]
)
def test_waits_within_the_passes_are_counted_with_their_line(
    way: str, waits: int, simulated: Machines, tmp_path: Path
) -> None:
    machine, listener = simulated("card l4", "values none"), Listener(tmp_path)
    done = listener.run(
        sys.executable,
        str(PROGRAM),
        way,
        "300",
        environment=machine.environment(watch_syncs=True, OMP_NUM_THREADS="1"),
        cwd=tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")
    signals = {
        name: signal
        for event in listener.watched[0].events
        if isinstance(event, ProbeDone)
        for name, signal in event.signals.items()
    }
    assert signals["sync.calls"].value == waits
    if waits:
        line = next(
            number
            for number, text in enumerate(PROGRAM.read_text().splitlines(), 1)
            if text.strip().startswith(f'"{way}": ')
        )
        assert signals["sync.wait_s"].place == CodePlace(f"waiting.py:{line}")
        step_s = sum(step.wall_s for step in listener.watched[0].steps) / len(
            listener.watched[0].steps
        )
        assert 0 < signals["sync.wait_s"].value <= 10 * step_s  # of one step, not of all
