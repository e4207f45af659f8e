"""`gpuconsole run --headless -- COMMAND` around a job that needs no torch: options, exit codes,
what is said, and that the job is unharmed.

All commands of `CASES` run at the same time, with and without the console: they mostly wait.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.waiting import gone, wait_until

pytestmark = pytest.mark.xdist_group("jobs")

PYTHON = sys.executable
Ran = subprocess.CompletedProcess[str]
FAMILY = """
import multiprocessing, os, subprocess, sys

def child(word):
    print(word, "sitecustomize" in sys.modules and sys.modules["sitecustomize"].WHOSE, flush=True)

if __name__ == "__main__":
    child("parent")
    for how in ("fork", "spawn", "forkserver"):
        process = multiprocessing.get_context(how).Process(target=child, args=(how,))
        process.start()
        process.join()
    if os.fork() == 0:
        child("os.fork")
        os._exit(0)
    os.wait()
    ask = "import sys; print('own path', sys.path[1].endswith('own'), flush=True)"
    subprocess.run([sys.executable, "-c", ask], env={**os.environ,
        "PYTHONPATH": os.path.abspath("own")})
    print("paths", [word for word in sys.path if "scratch" in word], flush=True)
    os.execv(sys.executable, [sys.executable, "-c",
        "import sitecustomize; print('exec', sitecustomize.WHOSE); raise SystemExit(5)"])
