"""The whole product by its keys, in a real terminal."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import jsonschema
import psutil
import pytest

from gpuconsole.model.snapshot import json_schema
from tests.pty.terminal import Terminal
from tests.waiting import gone, wait_until

RESTORED = b"\x1b[?1049l"  # back from the alternate screen


@pytest.mark.slow
def test_the_first_run_by_keys(tmp_path: Path) -> None:
    """`gpuconsole`, then s, Enter, wait, Enter: a proven win. Then undo, export and quit. Each step
    has its hint.

    On a machine that other programs load, the first trial may be undecided. The hint then asks for
    Enter again.
    """
    with Terminal(cwd=tmp_path) as terminal:
        terminal.wait_for("what to press", "No GPU", "step 1 of 4", "s scenarios")
        terminal.press("s")
        terminal.wait_for(
            "start here",
            "train-gpt",
            "> chatty-logging",
            "Logging delays every step",
            "step 1 of 4",
        )
        terminal.press("enter")
        terminal.wait_for("▓ forward", "▒ backward", "logging", "step 2 of 4")
        terminal.wait_for("log_every", "predicted", "step 3 of 4", timeout_s=60)
        terminal.press("y")
        terminal.wait_for("copied the code for log_every 20")
        assert b"\x1b]52;c;" in terminal.raw
        for _ in range(3):
            terminal.press("enter")
            terminal.wait_for("step 4 of 4", timeout_s=20)
            terminal.wait_gone("step 4 of 4", timeout_s=90)
            if "step 3 of 4" not in terminal.text:
                break
        terminal.wait_for("kept", timeout_s=60)
        terminal.press("u")
        terminal.wait_for("log_every 20 -> 1: change taken back at step", timeout_s=20)
        terminal.press("e")
        wait_until(lambda: list(tmp_path.glob("gpuconsole-*.json")), 10, "the snapshot")
        terminal.press("q")
        assert terminal.wait_exit() == 0
        assert "gpuconsole: session saved to gpuconsole-" in terminal.text
    assert RESTORED in terminal.raw
    snapshot = json.loads(next(tmp_path.glob("gpuconsole-*.json")).read_text())
    jsonschema.validate(snapshot, json_schema())
    assert snapshot["trials"][-1]["verdict"] == "win" and snapshot["trials"][-1]["kept"]
    assert [run["knobs"]["log_every"] for run in snapshot["runs"]] == [1, 20, 1]


def running(tmp_path: Path, *options: str) -> Terminal:
    """A console on which a small job runs."""
    terminal = Terminal(
        "run", "train-gpt", "--set", "d_model=64", "--set", "n_layer=1", *options, cwd=tmp_path
    )
    terminal.wait_for("▓ forward", "▒ backward")
    return terminal


@pytest.mark.slow
def test_a_dropped_connection_saves_the_session_and_leaves_no_process(tmp_path: Path) -> None:
    with running(tmp_path) as terminal:
        children = [
            child.pid for child in psutil.Process(terminal.process.pid).children(recursive=True)
        ]
        terminal.hang_up()
        wait_until(lambda: terminal.process.poll() is not None, 20, "the console ends")
    snapshot = json.loads(next(tmp_path.glob("gpuconsole-*.json")).read_text())
    jsonschema.validate(snapshot, json_schema())
    assert snapshot["runs"][0]["summary"]["steps"] > 0
    wait_until(lambda: all(gone(pid) for pid in children), 10, "children gone")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT])
def test_sighup_with_the_terminal_still_there_restores_it(
    tmp_path: Path, number: signal.Signals
) -> None:
    with running(tmp_path) as terminal:
        os.kill(terminal.process.pid, number)
        terminal.wait_exit()
    assert RESTORED in terminal.raw
    assert list(tmp_path.glob("gpuconsole-*.json"))


@pytest.mark.slow
def test_a_killed_worker_is_reported_on_the_screen_and_keys_still_work(tmp_path: Path) -> None:
    with running(tmp_path) as terminal:
        worker = next(
            c
            for c in psutil.Process(terminal.process.pid).children()
            if "gpuconsole.workloads.worker" in c.cmdline()
        )
        worker.kill()
        terminal.wait_for("SIGKILL")
        terminal.press("?")
        terminal.wait_for("Help")
        terminal.press("escape")
        terminal.wait_for("findings", "tried")
        terminal.press("q")
        assert terminal.wait_exit() == 1  # the workload failed


@pytest.mark.slow
def test_esc_cancels_a_trial_and_the_run_goes_on(tmp_path: Path) -> None:
    with running(tmp_path, "--set", "log_every=20") as terminal:
        terminal.press("S")
        terminal.wait_for("Settings", "log_every")
        terminal.press("/", "log_every", "enter")
        terminal.wait_for("filter: log_every")
        terminal.press("enter")
        terminal.wait_for("log_every = 20", "Esc discard")
        terminal.press("\x7f", "\x7f", "400", "enter")
        terminal.wait_for("log_every 20 -> 400: a applies, v tries")
        terminal.press("v")
        terminal.wait_for("Esc cancel", "trial log_every 20 -> 400")
        terminal.press("escape")
        terminal.wait_for(
            "▼ log_every 400 cancelled", "last trial  log_every 400  not measured  cancelled"
        )
        terminal.wait_gone("Esc cancel")
        assert "last trial" in terminal.text.splitlines()[-3]  # one row above the hint and the keys
        seconds = re.compile(r"running 00:(\d\d)")
        before = max(seconds.findall(terminal.text))
        wait_until(
            lambda: terminal.read() and max(seconds.findall(terminal.text)) > before,
            20,
            "the run goes on",
        )
        terminal.press("q")
        assert terminal.wait_exit() == 0
    snapshot = json.loads(next(tmp_path.glob("gpuconsole-*.json")).read_text())
    (trial,) = snapshot["trials"]
    assert trial["state"] == "cancelled" and not trial.get("kept")
    (run,) = snapshot["runs"]
    assert run["knobs"]["log_every"] == 20


@pytest.mark.slow
def test_resize_to_almost_nothing_and_back_and_its_recording_is_marked_as_one(
    tmp_path: Path,
) -> None:
    with running(tmp_path, "--record", "r.jsonl") as terminal:
        terminal.resize(40, 12)
        terminal.wait_gone("throughput, ")
        terminal.wait_for("train-gpt")
        terminal.resize(120, 40)
        terminal.wait_for("▓ forward", "▒ backward", "throughput, ", "tried")
        terminal.press("q")
        assert terminal.wait_exit() == 0
    with Terminal("replay", "r.jsonl", "--speed", "20", cwd=tmp_path) as terminal:
        terminal.wait_for("REPLAY", "▓ forward", "▒ backward", "train-gpt")
        terminal.press("q")
        assert terminal.wait_exit() == 0


def test_the_demo_is_marked_as_a_recording_on_every_screen(tmp_path: Path) -> None:
    """The first seconds of the recorded session, its sub-screens, and two quick q: the first leaves
    the help, the second the console."""
    with Terminal("--demo", cwd=tmp_path) as terminal:
        terminal.wait_for("REPLAY", "data-starved", "step 2 of 4", timeout_s=20)
        for key, words in (
            ("i", "Devices and metrics"),
            ("h", "History"),
            ("?", "Reading the screen"),
        ):
            terminal.press(key)
            terminal.wait_for("REPLAY", words)
        terminal.press("x", "enter")  # nothing runs that could be changed
        terminal.press("q")
        terminal.wait_for("REPLAY", "History")
        terminal.press("q", "q")
        assert terminal.wait_exit() == 0
    assert RESTORED in terminal.raw and not list(tmp_path.iterdir())


def test_a_recording_is_paused_and_sought_by_keys(tmp_path: Path) -> None:
    with Terminal("--demo", cwd=tmp_path) as terminal:
        terminal.wait_for("REPLAY 00:0", "space pause", timeout_s=20)
        terminal.press(" ", "9")
        terminal.wait_for("REPLAY 00:35 of 00:38  paused", "faster: kept")
        terminal.press("\x1b[D", "2")
        terminal.wait_for("REPLAY 00:07 of 00:38  paused")
        terminal.wait_gone("faster: kept")
        terminal.press("+", " ")
        terminal.wait_for("  2x")
        terminal.press("q")
        assert terminal.wait_exit() == 0


def test_keys_of_the_configuration_file(tmp_path: Path) -> None:
    (tmp_path / "gpuconsole").mkdir()
    (tmp_path / "gpuconsole" / "config.toml").write_text('[keys]\nhistory = "H"\nquit = "f10"\n')
    with Terminal("--demo", cwd=tmp_path, env={"XDG_CONFIG_HOME": str(tmp_path)}) as terminal:
        terminal.wait_for("H history", "f10 quit", "data-starved", timeout_s=20)
        terminal.press("h", "H")
        terminal.wait_for("History")
        terminal.press("\x1b[21~", "\x1b[21~")  # f10
        assert terminal.wait_exit() == 0


def test_a_wrong_key_name_is_one_line_before_anything_is_painted(tmp_path: Path) -> None:
    with Terminal("--demo", cwd=tmp_path, env={"GPUCONSOLE_KEYS": "histroy=H"}) as terminal:
        assert terminal.wait_exit() == 2
        assert (
            b"GPUCONSOLE_KEYS: there is no action 'histroy' (did you mean 'history'?)"
            in terminal.raw
        )
        assert b"\x1b" not in terminal.raw
