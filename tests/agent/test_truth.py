"""The agent's account of foreign loops agrees with stamps by hand: each phase within 2 points, the number of steps exactly."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from gpuconsole.model.run import PHASES
from tests.agent.listener import Listener, Watched

pytestmark = pytest.mark.xdist_group("loops with stamps")

PROGRAMS = Path(__file__).parent / "programs"
SKIPPED = 8
"""As in programs/stamps.py."""
POINTS = 0.02
WITHIN_BACKWARD = 0.06
"""An optimizer that steps within backward: the time of `Optimizer.step` outside torch's hooks (10 to 30 µs for each parameter) counts as backward."""
LOOPS = (
    "plain", "nanogpt", "accumulation", "gan", "lbfgs", "compiled_model", "compiled_step", "iterable", "ddp",
    "inline_batches", "prefetch_thread", "teacher", "forward_called", "within_backward",
)  # fmt: skip
STEPS, MORE_STEPS = 60, 200
FRAMEWORKS = {"hf_trainer": "transformers", "lightning": "lightning", "accelerate": "accelerate"}


class Ran(NamedTuple):
    """Loops that have run under the agent: their output, what the agents sent, and the stamps, by loop."""

    out: str
    watched: dict[str, Watched]
    stamps: dict[str, dict[str, object]]


def environment(folder: Path) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return {"STAMPS": str(folder), "PORT": str(free.getsockname()[1])}


def watched(folder: Path, *command: str) -> Ran:
    listener = Listener(folder)
    done = listener.run(sys.executable, *command, environment=environment(folder / "stamps"), cwd=folder)
    assert done.returncode == 0, done.stderr
    stamps = {path.stem: json.loads(path.read_text()) for path in (folder / "stamps").glob("*.json")}
    return Ran(done.stdout, listener.by_script(), stamps)


def alone(folder: Path, *command: str) -> str:
    env = {**os.environ, **environment(folder / "alone")}
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=env, cwd=folder, check=True, timeout=150)
    return done.stdout


def digests(out: str) -> list[str]:
    """The lines with the digests of losses and weights. Two ranks print theirs in any order."""
    return [line for line in out.splitlines() if " losses " in line or " weights " in line]


def differences(ran: Ran, loop: str) -> dict[str, float]:
    """Points by which phases differ from the stamps, where by more than allowed. The number of steps must agree exactly."""
    one, stamps = ran.watched[loop], ran.stamps[loop]
    assert one.off is None
    assert [step.index for step in one.steps] == list(range(int(str(stamps["steps"]))))
    shares, by_hand = one.shares(SKIPPED), stamps["shares"]
    assert isinstance(by_hand, dict)
    found = {phase: shares[phase] - by_hand.get(phase, 0.0) for phase in PHASES}
    return {phase: round(by, 3) for phase, by in found.items() if abs(by) > (WITHIN_BACKWARD if loop == "within_backward" else POINTS)}


@pytest.fixture(scope="module")
def loops(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return watched(tmp_path_factory.mktemp("loops"), str(PROGRAMS / "loops.py"), "fork", str(STEPS), *LOOPS)


@pytest.mark.parametrize("loop", [*(loop for loop in LOOPS if loop != "ddp"), "ddp0", "ddp1"])
def test_phases_agree_with_stamps_by_hand(loops: Ran, loop: str, tmp_path: Path) -> None:
    if differences(loops, loop):  # a short run on a busy machine: a longer one decides
        loops = watched(tmp_path, str(PROGRAMS / "loops.py"), "fork", str(MORE_STEPS), loop.rstrip("01"))
    assert differences(loops, loop) == {}


def test_losses_and_weights_are_bit_for_bit_the_same(loops: Ran, tmp_path: Path) -> None:
    out = alone(tmp_path, str(PROGRAMS / "loops.py"), "fork", str(STEPS), *LOOPS)
    assert sorted(digests(loops.out)) == sorted(digests(out)) and len(digests(out)) == 2 * (len(LOOPS) + 1)


@pytest.mark.parametrize("loop", FRAMEWORKS)
def test_frameworks_agree_with_stamps_by_hand(loop: str, tmp_path: Path) -> None:
    pytest.importorskip(FRAMEWORKS[loop])
    (tmp_path / "short").mkdir()
    ran = watched(tmp_path / "short", str(PROGRAMS / "frameworks.py"), loop, "80")
    if differences(ran, loop):
        (tmp_path / "long").mkdir()
        ran = watched(tmp_path / "long", str(PROGRAMS / "frameworks.py"), loop, str(MORE_STEPS))
        assert differences(ran, loop) == {}
