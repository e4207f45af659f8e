"""Runs training loops with stamps by hand under the agent, and compares its account with the
stamps."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from gpuconsole.model.run import PHASES
from tests.agent.listener import Listener, Watched

PROGRAMS = Path(__file__).parent / "programs"
SKIPPED = 8
"""As in programs/stamps.py."""
LOOPS = (
    "plain", "nanogpt", "accumulation", "gan", "lbfgs", "compiled_model", "compiled_step",
    "iterable", "ddp", "inline_batches", "prefetch_thread", "teacher", "forward_called",
    "within_backward", "own_gradients", "scaled", "checkpointed",
)  # fmt: skip
UNUSUAL = (
    "ppo",
    "dqn",
    "distilled",
    "muon_and_adam",
    "zipped",
    "dataclass_batch",
    "zeroed_before_backward",
)
"""Loops of programs/unusual.py that once were wrong."""
UNUSUAL_TOO = (
    "zeroed_after_batch",
    "scored_before_zeroing",
    "scored_before_backward",
    "images_in_list",
    "time_first",
    "evaluated_with_gradients",
    "trained_in_eval_mode",
)
"""More of them, for the slow tests."""
PARTS = ("reinforce", "matched", "contrastive", "generated", "averaged", "closures")
"""Loops with an environment between passes, a loss by hand, generation, work after the step, no
module, or passes within the optimizer's step."""
BY_SAMPLES = ("reinforce", "averaged")
"""Those of them whose time is divided by stack samples: they need some hundred steps."""
RIGHT_AT_ONCE = (
    "rate_limited", "own_optimizer", "engine", "several_roots", "two_towers", "checkpoint_call",
    "method_called", "rlhf", "last_group", "closure_sgd", "two_backwards", "growing",
    "own_generator",
)  # fmt: skip
"""The others: only benchmarks/own_job/truth.py runs them."""
FRAMEWORKS = {"hf_trainer": "transformers", "lightning": "lightning", "accelerate": "accelerate"}


class Ran(NamedTuple):
    """Loops that have run under the agent: their output, what the agents sent, and the stamps, by
    loop."""

    out: str
    watched: dict[str, Watched]
    stamps: dict[str, dict[str, object]]


def environment(folder: Path) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return {"STAMPS": str(folder), "PORT": str(free.getsockname()[1])}


def watched(folder: Path, *command: str, python: str = sys.executable) -> Ran:
    """Run a program under the agent. `python`: the Python of the program, which needs torch
    only."""
    listener = Listener(folder)
    done = listener.run(python, *command, environment=environment(folder / "stamps"), cwd=folder)
    assert done.returncode == 0, done.stderr
    stamps = {
        path.stem: json.loads(path.read_text()) for path in (folder / "stamps").glob("*.json")
    }
    return Ran(done.stdout, listener.by_script(), stamps)


def alone(folder: Path, *command: str, python: str = sys.executable) -> str:
    """The output of the same program without the agent."""
    env = {**os.environ, **environment(folder / "alone")}
    done = subprocess.run(
        [python, *command],
        capture_output=True,
        text=True,
        env=env,
        cwd=folder,
        check=True,
        timeout=270,
    )
    return done.stdout


def digests(out: str) -> list[str]:
    """The lines with the digests of losses and weights. Two ranks print theirs in any order."""
    return [line for line in out.splitlines() if " losses " in line or " weights " in line]


def differences(ran: Ran, loop: str) -> dict[str, float]:
    """The agent's share of each phase minus that of the stamps. Raises AssertionError where the
    agent is off or a step is missing."""
    # a loop alone goes by its script's name
    one, stamps = ran.watched.get(loop) or next(iter(ran.watched.values())), ran.stamps[loop]
    assert one.off is None, one.off
    assert [step.index for step in one.steps] == list(range(int(str(stamps["steps"]))))
    shares, by_hand = one.shares(SKIPPED), stamps["shares"]
    assert isinstance(by_hand, dict)
    return {phase: shares[phase] - by_hand.get(phase, 0.0) for phase in PHASES}
