"""Probes in a user's own job on a simulated card: what they measure, that they change nothing, and
that they give memory back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuconsole.wire.events import Command, ProbeDone, RunProbe, Steps
from tests.agent.listener import Listener, Watched
from tests.cuda.conftest import Machines

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parents[1] / "agent" / "programs" / "probed_on_gpu.py"
PROBES = ("cached_batch", "launch", "batch_elasticity")
AFTER = 25
"""The step after which the first probe is asked for: FLOPs and copies are counted before."""


def run(
    machine: Any, folder: Path, probes: tuple[str, ...], *numbers: int
) -> tuple[str, Watched | None, list[tuple[int, int, int]]]:
    """The output of the program, what its agent sent (None without probes: it runs alone), and
    after each step the bytes that are reserved and allocated, and the peak of the latter."""
    folder.mkdir()
    command = (sys.executable, str(PROGRAM), *map(str, numbers))
    env = machine.environment(OMP_NUM_THREADS="1", RESERVED=str(folder / "reserved.txt"))
    watched = None
    if probes:
        asks: list[tuple[int, Command]] = [
            (AFTER, RunProbe(number, name)) for number, name in enumerate(probes, 1)
        ]
        listener = Listener(folder, asks)
        done = listener.run(*command, environment=env, cwd=folder)
        (watched,) = listener.watched
    else:
        done = subprocess.run(
            command,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            cwd=folder,
            check=False,
            timeout=270,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    memory = [
        tuple(map(int, line.split())) for line in (folder / "reserved.txt").read_text().splitlines()
    ]
    return done.stdout, watched, memory  # type: ignore[return-value]


def answers(watched: Watched) -> dict[str, ProbeDone]:
    return {
        event.probe: event
        for event in watched.events
        if isinstance(event, ProbeDone) and event.request
    }


def test_probes_change_no_bit_and_give_their_memory_back(
    simulated: Machines, tmp_path: Path
) -> None:
    machine = simulated("card h100", "values cpu")
    alone, _, before = run(machine, tmp_path / "alone", (), 350, 32, 32)
    probed, watched, memory = run(machine, tmp_path / "probed", (*PROBES, "op_mix"), 350, 32, 32)
    assert watched is not None and watched.off is None
    done = answers(watched)
    assert done.pop("op_mix").error == "the simulated device has no CUPTI"
    assert {name: answer.error for name, answer in done.items()} == dict.fromkeys(PROBES)
    assert probed == alone
    signals = {name: signal for answer in done.values() for name, signal in answer.signals.items()}
    assert signals["probe.batch_factor"].value == 4
    assert 0 < signals["probe.pass_gpu_s"].value < 10 * signals["probe.pass_s"].value, (
        "a comparison of times belongs to benchmarks"
    )
    assert "probe.issue_s" in signals
    assert max(reserved for reserved, *_ in memory) == max(reserved for reserved, *_ in before), (
        "reserved by the allocator"
    )
    assert memory[-1][1] == before[-1][1], "allocated"
    peaks = [event.memory_bytes for event in watched.events if isinstance(event, Steps)]
    own = memory[AFTER][2]
    assert memory[-1][2] > own, (
        "the peak in the statistics of the program is that of a probe, because nobody restarts them"
    )
    assert max(peaks) == own, "the peak that the console shows is without the probes"


def test_a_batch_that_would_not_fit_twice_is_not_tried(simulated: Machines, tmp_path: Path) -> None:
    """Torch's allocator empties the program's cache before it gives up, so the attempt itself would
    slow the program down."""
    machine = simulated("card h100 memory=5.7e8", "values none")
    _, watched, memory = run(
        machine, tmp_path / "probed", ("cached_batch", "batch_elasticity"), 150, 1024, 128
    )
    assert watched is not None and watched.off is None
    done = answers(watched)
    assert done["cached_batch"].error is None
    assert done["batch_elasticity"].error is None
    assert {name: signal.value for name, signal in done["batch_elasticity"].signals.items()} == {
        "probe.batch_factor": 1.0
    }
    assert len({reserved for reserved, *_ in memory[AFTER:]}) == 1, (
        "the cache of the program was never emptied"
    )
