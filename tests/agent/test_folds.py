"""Programs that make the same objects again and again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.agent.listener import Listener

PROGRAM = Path(__file__).parent / "programs" / "folds.py"


@pytest.mark.slow
def test_the_agent_holds_little_of_a_program_that_makes_thousands_of_optimizers(
    tmp_path: Path,
) -> None:
    listener = Listener(tmp_path)
    done = listener.run(sys.executable, str(PROGRAM))
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["ratio"] < 3
    assert facts["held"]["optimizers"] <= 4 and facts["held"]["iterators"] <= 4
    assert facts["held"]["keys"] <= 64 and facts["held"]["stepped"] <= 2
    assert facts["off"] == {"noted": 0, "callbacks": -1, "files": facts["off"]["files"]}
    assert facts["off"]["files"] <= -3, (
        "the socket, the doorbell and the memory of the process; most kernels have the times of"
        " threads, too"
    )
    assert listener.watched[0].steps and listener.watched[0].off is None
