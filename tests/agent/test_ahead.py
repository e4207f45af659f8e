"""A change of the DataLoader's workers asks first. With the permission, no sample is lost, repeated or moved, and the label says what may differ."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpuconsole.model.job import EFFECT, MAY_DIFFER
from gpuconsole.wire.events import KnobsSet, SetKnobs
from tests.agent.listener import Listener

PROGRAM = Path(__file__).parent / "programs" / "ahead.py"
NAMES = ("list", "settings", "teacher", "cache", "objects", "endless", "file", "replay", "random", "connection", "broken", "counter")


def changed(name: str, folder: Path, *, allowed: bool) -> tuple[list[str], KnobsSet, str]:
    """What the program prints where its workers are to change, the answer, and the effect of the change."""
    folder.mkdir()
    listener = Listener(folder, [(20, SetKnobs(1, {"num_workers": 2}, 1, loader=allowed))])
    done = listener.run(sys.executable, str(PROGRAM), name, str(folder))
    assert done.returncode == 0 and not done.stderr, done.stderr
    (watched,) = listener.watched
    (answer,) = [event for event in watched.events if isinstance(event, KnobsSet)]
    return done.stdout.splitlines(), answer, watched.started.notes[f"{EFFECT}num_workers"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_loop_that_changes_what_is_loaded_ahead(name: str, tmp_path: Path) -> None:
    alone = subprocess.run([sys.executable, PROGRAM, name, tmp_path], capture_output=True, text=True, check=True).stdout.splitlines()
    printed, answer, effect = changed(name, tmp_path / "asked", allowed=False)
    assert printed == alone and effect == MAY_DIFFER
    assert answer.error is not None and "--allow-loader" in answer.error and answer.knobs["num_workers"] == 0
    printed, answer, effect = changed(name, tmp_path / "allowed", allowed=True)
    assert printed[0] == alone[0] and effect == MAY_DIFFER
    if name == "connection":  # a process would get answers to another one's questions
        assert answer.error is not None and "socket" in answer.error and printed == alone
    else:
        assert answer.error is None and answer.knobs["num_workers"] == 2
