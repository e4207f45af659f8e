"""The runner of the GPU checks: order, budget, crash, hang, interruption, and the page."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import accumulate
from pathlib import Path

import psutil
import pytest

from benchmarks.gpu_day.account import of_trace
from benchmarks.gpu_day.check import FAILED, NOT_RUN, PASSED, Day, Result, checks_of
from benchmarks.gpu_day.checks.own_job import has_conclusion
from benchmarks.gpu_day.page import page
from benchmarks.gpu_day.runner import Runner, State, StateError
from gpuconsole.model.finding import Finding, Signal
from gpuconsole.model.run import Run, Summary
from tests.waiting import wait_until

PACKAGE = "tests.benchmarks.gpu_day_checks"
ORDER = ["good", "bad", "crash", "hang", "absent", "wrong", "gate", "last", "long", "person"]


def run(
    folder: Path, seconds: float = 60.0, *, only: tuple[str, ...] = (), simulated: bool = True
) -> State:
    state = State(folder / "results.json", {"gpus": ["none"]}, simulated)
    checks = [one for one in checks_of(PACKAGE) if not only or one.name in only]
    Runner(PACKAGE, state, os.environ, lambda text: None, "abc").run(
        checks, time.monotonic() + seconds
    )
    return state


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_day_with_a_check_of_each_kind(tmp_path: Path) -> None:
    assert [one.name for one in checks_of(PACKAGE)] == ORDER, "by value per second"
    (tmp_path / "open").touch()
    found = run(tmp_path).results
    assert (tmp_path / "starts").read_text().split() == [
        name for name in ORDER if name not in ("long", "person")
    ]
    assert {name: result.state for name, result in found.items() if result.state != PASSED} == {
        "bad": FAILED,
        "crash": FAILED,
        "hang": FAILED,
        "wrong": FAILED,
        "absent": NOT_RUN,
        "long": NOT_RUN,
        "person": NOT_RUN,
    }
    assert found["crash"].reason == "the check's process was killed by SIGSEGV: the last words"
    assert found["hang"].reason.startswith("it hangs: no result after 1 s")
    assert gone(int((tmp_path / "pid").read_text())), "what a check has started ends with it"
    assert found["wrong"].reason == "RuntimeError: the driver does not answer"
    assert found["absent"].reason == "nvidia-smi is not installed"
    assert found["person"].reason == "by hand: needs root"
    assert found["long"].reason == "no time: it needs about 3600 s"
    assert [figure.holds for figure in found["bad"].figures] == [False, False] and found[
        "bad"
    ].figures[1].value == "n/a"

    shown = page(checks_of(PACKAGE), found, {"gpus": ["none"]}, simulated=True)
    assert (
        "# GPU checks on a simulated device" in shown
        and "no figure on this page was measured on a GPU" in shown
    )
    assert "4 failed, 3 passed, 3 not run" in shown
    assert (
        "| bad | Is outside of its bounds. | **ratio: 0.5 of the peak (at least"
        " 0.9)**<br>**missing: n/a (at least 0)** |"
    ) in shown
    assert (
        "| good | Holds its bounds. | ratio: 0.97 (at least 0.9, at most 1)<br>simulated: True |"
        in shown
    )

    again = run(tmp_path).results
    assert (tmp_path / "starts").read_text().split()[len(ORDER) - 2 :] == ["absent"], (
        "only what has no answer is asked again"
    )
    assert again["good"] == found["good"]


def test_a_short_loan_reaches_the_counters_then_jobs_then_three_diagnoses() -> None:
    """A start of a lent GPU leaves some 700 s."""
    checks = checks_of("benchmarks.gpu_day.checks")
    ends = dict(
        zip((one.name for one in checks), accumulate(one.seconds for one in checks), strict=True)
    )
    counters = ("machine", "nvml_codes", "agrees_with_nvidia_smi", "gpm", "pcie", "train_gpt_mfu")
    assert max(ends[name] for name in counters) <= 230
    assert max(ends[f"diagbench.{case}"] for case in ("G01", "G04", "G06")) <= 700
    listed = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_day", "--list"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert listed[1].split()[2:5] == [f"{ends['nvml_codes']:.0f}", "s", "nvml_codes"]


@pytest.mark.parametrize(
    ("steady", "signals", "state", "holds"),
    [
        (1.0, {"gpu.util_ratio"}, "clear", [True, True, True]),
        (None, {"gpu.util_ratio"}, "clear", [False, True, True]),
        (1.0, set(), "cant_tell", [True, False, False]),
    ],
)
def test_a_run_without_a_conclusion_fails_its_check(
    tmp_path: Path, steady: float | None, signals: set[str], state: str, holds: list[bool]
) -> None:
    """400 steps that take half a second: no step is steady, no reading comes, no rule accuses."""
    run = Run("1", "job.py", "job", {}, "gpu:0", summary=Summary(steps=398))
    run.steady_from_s, run.state = steady, "finished"
    run.signals = {name: Signal(0.9, "ratio", "NVML") for name in signals}
    run.findings = [Finding("host.launch_bound", state, "Launches")]  # type: ignore[arg-type]
    day = Day(tmp_path)
    has_conclusion(day, run, "host.launch_bound")
    assert [figure.holds for figure in day.figures] == holds


def test_the_minutes_are_kept(tmp_path: Path) -> None:
    begun = time.monotonic()
    found = run(tmp_path, 1.0, only=("gate", "last")).results
    assert time.monotonic() - begun < 5
    assert found["gate"].state == NOT_RUN and found["gate"].reason.startswith(
        "no time: it was not ready within the"
    )
    assert found["last"].reason.startswith("no time: it needs about")


def test_a_check_that_takes_the_runner_down_twice_is_not_started_again(tmp_path: Path) -> None:
    state = State(tmp_path / "results.json", {"gpus": ["none"]}, simulated=True)
    state.keep("good", Result(NOT_RUN, "interrupted", attempts=2))
    found = run(tmp_path, only=("good", "last")).results
    assert (
        found["good"].state == FAILED
        and "the run ended 2 times during this check" in found["good"].reason
    )
    assert found["last"].state == PASSED and (tmp_path / "starts").read_text().split() == ["last"]


def test_results_of_another_kind_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    State(path, {"gpus": ["H100"]}, simulated=True).write()
    with pytest.raises(StateError, match="from a simulated device"):
        State(path, {"gpus": ["H100"]}, simulated=False)
    with pytest.raises(StateError, match="from other GPUs"):
        State(path, {"gpus": ["L4"]}, simulated=True)
    path.write_text("{")
    with pytest.raises(StateError):
        State(path, {}, simulated=True)


@pytest.mark.slow
def test_the_command_continues_after_sigkill_and_after_ctrl_c(tmp_path: Path) -> None:
    starts = tmp_path / "starts"

    def command() -> subprocess.Popen[str]:
        words = [
            sys.executable,
            "-m",
            "benchmarks.gpu_day",
            "--checks",
            PACKAGE,
            "--folder",
            str(tmp_path),
            "--only",
            "good",
            "gate",
            "last",
        ]
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    for number, how in enumerate((signal.SIGKILL, signal.SIGINT), 1):
        process = command()
        wait_until(
            lambda count=number: (
                starts.exists() and starts.read_text().split().count("gate") == count
            )
        )  # type: ignore[misc]
        process.send_signal(how)
        _, errors = process.communicate(timeout=20)
        wait_until(lambda: gone(int((tmp_path / "pid").read_text())))
        found = json.loads((tmp_path / "results.json").read_text())["checks"]
        assert (
            found["good"]["state"] == PASSED
            and found["gate"]["reason"] == "interrupted"
            and "last" not in found
        )
    assert process.returncode == 130 and "interrupted; the same command continues" in errors
    (tmp_path / "open").touch()
    assert "1 passed" in (tmp_path / "page.md").read_text()
    after = run(tmp_path, only=("good", "gate", "last"), simulated=False).results
    assert starts.read_text().split() == ["good", "gate", "gate", "gate", "last"]
    assert {one.state for one in after.values()} == {PASSED}


def test_a_trace_gives_each_phase_the_time_of_the_kernels_that_it_launched() -> None:
    events = []
    for step in range(3):
        t, gpu = 1000.0 * step, 1000.0 * step + 500  # the GPU is 500 µs behind
        for number, (phase, begin, length) in enumerate(
            (("forward", 0, 200), ("backward", 200, 500), ("optimizer", 700, 300))
        ):
            events.append(
                {"cat": "user_annotation", "name": phase, "ts": t + 30 * number, "dur": 20}
            )
            launch = {"correlation": 10 * step + number}
            events.append(
                {
                    "cat": "cuda_runtime",
                    "name": "cudaLaunchKernel",
                    "ts": t + 30 * number + 5,
                    "dur": 3,
                    "args": launch,
                }
            )
            events.append(
                {
                    "cat": "kernel",
                    "name": "k",
                    "ts": gpu + begin + 10,
                    "dur": length - 10,
                    "args": launch,
                }
            )
    found = of_trace(events)
    assert found == pytest.approx({"forward": 400e-6, "backward": 1500e-6, "optimizer": 900e-6}), (
        "the first range has no kernel before it"
    )
    assert of_trace([]) == {}
