"""A job of the user's own on the real screen. Most jobs here need no torch, so that the tests are
fast."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.pty.terminal import Terminal
from tests.waiting import gone, wait_until

RESTORED = b"\x1b[?1049l"
JOB = """
import os, signal, sys, time
print("pid", os.getpid(), "columns", os.get_terminal_size().columns, sys.stdin.isatty(), flush=True)
signal.signal(signal.SIGWINCH, lambda *_: print("resized to", os.get_terminal_size(), flush=True))
patience = int(sys.argv[1])  # how many interrupts are ignored
for n in range(100):
    print(f"\\rprogress {n} %", end="", flush=True)
print("\\n\\x1b[31mred\\x1b[0m \\u202e hidden", flush=True)
until = time.monotonic() + 90  # no process stays after a test that failed
while not os.path.exists("go") and time.monotonic() < until:
    try:
        time.sleep(0.02)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        patience -= 1
        if patience < 0:
            sys.exit(7)
for word in sys.argv[2:]:
    print("asked:", input(), flush=True)
print("finished", flush=True)
open("finished", "w").close()
sys.exit(3)
"""


OPTIMIZING = """
import os, sys, time, torch
torch.set_num_threads(1)
model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(2)))
optimizer = torch.optim.AdamW(model.parameters())
until = time.monotonic() + 90
while not os.path.exists("end") and time.monotonic() < until:
    optimizer.zero_grad()
    model(torch.ones(1, 1024)).square().mean().backward()
    optimizer.step()
    time.sleep(0.02)