"""
CASES: dict[str, tuple[str, ...]] = {
    "family": (PYTHON, "family.py"),
    "isolated": (PYTHON, "-I", "-c", "print('hello')"),
    "no site": (PYTHON, "-uS", "-c", "print('hello')"),
    "no environment": (PYTHON, "-E", "-c", "print('hello')"),
    "frozen": ("/bin/echo", "hello"),
    "jax": (PYTHON, "uses_jax.py"),
    "tensorflow": (PYTHON, "-c", "import numpy, tensorflow"),
    "numpy": (PYTHON, "-c", "import numpy; print(numpy.ones(3).sum())"),
    "looks for jax": (
        PYTHON,
        "-c",
        "import importlib.util as u; print(u.find_spec('jax') is not None)",
    ),
    "shell": ("sh", "-c", f"{PYTHON} -c 'print(1)'; exit 4"),
    "exception": (PYTHON, "-c", "raise ValueError('mine')"),
    "killed": (
        PYTHON,
        "-c",
        "import os, signal; print('hello', flush=True); os.kill(os.getpid(), signal.SIGKILL)",
    ),
    "module": (PYTHON, "-m", "package.train", "--epochs", "3"),
    "script without #!": ("./plain.sh",),
}
SAID = {
    "family": "the job's Python has not imported torch",
    "isolated": "python -I does not load the agent: start the job without -I",
    "no site": "python -uS does not load the agent",
    "no environment": "python -E does not load the agent",
    "frozen": "no Python process of the job has loaded the agent",
    "jax": "the job uses JAX, which the agent cannot watch",
    "tensorflow": (
        "the job uses TensorFlow, which the agent cannot watch; it watches the steps of PyTorch;"
        " devices and processes are shown"
    ),
    "numpy": (
        "the job's Python has not imported torch, only NumPy; the agent watches the steps of"
        " PyTorch; devices and processes are shown"
    ),
    "looks for jax": "the job's Python has not imported torch",
    "shell": "the job ended with exit code 4",
    "exception": "the job ended with exit code 1",
    "killed": "the job was ended by SIGKILL",
    "module": "the job's Python has not imported torch",
    "script without #!": "the job ended with exit code 6",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("jobs")
    (made / "family.py").write_text(FAMILY)
    (made / "uses_jax.py").write_text("import jax\nprint('jax', jax.VERSION)\n")
    (made / "plain.sh").write_text("echo plain; exit 6\n")
    (made / "plain.sh").chmod(0o755)
    for name, text in (
        ("own/sitecustomize.py", "WHOSE = 'the user'\n"),
        ("own/jax.py", "VERSION = 7\n"),
        ("own/tensorflow.py", ""),
        ("package/train.py", "print('trained')\n"),
    ):
        (made / name).parent.mkdir(exist_ok=True)
        (made / name).write_text(text)
    return made


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{folder / 'own'}{os.pathsep}{os.environ['PYTHONPATH']}"}


def console(*options: str) -> list[str]:
    return [PYTHON, "-m", "gpuconsole", "run", "--headless", *options, "--"]


@pytest.fixture(scope="module")
def ran(folder: Path) -> dict[str, tuple[Ran, Ran]]:
    """For each case: the command alone, and the command under the console."""
    found: dict[str, list[Ran]] = {name: [] for name in CASES}

    def both(name: str) -> None:
        for words in (list(CASES[name]), [*console("--snapshot", f"{name}.json"), *CASES[name]]):
            if name == "script without #!" and not found[name]:
                words = ["sh", "-c", "./plain.sh"]  # the shell runs it, `execve` does not
            found[name].append(
                subprocess.run(
                    words,
                    capture_output=True,
                    text=True,
                    cwd=folder,
                    env=environment(folder),
                    timeout=100,
                    check=False,
                )
            )

    threads = [threading.Thread(target=both, args=(name,)) for name in CASES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {name: (alone, watched) for name, (alone, watched) in found.items()}


@pytest.mark.parametrize("name", CASES)
def test_the_job_is_unharmed_and_the_console_says_what_it_saw(
    name: str, ran: dict[str, tuple[Ran, Ran]]
) -> None:
    alone, watched = ran[name]
    assert watched.returncode == alone.returncode
    assert watched.stdout == alone.stdout and watched.stdout + watched.stderr
    assert watched.stderr.startswith(alone.stderr)
    assert SAID[name] in watched.stderr


def test_the_command_line_is_not_in_the_snapshot(
    folder: Path, ran: dict[str, tuple[Ran, Ran]]
) -> None:
    text = (folder / "module.json").read_text()
    run = json.loads(text)["runs"][0]
    assert (run["workload"], run["scenario"]) == ("job", "package.train")
    assert "--epochs" not in text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ("run", "--duration", "5", "--", "true"),
            "--duration does not go with a command after --",
        ),
        (
            ("run", "--json", "--headless", "--", "true"),
            "--json does not go with a command after --: stdout belongs to the job",
        ),
        (("run", "--url", "http://x", "--", "true"), "--url does not go with a command after --"),
        (
            ("run", "--set", "batch_size=4", "--", "true"),
            "--set does not go with a command after --",
        ),
        (
            ("run", "train-gpt", "--", "true"),
            "run takes a scenario (train-gpt) or a command after --, not both",
        ),
        (("run", "--headless", "--output", "x", "--", "true"), "--output is for the screen"),
        (
            ("run", "--headless", "--nnodes", "2", "--", "true"),
            "--nnodes does not go with a command after --",
        ),
        (("tune", "--resume", "x", "--", "true"), "--resume does not go with a command after --"),
        (
            ("sweep", "--vary", "num_workers=0", "--", "true"),
            "--vary num_workers=0: expected NAME=A,B",
        ),
        (("sweep", "--vary", "num_wokers=0,1", "--", "true"), "did you mean 'num_workers'?"),
        (("tune",), "tune needs a SCENARIO, or a command of your own: gpuconsole tune -- COMMAND"),
        (
            ("run", "--try", "num_wokers=2", "--headless", "--", "true"),
            "did you mean 'num_workers'?",
        ),
        (
            ("run", "--headless", "--restart-knob", "batch_size=--bs", "--", "true"),
            "expected NAME={FLAG}",
        ),
        (
            ("run", "--headless", "--restart-knob", "batch_size={--bs}", "--", "true"),
            "--restart-knob goes with --headless and --try",
        ),
        (
            (
                "run",
                "--headless",
                "--restart-knob",
                "batch_size={--bs}",
                "--try",
                "optim=adamw",
                "--",
                "true",
            ),
            "--try optim: needs --restart-knob",
        ),
        (("run", "python", "train.py"), "goes after --, as in: gpuconsole run -- python train.py"),
        (
            ("run", "train.py"),
            (
                "train.py is no scenario; a command of your own goes after --, as in: gpuconsole"
                " run -- python train.py"
            ),
        ),
        (
            ("sweep", "--vary", "batch_size=1,2", "--restart-knob", "seq_len={--s}", "--", "true"),
            "--vary batch_size: needs --restart-knob",
        ),
        (("run", "--"), "run needs a SCENARIO, or a command of your own"),
        (("run", "train-gpt", "--summary", "x"), "--summary goes with a command of your own"),
        (("run", "--heedless", "--", "python", "--headless"), "there is no option '--heedless'"),
    ],
)
def test_bad_usage_is_one_line(
    words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from gpuconsole.cli.main import main

    try:
        code = main(list(words))
    except SystemExit as exit:
        code = exit.code
    error = capsys.readouterr().err
    assert code == 2
    assert says in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("word", "code"),
    [("no-such-program", 127), ("./no/such", 127), ("./uses_jax.py", 126), ("./own", 126)],
)
def test_a_command_that_cannot_be_run_has_the_exit_code_of_a_shell(
    word: str,
    code: int,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from gpuconsole.cli.main import main

    monkeypatch.chdir(folder)
    assert main(["run", "--headless", "--", word]) == code
    assert capsys.readouterr().err.startswith(f"gpuconsole: {word}: ")


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("uses_jax.py", "; it is a file in this folder: python uses_jax.py"),
        ("plain.sh", "folder: ./plain.sh"),
        ("hs", "(did you mean 'sh'?)"),
    ],
)
def test_a_first_word_that_is_no_program_names_what_may_be_meant(
    word: str,
    hint: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from gpuconsole.cli.main import main

    monkeypatch.chdir(folder)
    assert main(["run", "--headless", "--", word]) == 127
    assert capsys.readouterr().err.endswith(f"{hint}\n")


def test_a_job_without_torch_has_no_conclusion_and_says_why(
    ran: dict[str, tuple[Ran, Ran]],
) -> None:
    assert (
        "diagnosis: no conclusion: the job's Python has not imported torch\n"
        in ran["module"][1].stderr
    )


def test_a_trial_by_restarts_says_why_a_side_cannot_be_measured(folder: Path) -> None:
    words = console("--restart-knob", "batch_size={--bs}", "--try", "batch_size=2")
    done = subprocess.run(
        [*words, PYTHON, "-c", "raise SystemExit(3)", "--bs=1"],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "with the change:    " in done.stderr and "--bs=2" in done.stderr
    assert "the job ended with exit code 3; the job's Python has not imported torch" in done.stderr


def test_a_sweep_by_restarts_says_why_a_setting_cannot_be_measured(folder: Path) -> None:
    words = [
        PYTHON,
        "-m",
        "gpuconsole",
        "sweep",
        "--vary",
        "batch_size=1,2",
        "--restart-knob",
        "batch_size={--bs}",
        "--repeat",
        "2",
        "--",
    ]
    done = subprocess.run(
        [*words, PYTHON, "-c", "raise SystemExit(3)"],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    starts = re.findall(r"start (\d+): (batch_size \d)", done.stderr)
    assert [number for number, _ in starts] == ["1", "2"] and {
        setting for _, setting in starts
    } == {"batch_size 1", "batch_size 2"}
    assert done.stderr.count("the job ended with exit code 3") == 2


WAITS = """
import os, signal, sys, time
def end(number, frame):
    # print() may be under way: it raises where a signal handler calls it again
    os.write(1, b"got it\\n")
    sys.exit(40 + number)
