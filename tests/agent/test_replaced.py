"""Which names of torch, of libraries and of the program hold something of the agent while a job is
watched."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.agent.listener import Listener

PROGRAM = Path(__file__).parent / "programs" / "replaced.py"
BEFORE_MONITORING = {
    "torch.autograd.graph._register_logging_hooks_on_whole_graph",
    "torch.autograd.graph.log",
    "torch.utils.data.dataloader._BaseDataLoaderIter._profile_name",
}
"""The names that Python 3.11 needs, which has no sys.monitoring."""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_watched_job_has_no_name_replaced(tmp_path: Path) -> None:
    listener = Listener(tmp_path)
    done = listener.run(sys.executable, str(PROGRAM))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    print(done.stdout)
    (watched,) = listener.watched
    assert watched.off is None and len(watched.steps) >= 470
    assert set(found["names"]) <= (BEFORE_MONITORING if sys.version_info < (3, 12) else set())
    assert found["objects"] == []
