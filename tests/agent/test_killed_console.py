"""The console is killed while it changes the job."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpuconsole.wire.events import SetKnobs
from tests.agent.listener import Listener

PROGRAM = Path(__file__).parent / "programs" / "who_loads.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arms", "at_end"),
    [
        pytest.param((1, 2), "0", id="in a trial"),
        pytest.param(
            (1, 2, 1), "0", id="in a trial, on the side without the change", marks=pytest.mark.slow
        ),
        pytest.param((1, 2, 0), "1", id="after the change was kept", marks=pytest.mark.slow),
    ],
)
def test_the_job_goes_on_with_the_settings_before_the_trial_and_keeps_what_was_kept(
    tmp_path: Path, arms: tuple[int, ...], at_end: str
) -> None:
    workers = {0: 2, 1: 0, 2: 2}
    asks = [
        (40 + 20 * n, SetKnobs(n + 1, {"num_workers": workers[arm]}, arm, loader=True))
        for n, arm in enumerate(arms)
    ]
    listener = Listener(tmp_path, asks, leaves=True)
    done = listener.run(sys.executable, str(PROGRAM), "300")
    loaded_by_worker = done.stdout.strip()
    assert (done.returncode, len(loaded_by_worker)) == (0, 301), done.stderr
    assert (
        loaded_by_worker.startswith("0" * 40)
        and loaded_by_worker.endswith(at_end * 50)
        and "1" in loaded_by_worker
    ), loaded_by_worker
