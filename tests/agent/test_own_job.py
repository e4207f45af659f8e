"""`gpuconsole run -- COMMAND`: the real command line, on scripts as users write them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gpuconsole.engine.children.job import NO_STEP
from tests.agent.listener import Listener

pytestmark = pytest.mark.xdist_group("a job")

PROGRAMS = Path(__file__).parent / "programs"


WITHOUT_OPTIMIZER = """
import sys, torch
model = torch.nn.Linear(16, 4)
for _ in range(int(sys.argv[1])):
    model(torch.randn(8, 16)).square().mean().backward()
    with torch.no_grad():
        for weight in model.parameters():
            weight -= 0.1 * weight.grad
            weight.grad = None
with torch.no_grad():
    model(torch.randn(8, 16))
print("done")
sys.exit(3)
"""


class Ran(NamedTuple):
    """A finished command. `run`: the last run of the snapshot."""

    code: int
    out: str
    err: str
    run: dict[str, Any]


def watched(
    folder: Path,
    *command: str,
    environment: dict[str, str] | None = None,
    options: tuple[str, ...] = (),
) -> Ran:
    """Run `command` under the console, without a screen."""
    snapshot = folder / "snapshot.json"
    words = [
        sys.executable,
        "-m",
        "gpuconsole",
        "run",
        "--headless",
        "--device",
        "cpu",
        "--snapshot",
        str(snapshot),
        *options,
        "--",
        *command,
    ]
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        env={**os.environ, **(environment or {})},
        cwd=folder,
        check=False,
        timeout=120,
    )
    runs = json.loads(snapshot.read_text())["runs"] if snapshot.exists() else [{}]
    return Ran(done.returncode, done.stdout, done.stderr, runs[-1])


def plain(folder: Path, *command: str, environment: dict[str, str] | None = None) -> Ran:
    """Run `command` without the console."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, **(environment or {})},
        cwd=folder,
        check=False,
        timeout=120,
    )
    return Ran(done.returncode, done.stdout, done.stderr, {})


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, Ran]:
    """The plain loop without and with the console, with a `sitecustomize` of the user's own."""
    folder = tmp_path_factory.mktemp("job")
    (folder / "own").mkdir()
    (folder / "own" / "sitecustomize.py").write_text("WHOSE = 'the user'\n")
    command = (sys.executable, str(PROGRAMS / "plain.py"), "5")
    environment = {"PYTHONPATH": f"{folder / 'own'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    return plain(folder, *command, environment=environment), watched(
        folder, *command, environment=environment
    )


def test_the_output_and_the_exit_code_are_the_programs(both: tuple[Ran, Ran]) -> None:
    alone, ran = both
    assert ran.out == alone.out
    assert "child the user" in ran.out
    assert ran.code == alone.code == 3
    assert ran.err.startswith(alone.err)
    assert "exit code 3" in ran.err.removeprefix(alone.err)


def test_the_steps_phases_and_samples_are_known(both: tuple[Ran, Ran]) -> None:
    run = both[1].run
    assert run["workload"] == "job" and run["scenario"] == "plain.py" and run["state"] == "failed"
    phases = run["summary"]["phases_ratio"]
    assert sum(phases.values()) == pytest.approx(1, abs=1e-6)
    assert phases["data_wait"] > 0.6
    assert min(phases[name] for name in ("forward", "backward", "optimizer")) > 0.01
    assert run["summary"]["samples_per_s"]["mean"] > 100


@pytest.mark.skipif(
    sys.version_info < (3, 12), reason="on Python 3.11 no pass is seen, so the model is not known"
)
def test_the_knobs_the_model_and_the_lines_are_known(both: tuple[Ran, Ran]) -> None:
    run = both[1].run
    assert run["knobs"] == {
        "num_workers": 0,
        "pin_memory": False,
        "batch_size": 8,
        "optim": "adamw",
        "precision": "fp32",
        "torch_compile": "off",
        "gradient_accumulation_steps": 1,
        "num_threads": 1,
        "nproc": 1,
    }
    assert run["facts"]["parameters"] == 32 * 256 + 256 + 2560 + 10
    first, second = 32 * 256, 256 * 10
    # no gradient of the inputs
    assert (
        run["facts"]["flops_per_sample"] == 2 * (first + second) + 2 * (first + second) + 2 * second
    )
    assert run["signals"]["memory.optimizer_bytes"]["value"] == pytest.approx(
        8 * run["facts"]["parameters"], rel=0.01
    )
    sites = {site["kind"]: site for site in run["job"]["sites"]}
    text = (PROGRAMS / "plain.py").read_text().splitlines()
    assert "DataLoader(Samples()" in text[sites["loader"]["line"] - 1]
    assert "torch.optim.AdamW" in text[sites["optimizer"]["line"] - 1]


