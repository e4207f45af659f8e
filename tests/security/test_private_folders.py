"""C1: no program of a job finds code at a path that another user could create, however the console
ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from gpuconsole.engine.children.terminal import holder
from tests.pty.terminal import Terminal
from tests.security.other_user import PLANT, as_nobody, needs_root, ours_in, why_not_safe
from tests.waiting import gone, wait_until

JOB = """
import os, subprocess, sys, time
print(os.getpid(), "is the pid of the job", flush=True)
until = time.monotonic() + 90
while not os.path.exists("go") and time.monotonic() < until:
    time.sleep(0.02)
subprocess.run([sys.executable, "-c", "pass"])
open("finished", "w").close()
"""
BACKGROUND = (
    f"({sys.executable} job.py & echo $! > child) ; while [ ! -s child ]; do sleep 0.1; done; sleep"
    " 1.5"
)
HOLDER = Path(holder.__file__).name


class Left:
    """A job that goes on without its console. `paths` are those of ours in all its processes."""

    def __init__(self, folder: Path, pids: list[int]) -> None:
        self._folder, self.pids = folder, pids
        self.processes = [
            process
            for pid in pids
            for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        ]
        self.processes += [
            process for process in psutil.process_iter() if _is_holder_in(process, folder)
        ]
        self.paths = {
            (process.pid, name): path
            for process in self.processes
            for name, path in ours_in(process).items()
        }

    @property
    def pythonpath(self) -> str:
        return next(path for (_, name), path in self.paths.items() if name.startswith("PYTHONPATH"))

    def finish(self) -> None:
        """Let the job start its Python, and wait for its end."""
        (self._folder / "go").touch()
        wait_until(lambda: (self._folder / "finished").exists(), 20, "the job goes on to its end")


def _is_holder_in(process: psutil.Process, folder: Path) -> bool:
    try:
        return any(word.endswith(HOLDER) for word in process.cmdline()) and process.cwd() == str(
            folder
        )
    except psutil.Error:
        return False


def left_by(ending: str, folder: Path) -> Left:
    """Start a job and end the console in one of the ways in which a console ends before its job."""
    (folder / "job.py").write_text(JOB)
    if ending == "first process":
        words = [
            sys.executable,
            "-m",
            "gpuconsole",
            "run",
            "--headless",
            "--",
            "sh",
            "-c",
            BACKGROUND,
        ]
        assert (
            subprocess.run(
                words,
                cwd=folder,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=60,
                check=False,
            ).returncode
            == 0
        )
        return Left(folder, [int((folder / "child").read_text())])
    with Terminal("run", "--", sys.executable, "job.py", cwd=folder) as terminal:
        terminal.press("o")
        text = terminal.wait_for("is the pid of the job")
        pid = int(
            next(line.split()[0] for line in text.splitlines() if "is the pid of the job" in line)
        )
        if ending == "leave":
            terminal.press("q")
            terminal.wait_for("─ tried")
            terminal.press("q")
            terminal.wait_for("Leave the job")
            terminal.press("enter")
        elif ending == "hang up":
            terminal.hang_up()
        else:
            os.kill(terminal.process.pid, signal.SIGKILL)
        wait_until(lambda: terminal.process.poll() is not None, 20, "the console ends")
    if ending == "SIGKILL and a later clean-up":
        later = [sys.executable, "-m", "gpuconsole", "run", "--headless", "--", "true"]
        assert (
            subprocess.run(
                later, cwd=folder, capture_output=True, timeout=60, check=False
            ).returncode
            == 0
        )
    assert not gone(pid)
    return Left(folder, [pid])


ENDINGS = [
    "hang up",
    *(
        pytest.param(ending, marks=pytest.mark.slow)
        for ending in ("leave", "SIGKILL and a later clean-up", "first process")
    ),
]


@pytest.mark.parametrize("ending", ENDINGS)
def test_nobody_else_can_make_the_folder_that_a_left_job_loads_code_from(
    tmp_path: Path, ending: str
) -> None:
    left = left_by(ending, tmp_path)
    try:
        assert left.pythonpath
        print(
            "\n".join(
                f"{ending}: {pid} {name} = {path}" for (pid, name), path in left.paths.items()
            )
        )
        assert {path: why for path in left.paths.values() if (why := why_not_safe(path))} == {}
    finally:
        left.finish()


@needs_root
@pytest.mark.parametrize("ending", ENDINGS)
def test_code_that_another_user_plants_does_not_run(tmp_path: Path, ending: str) -> None:
    """The attack: the folder's name can be seen by everybody; once it is gone, another user makes
    it again, with a `sitecustomize.py`."""
    left = left_by(ending, tmp_path)
    try:
        attack = as_nobody(PLANT, left.pythonpath, str(tmp_path / "owned"))
        assert attack.returncode == 0, attack.stderr
    finally:
        left.finish()
    assert not (tmp_path / "owned").exists(), "code of another user ran as the user of the job"


def test_a_node_that_never_had_the_folder_gives_nobody_its_place(tmp_path: Path) -> None:
    """srun and mpirun carry PYTHONPATH to other nodes. There the folder does not exist; the one
    above must not be open either."""
    show = "import os; print(os.environ['GPUCONSOLE_AGENT'])"
    words = [
        sys.executable,
        "-m",
        "gpuconsole",
        "run",
        "--headless",
        "--",
        sys.executable,
        "-c",
        show,
    ]
    done = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    folder = done.stdout.strip()
    assert not os.path.exists(folder)
    assert why_not_safe(folder) == ""
