"""Jobs that run out of GPU memory on a simulated card: what the console says, and whether it is
true. The program sees no difference."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cuda.conftest import Machines
from tests.fakes.cuda.machine import SimulatedMachine

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).parent / "programs" / "out_of_memory.py"
OWN_FRAMES = re.compile(r'  File "<gpuconsole.*\n')


class Ended(NamedTuple):
    code: int
    stdout: str
    stderr: str
    failures: list[dict[str, Any]]

    def fits(self) -> dict[str, dict[str, Any]]:
        return {fit["change"]: fit for fit in self.failures[-1]["fits"]}


@pytest.fixture(scope="module")
def card(simulated: Machines) -> SimulatedMachine:
    return simulated("card l4 memory=8e9", "values none")


def alone(
    machine: SimulatedMachine, *words: object, **environment: str
) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, str(PROGRAM), *map(str, words))
    env = machine.environment(OMP_NUM_THREADS="1", **environment)
    return subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=270, check=False
    )


def watched(
    machine: SimulatedMachine, folder: Path, *words: object, options: tuple[str, ...] = ()
) -> Ended:
    """The same job under `gpuconsole run --headless`."""
    files = (*options, "--snapshot", str(folder / "x.json"), "--summary", str(folder / "summary"))
    command = (
        sys.executable,
        "-m",
        "gpuconsole",
        "run",
        "--headless",
        *files,
        "--",
        sys.executable,
        str(PROGRAM),
        *map(str, words),
    )
    done = subprocess.run(
        command,
        env=machine.environment(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=270,
        check=False,
    )
    (run,) = json.loads((folder / "x.json").read_text())["runs"]
    print((folder / "summary").read_text())
    return Ended(done.returncode, done.stdout, done.stderr, run.get("memory_failures", []))


def test_activations_that_do_not_fit_in_a_forward_pass(
    card: SimulatedMachine, tmp_path: Path
) -> None:
    plain, ended = (
        alone(card, "forward", 4096, 32768),
        watched(card, tmp_path, "forward", 4096, 32768),
    )
    assert (ended.code, ended.stdout) == (plain.returncode, plain.stdout) and ended.code == 1
    assert OWN_FRAMES.sub("", ended.stderr) == plain.stderr, (
        "the traceback has the frames of the hooks, and no other difference"
    )
    (failure,) = ended.failures
    assert (failure["phase"], failure["steps"], failure["batch_size"]) == ("forward", 12, 32768)
    assert (failure["file"], failure["function"]) == (str(PROGRAM), "step")
    assert "loss = model(x)" in PROGRAM.read_text().splitlines()[failure["line"] - 1]
    assert failure["parameters_bytes"] == 16 * (2048 * 2048 + 2048) * 4
    owners = json.loads((tmp_path / "x.json").read_text())["runs"][0]["series"]
    last = {
        key.partition("{")[0].removeprefix("workload.memory_"): data["v"][-1]
        for key, data in owners.items()
    }
    assert last["parameters_bytes"] == last["gradients_bytes"] == failure["parameters_bytes"]
    assert 0 <= last["kept_bytes"] <= 4096 * 2048 * 4 + 2**20, "the batch of the step"
    assert failure["optimizer_bytes"] == pytest.approx(2 * failure["parameters_bytes"], rel=1e-3)
    summary = (tmp_path / "summary").read_text()
    assert "run 1  out_of_memory.py  on gpu:0  failed" in summary
    assert "error         out of memory on cuda:0 at out_of_memory.py:" in summary
    assert "activations and other tensors" in summary
    change = next(change for change in ended.fits() if change.startswith("batch size"))
    largest = int(change.split()[2].rstrip(","))
    assert ended.fits()[change]["enough"]
    assert alone(card, "forward", largest, largest).returncode == 0, (
        "the batch that the console names fits"
    )
    more = round(largest * 1.1)
    assert "OutOfMemoryError" in alone(card, "forward", more, more).stderr, (
        "it is not far below the largest one"
    )


@pytest.mark.matrix
def test_states_of_the_optimizer_that_do_not_fit_at_the_first_update(
    card: SimulatedMachine, tmp_path: Path
) -> None:
    ended = watched(card, tmp_path, "update", 64, 100)
    (failure,) = ended.failures
    assert (failure["phase"], failure.get("steps", 0)) == ("optimizer", 0)
    assert "optimizer.step()" in PROGRAM.read_text().splitlines()[failure["line"] - 1]
    fits = ended.fits()
    assert fits["a smaller batch does not help"]["enough"] is False
    assert fits["AdamW(..., fused=True)"]["enough"]
    assert alone(card, "update", 64, 100, FUSED="1").returncode == 0, (
        "what the console says is enough"
    )
    assert alone(card, "update", 1, 100).returncode == 1, "a smaller batch does not help"


@pytest.mark.matrix
def test_free_memory_in_pieces(card: SimulatedMachine, tmp_path: Path) -> None:
    ended = watched(card, tmp_path, "fragments", 4096, 330)
    assert next(iter(ended.fits())) == "PYTORCH_ALLOC_CONF=expandable_segments:True"
    assert ended.failures[-1]["phase"] == "backward"
    assert (
        alone(
            card, "fragments", 4096, 330, PYTORCH_ALLOC_CONF="expandable_segments:True"
        ).returncode
        == 0
    )


@pytest.mark.matrix
def test_an_evaluation_that_keeps_gradients(card: SimulatedMachine, tmp_path: Path) -> None:
    ended = watched(card, tmp_path, "evaluation", 4096, 40, options=("--memory",))
    (failure,) = ended.failures
    assert (failure["evaluates"], failure["function"]) == (True, "evaluation")
    assert list(ended.fits()) == ["evaluate within torch.no_grad()"]
    no_history = "lines         n/a: torch records no history of allocations here"
    assert no_history in (tmp_path / "summary").read_text(), (
        "the simulated device has no such history"
    )


def test_an_error_that_the_program_catches_is_a_note_and_no_failure(
    card: SimulatedMachine, tmp_path: Path
) -> None:
    plain, ended = (
        alone(card, "searched", 65536, 1024),
        watched(card, tmp_path, "searched", 65536, 1024),
    )
    assert (ended.code, ended.stdout) == (0, plain.stdout), (
        "the same batches fail, and the same batch fits: the agent keeps no tensor alive"
    )
    assert [failure["caught"] for failure in ended.failures] == [True, True]
    summary = (tmp_path / "summary").read_text()
    assert "on gpu:0  finished" in summary
    assert "the job ran out of GPU memory 2 times and went on" in summary


def test_a_caught_error_is_not_the_cause_of_an_end_by_another_error(
    card: SimulatedMachine, tmp_path: Path
) -> None:
    ended = watched(card, tmp_path, "another", 65536, 1024)
    assert ended.code == 1 and "ValueError: no batch fits" in ended.stderr
    assert {failure["caught"] for failure in ended.failures} == {True}
    assert "error         out of memory" not in (tmp_path / "summary").read_text()


@pytest.mark.matrix
def test_another_process_that_holds_the_card(card: SimulatedMachine, tmp_path: Path) -> None:
    command, env = (
        (sys.executable, str(PROGRAM), "hold", "5000", "0"),
        card.environment(OMP_NUM_THREADS="1"),
    )
    with subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdin is not None
        assert other.stdout.readline().startswith("holds")
        ended = watched(card, tmp_path, "forward", 4096, 12288)
        other.stdin.close()
    (failure,) = ended.failures
    assert list(failure["processes"]) == [str(other.pid)]
    first = next(iter(ended.failures[-1]["fits"]))
    assert first["change"] == "end other processes on the card, or use another card"
    assert f"process {other.pid} holds" in first["reason"]
    assert re.search(r"other processes\s+5\.\d+ GiB", (tmp_path / "summary").read_text())
    assert alone(card, "forward", 4096, 12288).returncode == 0, (
        "without the other process the same batch fits"
    )
