"""The agent harms no job on a GPU: the same output, memory and exit code as without it, on the simulated device, which behaves as CUDA does
after a fork, while a graph is captured, and with several devices."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpuconsole.wire.events import KnobsSet, Note, OutOfMemory, SetKnobs
from tests.agent.listener import Listener, Watched
from tests.cuda.conftest import Machines, run_script
from tests.fakes.cuda.machine import SimulatedMachine

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "programs" / "jobs.py"


def run(machine: SimulatedMachine, tmp_path: Path, kind: str, *asks: tuple[int, SetKnobs], **environment: str) -> Watched:
    """Run a job alone and under the agent, and compare. Returns what the agent sent."""
    command = (sys.executable, str(PROGRAM), kind)
    env = machine.environment(OMP_NUM_THREADS="1", **environment)
    alone = subprocess.run(command, env=env, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=150)
    assert alone.returncode == 0, alone.stderr[-3000:]
    listener = Listener(tmp_path, asks)
    watched = listener.run(*command, environment=env, cwd=tmp_path)
    assert (watched.returncode, watched.stdout, watched.stderr) == (alone.returncode, alone.stdout, alone.stderr)
    (training,) = listener.by_script().values()
    assert training.off is None, training.off
    return training


def test_workers_that_are_forked_at_each_epoch_live(simulated: Machines, tmp_path: Path) -> None:
    training = run(simulated("card h100", "values cpu"), tmp_path, "epochs")
    assert len(training.steps) == 80


def test_workers_that_a_change_forks_while_steps_are_under_way_live(simulated: Machines, tmp_path: Path) -> None:
    training = run(simulated("card h100", "values cpu"), tmp_path, "long_epochs", (100, SetKnobs(1, {"num_workers": 3})))
    (answer,) = [event for event in training.events if isinstance(event, KnobsSet)]
    assert answer.error is None and answer.knobs["num_workers"] == 3


def test_a_model_on_the_second_gpu_is_timed_there_and_touches_no_other(simulated: Machines, tmp_path: Path) -> None:
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


def test_a_job_with_the_newer_interface_for_tf32_is_watched(simulated: Machines, tmp_path: Path) -> None:
    training = run(simulated("card h100", "values cpu"), tmp_path, "tf32")
    assert training.started.knobs["precision"] == "tf32"


def test_a_graph_that_captures_a_whole_step_is_left_alone_and_its_replays_are_steps(simulated: Machines, tmp_path: Path) -> None:
    ask = SetKnobs(1, {"precision": "bf16"}, numerics=True)
    training = run(simulated("card h100", "values cpu"), tmp_path, "graph", (10, ask))
    (answer,) = [event for event in training.events if isinstance(event, KnobsSet)]
    assert answer.error is not None and "the program replays a CUDA graph" in answer.error
    assert len(training.steps) == 5 + 1 + 60
    assert all(step.samples == 32 for step in training.steps[-60:])
    assert any("CUDA graphs" in event.text for event in training.events if isinstance(event, Note))


def test_cuda_graphs_are_refused_where_gradients_add_up(simulated: Machines, tmp_path: Path) -> None:
    ask = SetKnobs(1, {"torch_compile": "reduce-overhead"}, numerics=True)
    training = run(simulated("card h100", "values cpu"), tmp_path, "accumulation", (20, ask))
    (answer,) = [event for event in training.events if isinstance(event, KnobsSet)]
    assert answer.error is not None and "gradients" in answer.error


def test_optimizers_that_step_in_the_backward_pass_make_one_step_of_it(simulated: Machines, tmp_path: Path) -> None:
    training = run(simulated("card h100", "values cpu"), tmp_path, "in_backward")
    assert len(training.steps) == 60


def test_a_subclass_of_tensors_keeps_its_meaning(simulated: Machines, tmp_path: Path) -> None:
    training = run(simulated("card h100", "values cpu"), tmp_path, "annotated")
    assert len(training.steps) == 60
    assert any("Annotated handles the methods" in event.text for event in training.events if isinstance(event, Note))


def answers(training: Watched) -> list[KnobsSet]:
    return [event for event in training.events if isinstance(event, KnobsSet)]


def test_outputs_that_the_program_keeps_outlive_the_replays_of_a_change(simulated: Machines, tmp_path: Path) -> None:
    asks = [(20 + 40 * n, SetKnobs(n + 1, {"torch_compile": mode}, numerics=True)) for n, mode in enumerate(("reduce-overhead", "off"))]
    training = run(simulated("card h100", "values cpu"), tmp_path, "kept_outputs", *asks)
    assert [(answer.error, answer.knobs["torch_compile"]) for answer in answers(training)] == [(None, "reduce-overhead"), (None, "off")]


@pytest.mark.parametrize("trouble", ["forward", "backward"])
def test_a_model_that_cannot_be_compiled_runs_on(trouble: str, simulated: Machines, tmp_path: Path) -> None:
    ask = SetKnobs(1, {"torch_compile": "reduce-overhead"}, numerics=True)
    training = run(simulated("card h100", "values cpu"), tmp_path, "kept_outputs", (20, ask), SIMULATED_CUDA_COMPILE=f"0.5 {trouble}")
    (answer,) = answers(training)
    assert answer.error is not None and "compiled nothing" in answer.error and answer.knobs["torch_compile"] == "off"


def test_a_change_for_which_there_is_no_memory_is_named_and_taken_back_at_once(simulated: Machines, tmp_path: Path) -> None:
    training = run(simulated("card h100", "values cpu"), tmp_path, "tight", (20, SetKnobs(1, {"precision": "bf16"}, numerics=True)))
    (answer,) = answers(training)
    assert answer.error is not None and answer.error.startswith("out of memory in the first steps with precision=bf16: CUDA out of memory")
    (failed,) = [event for event in training.events if isinstance(event, OutOfMemory)]
    assert failed.failure.change == "precision=bf16" and len(training.steps) == 400


def test_a_compile_mode_that_was_taken_back_leaves_no_memory(simulated: Machines, tmp_path: Path) -> None:
    found = run_script(simulated("card h100", "values none"), PROGRAM.with_name("compiled.py"), FOLDER=str(tmp_path / "compiled"))
    assert found["on"] > found["before"] + 2**24 and found["off"] == found["on_again"] == found["on"], "a trial needs it again"
    assert found["tidied"] == found["before"] and found["graphs"] == [1] * 4, "the second time takes what was compiled"
    assert found["compiled_again"] == 0, "what the program has compiled stays"
    assert "no room for CUDA graphs" in found["no_room"]
