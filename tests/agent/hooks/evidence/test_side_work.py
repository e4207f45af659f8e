"""The loader's processes, the starts of epochs, and functions that save or log, in a real
program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpuconsole.model.run import PHASES
from tests.agent.listener import Listener, Watched

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("side work")]  # one process makes the run

PROGRAM = Path(__file__).parents[2] / "programs" / "side_work.py"
EPOCHS, BATCHES = 3, 40  # an epoch of 2 s: the processes of an epoch are read at least twice


@pytest.fixture(scope="module")
def ran(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Watched, subprocess.CompletedProcess[str]]:
    listener = Listener(tmp_path_factory.mktemp("side-work"))
    done = listener.run(sys.executable, str(PROGRAM), str(EPOCHS))
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(" fsync\n")
    return listener.by_script()["side_work.py"], done


def test_the_loaders_processes_wait_and_each_epoch_starts_them(
    ran: tuple[Watched, subprocess.CompletedProcess[str]],
) -> None:
    counters = ran[0].last.counters
    assert counters["loader.restarts"] == EPOCHS - 1
    assert counters["loader.restart_s"] > 0 and counters["loader.sampler_s"] > 0
    assert counters["loader.here_s"] > 0
    assert counters["loader.workers_cpu_s"] < 0.5 * counters["loader.workers_s"]


def test_the_start_of_an_epoch_is_a_wait_for_data(
    ran: tuple[Watched, subprocess.CompletedProcess[str]],
) -> None:
    first = [step for step in ran[0].steps[BATCHES:] if step.index % BATCHES == 0]
    assert all(step.phases[PHASES.index("data_wait")] > 0.032 for step in first), (
        "eight samples of 4 ms"
    )
