"""Commands whose stdin, stdout or stderr is closed or full, or has lost its reader. The command
keeps all measurements and prints no traceback."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import wait_until

CONSOLE = (sys.executable, "-m", "gpuconsole")
JOB = (sys.executable, "-c", "print('hello')")


def no_reader() -> int:
    """The writing end of a pipe whose reader has ended, like stderr after `2>&1 | head`."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.mark.parametrize("lost", ["no reader", "full"])
def test_a_job_whose_stderr_is_lost_leaves_its_snapshot_and_its_exit_code(
    tmp_path: Path, lost: str
) -> None:
    stderr = no_reader() if lost == "no reader" else os.open("/dev/full", os.O_WRONLY)
    try:
        done = subprocess.run(
            [*CONSOLE, "run", "--headless", "--snapshot", "s.json", "--", *JOB],
            cwd=tmp_path,
            stdout=-1,
            stderr=stderr,
        )
    finally:
        os.close(stderr)
    assert (done.returncode, done.stdout) == (0, b"hello\n")
    assert [run["workload"] for run in json.loads((tmp_path / "s.json").read_bytes())["runs"]] == [
        "job"
    ]


def test_closed_descriptors_are_no_files_of_the_console(tmp_path: Path) -> None:
    """Without stdin, stdout and stderr the next sockets would get their numbers, and children would
    lose them."""

    def close_all() -> None:
        os.closerange(0, 3)

    words = [
        "run",
        "--headless",
        "--summary",
        "sum.txt",
        "--snapshot",
        "s.json",
        "--",
        sys.executable,
        "-c",
        "open('ran', 'w')",
    ]
    done = subprocess.run([*CONSOLE, *words], cwd=tmp_path, preexec_fn=close_all)
    assert done.returncode == 0 and (tmp_path / "ran").exists()
    assert "sampler ended" not in (tmp_path / "sum.txt").read_text()
    done = subprocess.run([*CONSOLE, "devices"], cwd=tmp_path, preexec_fn=close_all)
    assert done.returncode == 0


@pytest.mark.parametrize("words", [("rules",), ("snapshot-schema",)], ids=lambda words: words[0])
def test_a_result_that_cannot_be_written_is_one_line_and_exit_code_1(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*CONSOLE, *words], cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (1, "gpuconsole: No space left on device\n")


def test_a_reader_that_has_gone_is_no_line_and_exit_code_1(tmp_path: Path) -> None:
    stdout = no_reader()
    try:
        done = subprocess.run(
            [*CONSOLE, "rules"], cwd=tmp_path, stdout=stdout, stderr=subprocess.PIPE, text=True
        )
        assert (done.returncode, done.stderr) == (1, "")
    finally:
        os.close(stdout)


def test_letters_that_stdout_cannot_take_are_escapes(tmp_path: Path) -> None:
    done = subprocess.run(
        [*CONSOLE, "doctor"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "TERM": "ümlaut"},
        capture_output=True,
    )
    assert done.returncode == 0 and b"\\xfcmlaut" in done.stdout


NO_BYTECODE = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
"""Python leaves bytecode that does not fit on a disk there, and cannot read it later."""


def full_disk() -> None:
    """Files of the command may have 200 bytes: what is longer fails, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))


@pytest.mark.slow
def test_a_sweep_whose_snapshot_cannot_be_written_is_printed(tmp_path: Path) -> None:
    words = [
        "sweep",
        "gemm-peak",
        "--vary",
        "matrix_size=256,512",
        "--repeat",
        "2",
        "--device",
        "cpu",
        "--snapshot",
        "s.json",
    ]
    done = subprocess.run(
        [*CONSOLE, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        preexec_fn=full_disk,
        env=NO_BYTECODE,
    )
    assert done.returncode == 1 and "matrix_size" in done.stdout
    assert (
        "gpuconsole: s.json: cannot be written: File too large" in done.stderr
        and "Traceback" not in done.stderr
    )


@pytest.mark.slow
def test_a_tuning_session_whose_snapshot_cannot_be_written_is_printed(tmp_path: Path) -> None:
    words = ["tune", "gemm-peak", "--device", "cpu", "--budget", "3", "--snapshot", "s.json"]
    done = subprocess.run(
        [*CONSOLE, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        preexec_fn=full_disk,
        env=NO_BYTECODE,
    )
    assert done.returncode == 1 and "gemm-peak" in done.stdout
    assert (
        "gpuconsole: s.json: cannot be written: File too large" in done.stderr
        and "Traceback" not in done.stderr
    )


def test_a_disk_that_is_full_at_the_end_ends_the_recording_only(tmp_path: Path) -> None:
    """The last events wait in a buffer until the end."""
    words = [
        "run",
        "--headless",
        "--record",
        "r.jsonl",
        "--snapshot",
        "s.json",
        "--",
        sys.executable,
        "-c",
        "import time; print('begun', flush=True); time.sleep(1); print('hello')",
    ]
    with subprocess.Popen(
        [*CONSOLE, *words], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as console:
        wait_until(
            lambda: console.stdout is not None and console.stdout.readline() == "begun\n",
            20,
            "the job",
        )
        wait_until(
            lambda: (tmp_path / "r.jsonl").exists() and (tmp_path / "r.jsonl").stat().st_size,
            20,
            "the recording",
        )
        size = (tmp_path / "r.jsonl").stat().st_size
        resource.prlimit(console.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        wait_until(
            lambda: console.stdout is not None and console.stdout.readline() == "hello\n",
            20,
            "the end of the job",
        )
        resource.prlimit(console.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        _, stderr = console.communicate(timeout=20)
    assert console.returncode == 0 and "Traceback" not in stderr
    assert "recording to r.jsonl ended: File too large" in stderr


def test_a_job_whose_private_folder_cannot_be_filled_is_one_short_line(tmp_path: Path) -> None:
    words = ["run", "--headless", "--", sys.executable, "-c", "print('hello')"]
    done = subprocess.run(
        [*CONSOLE, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        preexec_fn=full_disk,
        env=NO_BYTECODE,
    )
    assert (
        done.returncode == 126 and "could not be started: [Errno 27] File too large" in done.stderr
    )
    assert done.stderr.count("\n") == 1 and len(done.stderr) < 300
