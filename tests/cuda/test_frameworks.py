"""Loops of libraries on simulated cards: the same output and weights as without the agent, and
phases as the device's own events show them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.listener import Listener, Watched
from tests.cuda.conftest import Machines
from tests.matrix import matrix

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "programs" / "frameworks.py"
STEPS, SKIPPED = 120, 40
POINTS = 0.03
NEEDS = {
    "hf_trainer": ("transformers", "accelerate"),
    "lightning": ("lightning",),
    "accelerate": ("accelerate",),
}


LOOPS = [
    (card, loop)
    for card in ("h100", "l4", "rtx4090")
    for loop in ("plain", "hf_trainer", "lightning", "accelerate", "ranks")
]
IN_CI = [("l4", "plain"), ("h100", "hf_trainer"), ("h100", "lightning"), ("h100", "accelerate")]
"""Two ranks on two cards are in test_exchanging.py too."""


@pytest.mark.rates
@pytest.mark.parametrize(("card", "loop"), matrix(LOOPS, in_ci=IN_CI))
def test_a_loop_of_a_library_is_timed_right_and_left_alone(
    simulated: Machines, tmp_path: Path, card: str, loop: str
) -> None:
    missing = [name for name in NEEDS.get(loop, ()) if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"pip install {' '.join(missing)}")
    cards = [f"card {card}"] * (2 if loop == "ranks" else 1)
    machine = simulated(*cards, "values cpu", f"slowdown {10 if loop == 'ranks' else 200}")
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node=2"] if loop == "ranks" else []
    command = (sys.executable, *launcher, str(PROGRAM), loop)
    outputs = {}
    for agent in (False, True):
        folder = tmp_path / ("watched" if agent else "alone")
        folder.mkdir()
        env = machine.environment(OMP_NUM_THREADS="1", STAMPS=str(folder / "stamps"))
        if agent:
            listener = Listener(folder)
            done = listener.run(*command, environment=env, cwd=folder)
        else:
            done = subprocess.run(
                command,
                env=env,
                capture_output=True,
                text=True,
                cwd=folder,
                check=False,
                timeout=200,
            )
        assert done.returncode == 0, done.stderr[-3000:]
        outputs[agent] = sorted(line for line in done.stdout.splitlines() if "_runtime" not in line)
    assert outputs[True] == outputs[False]
    training = [watched for watched in listener.watched if watched.steps]
    assert len(training) == len(cards)
    for watched in training:
        assert watched.off is None, watched.off
        assert len(watched.steps) == STEPS
        stamps = json.loads((tmp_path / "watched" / f"stamps.{watched.first.rank}").read_text())
        shares = grouped(watched)
        differences = {name: round(shares[name] - stamps[name], 3) for name in shares}
        assert max(map(abs, differences.values())) <= POINTS, (differences, stamps)


def grouped(watched: Watched) -> dict[str, float]:
    """The shares of the phases as the program measures them."""
    shares = watched.shares(SKIPPED)
    passes, optimizer = (
        sum(shares[name] for name in ("forward", "loss", "backward", "comm")),
        shares["optimizer"],
    )
    return {"passes": passes, "optimizer": optimizer, "rest": 1 - passes - optimizer}
