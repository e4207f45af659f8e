"""Which losses the agent reads."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.agent.listener import Listener

PROGRAMS = Path(__file__).parents[1] / "programs"


@pytest.mark.slow
def test_a_loss_whose_value_takes_an_exchange_is_left_alone(tmp_path: Path) -> None:
    listener = Listener(tmp_path)
    done = listener.run(sys.executable, str(PROGRAMS / "sharded_loss.py"))
    assert (done.returncode, done.stdout) == (0, "DTensor 0 ['Partial']\n"), done.stderr[-2000:]
    (watched,) = listener.watched
    assert watched.off is None and len(watched.steps) == 60
    assert all(step.loss is None for step in watched.steps)
