"""A change of the DataLoader's workers asks first. With the permission, no sample is lost, repeated
or moved, and the label says what may differ."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpuconsole.model.job import EFFECT, FIXED, MAY_DIFFER
from gpuconsole.wire.events import KnobsSet, SetKnobs
from tests.agent.listener import Listener
from tests.matrix import matrix

PROGRAM = Path(__file__).parent / "programs" / "ahead.py"
NAMES = (
    "list",
    "settings",
    "teacher",
    "cache",
    "objects",
    "endless",
    "file",
    "replay",
    "random",
    "connection",
    "broken",
    "counter",
)


def changed(
    name: str, folder: Path, *, allowed: bool
) -> tuple[list[str], KnobsSet, dict[str, str]]:
    """What the program prints where its workers are to change, the answer, and what the agent says
    of the change before."""
    folder.mkdir()
    listener = Listener(folder, [(20, SetKnobs(1, {"num_workers": 2}, 1, loader=allowed))])
    done = listener.run(sys.executable, str(PROGRAM), name, str(folder))
    assert done.returncode == 0 and not done.stderr, done.stderr
    (watched,) = listener.watched
    (answer,) = [event for event in watched.events if isinstance(event, KnobsSet)]
    return done.stdout.splitlines(), answer, watched.started.notes


@pytest.mark.slow
@pytest.mark.parametrize("name", matrix(NAMES, ["list", "endless", "connection"]))
def test_a_loop_that_changes_what_is_loaded_ahead(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM), name, str(tmp_path)]
    alone = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    for allowed in (False, True):
        printed, answer, notes = changed(name, tmp_path / f"allowed {allowed}", allowed=allowed)
        assert answer.knobs["num_workers"] == (2 if allowed and name != "connection" else 0)
        if name == "connection":  # a process would get the answers to another one's questions
            assert (
                printed == alone
                and answer.error is not None
                and "socket" in answer.error
                and "socket" in notes[f"{FIXED}num_workers"]
            )
            continue
        assert notes[f"{EFFECT}num_workers"] == MAY_DIFFER
        if allowed:
            assert printed[0] == alone[0] and answer.error is None, (
                "no sample is lost, repeated or moved"
            )
        else:
            assert (
                printed == alone and answer.error is not None and "--allow-loader" in answer.error
            )