"""
"""A job whose optimizer takes a large share of each step."""


def job(folder: Path, *words: str, options: tuple[str, ...] = ()) -> Terminal:
    """A console on a job that waits for the file `go`."""
    (folder / "job.py").write_text(JOB)
    return Terminal("run", *options, "--", sys.executable, "job.py", *(words or ("0",)), cwd=folder)


def pid_of(terminal: Terminal) -> int:
    """The pid of the job, as its output says. The output screen is open."""
    text = terminal.wait_for("columns")
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith("pid ")))


def test_the_output_the_exit_code_and_a_line_for_stdin(tmp_path: Path) -> None:
    with job(tmp_path, "0", "a question", options=("--output", "all.txt")) as terminal:
        terminal.wait_for("job.py", "o output")
        terminal.press("o")
        text = terminal.wait_for("columns 120 True", "progress 99 %", "red \\u202e hidden")
        assert "progress 98" not in text
        (tmp_path / "go").touch()
        terminal.press("enter")
        terminal.wait_for("a line for the job's stdin")
        terminal.press(*"forty two", "enter")
        terminal.wait_for("asked: forty two", "finished", "job.py has ended")
        terminal.press("/", *"progress", "enter")
        terminal.wait_gone("finished")
        terminal.press("/", *"no such word", "enter")
        terminal.wait_for("No line of the output has these words.")
        terminal.press("escape", "escape")
        terminal.wait_for("─ tried", "exit code 3")
        terminal.press("S")
        terminal.wait_for("The settings of the job are known after its first steps.")
        terminal.press("escape")
        terminal.wait_for("─ tried", "exit code 3")
        terminal.press("q")
        assert terminal.wait_exit() == 3
    assert RESTORED in terminal.raw
    output = (tmp_path / "all.txt").read_bytes()
    assert b"\rprogress 98 %\rprogress 99 %\n" in output and output.endswith(b"finished\n")


@pytest.mark.slow
def test_a_job_that_fails_before_its_first_step_names_the_cause_at_80x24(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(
        "print('loading')\nraise ValueError('expected 10 classes, \\x1b[31mfound 9')\n"
    )
    with Terminal(
        "run", "--", sys.executable, "job.py", cwd=tmp_path, columns=80, rows=24
    ) as terminal:
        text = terminal.wait_for(
            "▌Failed: ValueError: expected 10 classes, found 9; the job ended with exit code"
        )
        assert text.splitlines()[-1].startswith("o output"), (
            "the key of the output is the first in the bar"
        )
        terminal.press("o")
        terminal.wait_for("loading", "Traceback (most recent call last):", "job.py has ended")
        terminal.press("q", "q")
        assert terminal.wait_exit() == 1


def test_a_job_whose_python_has_no_torch_says_which_python_that_is(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(
        "import sys\nsys.path = [entry for entry in sys.path if 'packages' not in entry]\n"
        "import torch\n"
    )
    with Terminal(
        "run", "--", sys.executable, "-S", "job.py", cwd=tmp_path, columns=200
    ) as terminal:
        terminal.wait_for(
            "Failed: ModuleNotFoundError: No module named 'torch'",
            f"{sys.executable} has no torch: install it there, or write",
        )
        terminal.press("q")
        assert terminal.wait_exit() == 1


@pytest.mark.slow
def test_before_the_first_step_no_rule_is_called_without_a_conclusion(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(
        "import os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.02)\n"
    )
    with Terminal("run", "--", sys.executable, "job.py", cwd=tmp_path) as terminal:
        text = terminal.wait_for("─ findings", "Starting: the job's Python has not imported torch")
        assert (
            "can't tell" not in text and "?" not in text.split("─ findings")[1].split("─ tried")[0]
        )
        (tmp_path / "go").touch()
        terminal.wait_for("No conclusion: the job's Python has not imported torch")
        terminal.press("q")
        assert terminal.wait_exit() == 0


@pytest.mark.slow
def test_a_new_size_and_ctrl_c_go_to_the_job(tmp_path: Path) -> None:
    with job(tmp_path, "5") as terminal:
        terminal.press("o")
        pid = pid_of(terminal)
        terminal.resize(100, 30)
        terminal.wait_for("resized to os.terminal_size(columns=100, lines=27)")
        terminal.press("\x03")
        terminal.wait_for("SIGINT sent to job.py; ctrl+c again sends", "SIGTERM", "interrupted")
        assert not gone(pid)
        terminal.press("\x03")
        terminal.wait_for("job.py has ended")
        terminal.press("\x03")  # nothing runs any more: Ctrl-C quits
        assert terminal.wait_exit() == -signal.SIGTERM
    assert RESTORED in terminal.raw


def test_q_asks_and_can_leave_the_job(tmp_path: Path) -> None:
    with job(tmp_path) as terminal:
        terminal.press("o")
        pid = pid_of(terminal)
        terminal.press("q")  # back to the main screen
        terminal.wait_gone("columns 120")
        terminal.press("q")
        shown = terminal.wait_for("Leave the job", "End the job", "Stay here", f"pid {pid}")
        answers = [row.rstrip() for row in shown.splitlines() if "the job: it" in row]
        assert len(answers) == 2 and all(len(row) <= 80 and "…" not in row for row in answers), (
            "both answers fit 80 columns"
        )
        terminal.press("escape")
        terminal.wait_for("─ tried")
        terminal.press("q")
        terminal.wait_for("Leave the job")
        terminal.press("enter")
        assert terminal.wait_exit() == 0
        assert "job.py continues without the console; its output goes to" in terminal.text
    log = next(tmp_path.glob("gpuconsole-output-*.txt"))
    assert not gone(pid)
    (tmp_path / "go").touch()
    wait_until(lambda: (tmp_path / "finished").exists(), 10, "the job goes on to its end")
    wait_until(lambda: log.read_text().endswith("finished\n"), 10, "its output is kept")
    assert log.read_text().startswith(f"pid {pid} ")


@pytest.mark.slow
def test_a_job_that_removes_its_folder_can_be_left_and_its_session_is_kept(tmp_path: Path) -> None:
    (folder := tmp_path / "removed").mkdir()
    (folder / "job.py").write_text(
        "import os, shutil, time\nshutil.rmtree(os.getcwd())\nprint('removed', flush=True)\n"
        "time.sleep(30)\n"
    )
    environment = {"XDG_STATE_HOME": str(tmp_path / "state")}
    with Terminal("run", "--", sys.executable, "job.py", cwd=folder, env=environment) as terminal:
        terminal.wait_for("o output")
        terminal.press("o")
        terminal.wait_for("removed")
        terminal.press("q")
        terminal.wait_for("q quit")
        terminal.press("q")
        terminal.wait_for("Leave the job: it continues")
        terminal.press("q")
        assert terminal.wait_exit() == 0
    assert b"FileNotFoundError" not in terminal.raw
    assert len(list((tmp_path / "state" / "gpuconsole").glob("gpuconsole-*.json"))) == 1


@pytest.mark.slow
def test_q_can_end_the_job(tmp_path: Path) -> None:
    with job(tmp_path) as terminal:
        terminal.press("o")
        pid = pid_of(terminal)
        terminal.press("q")  # back to the main screen
        terminal.wait_gone("columns 120")
        terminal.press("q")
        terminal.wait_for("End the job")
        terminal.press("down", "enter")
        assert terminal.wait_exit() == 7
    assert gone(pid)
    assert not list(tmp_path.glob("gpuconsole-output-*.txt"))


@pytest.mark.parametrize("how", ["SIGKILL", "hang up"])
def test_the_job_survives_the_console(tmp_path: Path, how: str) -> None:
    with job(tmp_path) as terminal:
        terminal.press("o")
        pid = pid_of(terminal)
        if how == "SIGKILL":
            os.kill(terminal.process.pid, signal.SIGKILL)
        else:
            terminal.hang_up()
        wait_until(lambda: terminal.process.poll() is not None, 20, "the console ends")
    assert not gone(pid)
    (tmp_path / "go").touch()
    wait_until(lambda: (tmp_path / "finished").exists(), 10, "the job goes on to its end")
    wait_until(
        lambda: next(tmp_path.glob("gpuconsole-output-*.txt")).read_text().endswith("finished\n"),
        10,
        "its output is kept",
    )
    wait_until(lambda: not holders(tmp_path), 10, "no process is left")


def holders(folder: Path) -> list[int]:
    """The processes that hold the terminal of a job of this folder."""
    return [
        one.pid
        for one in psutil.process_iter(["cmdline"])
        if any(str(folder) in word for word in one.info["cmdline"] or ()) and not gone(one.pid)
    ]


@pytest.mark.slow
def test_sigterm_to_the_console_reaches_the_job(tmp_path: Path) -> None:
    with job(tmp_path) as terminal:
        terminal.press("o")
        pid = pid_of(terminal)
        os.kill(terminal.process.pid, signal.SIGTERM)
        assert terminal.wait_exit() == -signal.SIGTERM
    assert gone(pid)
    assert RESTORED in terminal.raw


@pytest.mark.slow
def test_what_needs_consent_is_asked_first(tmp_path: Path) -> None:
    (tmp_path / "optimizing.py").write_text(OPTIMIZING)
    options = ("--device", "cpu", "--record", "r.jsonl", "--output", "all.txt")
    with Terminal("run", *options, "--", sys.executable, "optimizing.py", cwd=tmp_path) as terminal:
        terminal.wait_for("P probe", timeout_s=90)
        terminal.press("P")
        terminal.wait_for(
            "Allow probes in your job?",
            "batch_elasticity",
            "copy of the last batch",
            "the same bits as without probes",
        )
        terminal.press("enter")  # the no is selected
        terminal.wait_for("─ tried", "P probe")
        terminal.press("f")
        terminal.wait_for(
            "Allow probes in your job?", "torch.profiler on a few of the job's own steps"
        )
        terminal.press("escape", "escape")
        terminal.wait_for("─ tried")
        terminal.press("\x10", *"probe", "enter")  # by the command palette
        terminal.wait_for("Allow probes in your job?")
        terminal.press("up", "enter")
        terminal.wait_for("─ tried", "probes are allowed in your job")
        terminal.wait_gone("P probe")
        recording = tmp_path / "r.jsonl"
        wait_until(
            lambda: terminal.settle() and "probe P1, median of" in recording.read_text(),
            30,
            "the probe has run",
        )
        terminal.press("f")
        terminal.wait_for(
            "3 steps of",
            "operators by their own time",
            "optimizer",
            "gpuconsole-trace-optimizing.py-",
        )
        terminal.press("escape")
        terminal.wait_for("─ tried")
        (tmp_path / "end").touch()
        terminal.wait_gone("  running ")
        terminal.press("q")
        assert terminal.wait_exit() == 0
    assert (tmp_path / "all.txt").read_bytes() == b"", (
        "the profiler prints nothing into the output of the job"
    )
    session = json.loads(next(tmp_path.glob("gpuconsole-2*.json")).read_text())
    assert session["runs"][0]["effects"]["optim"] == "same samples"


@pytest.mark.slow
@pytest.mark.rates
def test_a_starved_job_is_found_proven_and_patched_by_keys_and_its_recording_replays(
    tmp_path: Path,
) -> None:
    """The patch is printed and written when the console quits."""
    shutil.copy(Path(__file__).parents[1] / "agent" / "programs" / "starved.py", tmp_path)
    options = (
        "--device",
        "cpu",
        "--patch",
        "p.diff",
        "--record",
        "r.jsonl",
        "--snapshot",
        "s.json",
    )
    with contextlib.ExitStack() as stack:
        terminal = stack.enter_context(
            Terminal("run", *options, "--", sys.executable, "starved.py", "end", cwd=tmp_path)
        )
        stack.callback((tmp_path / "end").touch)  # the job would outlive a test that fails
        terminal.wait_for("starved.py", "data wait", "num_workers 0 ->", "[Enter]", timeout_s=90)
        terminal.press("N")
        terminal.wait_for("Start new workers for your DataLoader?")
        terminal.press("escape")
        terminal.wait_for("samples may differ", "[Enter]")
        terminal.press("enter")
        terminal.wait_for("Start new workers for your DataLoader?", "load ahead")
        terminal.press("up")
        terminal.wait_for("> Make the change.")
        terminal.press("enter")
        terminal.wait_for("on trial", timeout_s=30)
        terminal.wait_for("faster: kept", timeout_s=60)
        terminal.press("q")
        terminal.wait_for(
            "Kept in the job: num_workers",
            "The patch for your code is printed in any case",
            "Leave the job",
        )
        terminal.press("escape")
        (tmp_path / "end").touch()
        terminal.wait_gone("  running ")
        terminal.press("q")
        assert terminal.wait_exit() == 0
        assert "patch written: git apply p.diff" in terminal.text
    assert "num_workers=" in (tmp_path / "p.diff").read_text()
    words = [sys.executable, "-m", "gpuconsole", "report", "s.json", "--patch", "later.diff"]
    later = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert later.stdout == "patch written: git apply later.diff\n"
    assert (tmp_path / "later.diff").read_text() == (tmp_path / "p.diff").read_text()
    assert json.loads((tmp_path / "s.json").read_text())["runs"][-1]["changes"]["num_workers"] >= 2
    with Terminal("replay", "r.jsonl", "--speed", "30", cwd=tmp_path) as terminal:
        terminal.wait_for("REPLAY", "starved.py", "data wait", "kept")
        terminal.press("q")
        assert terminal.wait_exit() == 0
