"""Keys that are typed while the console starts: all are kept, in order."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.fakes.nvml.build import Script
from tests.matrix import matrix
from tests.no_torch import without_torch
from tests.pty.terminal import Terminal
from tests.waiting import wait_until

GAP_S = 0.02
"""Between two keys: much longer than between the bytes of one key, much shorter than the start."""
ESCAPE_GAP_S = 0.2
"""After Escape. Textual takes Escape and a key within 0.1 s for Alt and the key, as terminals send
it."""


def started(tmp_path: Path, env: dict[str, str] | None = None) -> Terminal:
    """A console whose first picture is on the screen."""
    terminal = Terminal(cwd=tmp_path, env={**without_torch(tmp_path), **(env or {})})
    wait_until(
        lambda: terminal.read(0.0) and b"\x1b[?1049h" in terminal.raw, 20, "the first picture"
    )
    return terminal


def type_slowly(terminal: Terminal, keys: list[str]) -> None:
    for key in keys:
        terminal.press(key)
        time.sleep(ESCAPE_GAP_S if key == "escape" else GAP_S)


@pytest.mark.parametrize("delay_s", matrix([0.0, 0.2, 0.5], in_ci=(0.0,)))
def test_keys_before_the_first_sample_open_and_close_the_picker(
    tmp_path: Path, delay_s: float
) -> None:
    with started(tmp_path) as terminal:
        time.sleep(delay_s)
        type_slowly(terminal, ["s", "escape"])
        terminal.wait_for(
            "what to press", "this machine (CPU)", "cores busy", "step 1 of 4", timeout_s=20
        )
        terminal.press("i")  # nothing covers the main screen
        terminal.wait_for("Devices and metrics", timeout_s=20)


@pytest.mark.slow
@pytest.mark.parametrize("delay_s", matrix([0.2, 1.2], in_ci=(0.2,)))
def test_keys_work_while_the_driver_is_slow(
    fake_library: Path, tmp_path: Path, delay_s: float
) -> None:
    script = Script(tmp_path / "machine.txt", "gpus 2", "init_delay 3000")
    with started(tmp_path, script.environment(fake_library)) as terminal:
        time.sleep(delay_s)
        type_slowly(terminal, ["s", "escape"])
        terminal.wait_for(
            "2x H200", "2 GPUs · 2 busy", "gpu:1", "processes on the GPUs", timeout_s=20
        )
        terminal.press("i")
        terminal.wait_for("Devices and metrics", timeout_s=20)


@pytest.mark.parametrize("delay_s", matrix([0.0, 0.3], in_ci=(0.3,)))
def test_keys_during_the_start_arrive_in_order(tmp_path: Path, delay_s: float) -> None:
    with started(tmp_path) as terminal:
        time.sleep(delay_s)
        type_slowly(terminal, ["escape", "s", "/", *"starved", "escape", "escape"])
        terminal.wait_for("what to press", timeout_s=20)
        terminal.press("?")
        terminal.wait_for("Reading the screen", timeout_s=20)
        terminal.press("escape")
        terminal.wait_for("what to press", timeout_s=20)
        assert not terminal.text.startswith("Scenarios")


def test_letters_during_the_start_go_to_the_picker(tmp_path: Path) -> None:
    with started(tmp_path) as terminal:
        type_slowly(terminal, ["s", "/", *"quantized"])  # q would end the console
        terminal.wait_for("1 of 1", "> quantized", timeout_s=20)


@pytest.mark.slow
def test_the_console_draws_on_stdout_where_stderr_is_a_file(tmp_path: Path) -> None:
    errors = tmp_path / "errors"
    with Terminal(cwd=tmp_path, env=without_torch(tmp_path), stderr=errors) as terminal:
        terminal.wait_for("what to press", "cores busy", timeout_s=20)
        terminal.press("q")
        assert terminal.process.wait(10) == 0
    assert errors.read_text() == ""