@pytest.mark.slow
def test_a_job_that_is_over_soon_has_what_the_agent_saw(tmp_path: Path) -> None:
    ran = watched(tmp_path, sys.executable, str(PROGRAMS / "plain.py"), "1")
    assert ran.run["summary"]["steps"] < 80
    assert ran.run["signals"]["memory.optimizer_bytes"]["value"] == pytest.approx(
        8 * ran.run["facts"]["parameters"], rel=0.01
    )


@pytest.mark.slow
def test_a_program_without_an_optimizer_is_named(tmp_path: Path) -> None:
    """The same program with no step, and with updates of its own."""
    program = tmp_path / "own.py"
    program.write_text(WITHOUT_OPTIMIZER)
    ran = watched(tmp_path, sys.executable, str(program), "0")
    assert (ran.code, ran.out) == (3, "done\n")
    assert NO_STEP in ran.err
    ran = watched(tmp_path, sys.executable, str(program), "25")
    assert (ran.code, ran.out) == (3, "done\n")
    assert NO_STEP in ran.err and not ran.run["summary"].get("steps")


FAST = """
import torch
model = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(6000):
    for _ in range(40):
        optimizer.zero_grad()
    model(torch.ones(8, 16)).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_no_step_of_a_fast_loop_is_lost(tmp_path: Path) -> None:
    """A message about half a second of short steps with many segments is longer than the pipe:
    later steps were lost."""
    listener = Listener(tmp_path)
    done = listener.run(
        sys.executable, "-c", FAST, environment={"OMP_NUM_THREADS": "1"}, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    (process,) = listener.by_script().values()
    assert len(process.steps) == 6000 and process.last.dropped == 0


def test_a_program_without_torch_is_named(tmp_path: Path) -> None:
    ran = watched(tmp_path, sys.executable, "-c", "print('hello')")
    assert (ran.code, ran.out) == (0, "hello\n")
    assert "has not imported torch" in ran.err


def test_a_command_that_does_not_exist(tmp_path: Path) -> None:
    ran = watched(tmp_path, "no-such-program")
    assert ran.code == 127
    assert "no-such-program: command not found" in ran.err


RECOMPILES = """
import time, torch
model = torch.compile(torch.nn.Linear(4, 1), backend="eager", dynamic=False)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
# the second step is reported at once, the third with the end of the program
for rows, pause in ((4, 0.3), (5, 0.6), (6, 0.2)):
    time.sleep(pause)
    loss = model(torch.ones(rows, 4)).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
time.sleep(1.6)
"""


@pytest.mark.slow
def test_a_job_that_compiles_for_each_step_is_named_after_three_steps(tmp_path: Path) -> None:
    """Such a job is not steady for a long time. What is compiled for the first step does not count.
    Before its last message the console refuses a probe, because it has no permission."""
    run = watched(tmp_path, sys.executable, "-c", RECOMPILES).run
    assert run.get("steady_from_s") is None
    assert (
        run["signals"]["compile.recompiles"]["value"],
        run["signals"]["compile.steps"]["value"],
    ) == (2, 2)
    assert "host.recompile_graphbreak" in [
        one["rule"] for one in run["findings"] if one["state"] == "fires"
    ]


CLOSES = """
import os, socket, time, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for n in range(200):
    if n in (0, 100):
        os.closerange(3, 256)
    if n == 100:
        # they have the numbers of the descriptors that were closed
        files = [open(f"{k}.txt", "w+") for k in range(40)]
        pairs = [socket.socketpair() for _ in range(10)]
        for k, file in enumerate(files):
            file.write(f"{k} {k} {k} {k}\\n")
            file.flush()
    loss = model(torch.ones(2, 4)).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.01)
time.sleep(1.5)
for k, file in enumerate(files):
    file.seek(0)
    assert file.read() == f"{k} {k} {k} {k}\\n", k
    file.close()
for one, other in pairs:
    one.send(b"own")
    assert other.recv(100) == b"own"
print("trained")
"""


@pytest.mark.slow
def test_a_program_that_closes_all_descriptors_is_watched_or_the_console_says_that_it_is_not(
    tmp_path: Path,
) -> None:
    """Before its first step the program is watched all the same. Later, the steps that were not
    sent are lost, and the agent is off. The files and sockets that the program opens then have the
    numbers of the agent's descriptors, and stay as the program has made them."""
    ran = watched(tmp_path, sys.executable, "-c", CLOSES)
    assert (ran.code, ran.out) == (0, "trained\n")
    assert 50 < ran.run["summary"]["steps"] <= 100
    assert (
        "switched itself off at the connection: the program has closed all its file descriptors"
        in ran.err
    )
    assert ran.run["unavailable"]["agent"].endswith(
        "the program has closed all its file descriptors, as daemons do"
    )