signal.signal(signal.SIGUSR1, end)
print(os.getpid(), flush=True)
until = time.monotonic() + 90
while not os.path.exists("go") and time.monotonic() < until:
    time.sleep(0.02)
print("finished", flush=True)
"""


def test_signals_reach_the_job_and_its_end_is_ours(tmp_path: Path) -> None:
    """Each signal to the console, which has no terminal here, ends the job and gives the console
    the same end."""
    processes = [
        subprocess.Popen(
            [*console(), PYTHON, "-c", WAITS],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=tmp_path,
            text=True,
            start_new_session=True,
        )
        for _ in range(3)
    ]
    pids = [int(process.stdout.readline()) for process in processes if process.stdout]
    for process, number in zip(
        processes, (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1), strict=True
    ):
        process.send_signal(number)
    assert [process.wait(20) for process in processes] == [
        -signal.SIGINT,
        -signal.SIGTERM,
        40 + signal.SIGUSR1,
    ]
    assert all(map(gone, pids))
    for process in processes:
        assert process.stdout is not None
        process.stdout.close()


def test_the_job_continues_when_the_console_is_killed(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*console(), PYTHON, "-c", WAITS],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=tmp_path,
        text=True,
    )
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.kill()
    process.wait()
    assert not gone(pid)
    (tmp_path / "go").touch()
    assert process.stdout.readline() == "finished\n"
    wait_until(lambda: gone(pid), 10, "the job ends")
    process.stdout.close()
