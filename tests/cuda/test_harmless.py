"""The agent harms no job on a GPU: the same output, memory and exit code as without it, on the
simulated device, which behaves as CUDA does after a fork, while a graph is captured, and with
several devices."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpuconsole.wire.events import KnobsSet, Note, SetKnobs
from tests.agent.listener import Listener, Watched
from tests.cuda.conftest import Machines
from tests.fakes.cuda.machine import SimulatedMachine

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "programs" / "jobs.py"


def run(
    machine: SimulatedMachine,
    tmp_path: Path,
    kind: str,
    *asks: tuple[int, SetKnobs],
    **environment: str,
) -> Watched:
    """Run a job alone and under the agent, and compare. Returns what the agent sent."""
    command = (sys.executable, str(PROGRAM), kind)
    env = machine.environment(OMP_NUM_THREADS="1", **environment)
    alone = subprocess.run(
        command, env=env, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=270
    )
    assert alone.returncode == 0, alone.stderr[-3000:]
    listener = Listener(tmp_path, asks)
    watched = listener.run(*command, environment=env, cwd=tmp_path)
    assert (watched.returncode, watched.stdout, watched.stderr) == (
        alone.returncode,
        alone.stdout,
        alone.stderr,
    )
    (training,) = listener.by_script().values()
    assert training.off is None, training.off
    return training


def test_workers_that_are_forked_at_each_epoch_live(simulated: Machines, tmp_path: Path) -> None:
    training = run(simulated("card h100", "values cpu"), tmp_path, "epochs")
    assert len(training.steps) == 80


def test_workers_that_a_change_forks_while_steps_are_under_way_live(
    simulated: Machines, tmp_path: Path
) -> None:
    training = run(
        simulated("card h100", "values cpu"),
        tmp_path,
        "long_epochs",
        (100, SetKnobs(1, {"num_workers": 3}, loader=True)),
    )
    (answer,) = [event for event in training.events if isinstance(event, KnobsSet)]
    assert answer.error is None and answer.knobs["num_workers"] == 3


def test_a_model_on_the_second_gpu_is_timed_there_and_touches_no_other(
    simulated: Machines, tmp_path: Path
) -> None:
    machine = simulated("card h100", "card h100", "values cpu")
    over, used = threading.Event(), set[int]()

    def look() -> None:
        while not over.wait(0.02):
            used.update(process.card for process in machine.used())

    looking = threading.Thread(target=look)
    looking.start()
    try:
        training = run(machine, tmp_path, "second_device")
    finally:
        over.set()
        looking.join()
    assert used == {1}, "no context on the first GPU, with the agent neither"
    assert any(step.loss is not None for step in training.steps)


def test_a_job_with_the_newer_interface_for_tf32_is_watched(
    simulated: Machines, tmp_path: Path
) -> None:
    training = run(simulated("card h100", "values cpu"), tmp_path, "tf32")
    assert training.started.knobs["precision"] == "tf32"


def test_a_graph_that_captures_a_whole_step_is_left_alone_and_its_replays_are_steps(
    simulated: Machines, tmp_path: Path
) -> None:
    ask = SetKnobs(1, {"precision": "bf16"}, numerics=True)
    training = run(simulated("card h100", "values cpu"), tmp_path, "graph", (10, ask))
    (answer,) = [event for event in training.events if isinstance(event, KnobsSet)]
    assert answer.error is not None and "the program replays a CUDA graph" in answer.error
    assert len(training.steps) == 5 + 1 + 60
    assert all(step.samples == 32 for step in training.steps[-60:])
    assert any("CUDA graphs" in event.text for event in training.events if isinstance(event, Note))


def test_optimizers_that_step_in_the_backward_pass_make_one_step_of_it(
    simulated: Machines, tmp_path: Path
) -> None:
    training = run(simulated("card h100", "values cpu"), tmp_path, "in_backward")
    assert len(training.steps) == 60


def test_a_subclass_of_tensors_keeps_its_meaning(simulated: Machines, tmp_path: Path) -> None:
    training = run(simulated("card h100", "values cpu"), tmp_path, "annotated")
    assert len(training.steps) == 60
    assert any(
        "Annotated handles the methods" in event.text
        for event in training.events
        if isinstance(event, Note)
    )
