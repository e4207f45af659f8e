"""A user in a hurry: keys and clicks at the wrong moment, half-typed fields, other sizes. The
console answers and ends in good order."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.pty.terminal import Terminal
from tests.pty.test_start import ESCAPE_GAP_S


def click(terminal: Terminal, x: int, y: int) -> None:
    """A press and a release of the left button in cell (x, y), as xterm sends them."""
    terminal.press(f"\x1b[<0;{x + 1};{y + 1}M", f"\x1b[<0;{x + 1};{y + 1}m")


@pytest.mark.slow
def test_keys_and_clicks_at_the_wrong_moment(tmp_path: Path) -> None:
    """One console, from its start to its end: before the first step there is nothing to try, to
    copy, to undo."""
    with Terminal(
        "run", "chatty-logging", "--set", "d_model=64", "--set", "n_layer=1", cwd=tmp_path
    ) as terminal:
        terminal.wait_for("q quit", timeout_s=20)
        terminal.press("enter", "y", "u", "down", "up")
        terminal.wait_for("there is no suggestion to try", "there is no suggestion to copy")
        assert "No fault found" not in terminal.text  # nothing has been measured
        for x in range(0, 120, 23):
            for y in range(7, 37, 5):
                click(terminal, x, y)
        terminal.press("s")  # whatever the clicks have opened
        terminal.wait_for("Scenarios", "start here")
        terminal.press("/", *"chatq")  # q is a letter in a field
        terminal.wait_for("No scenario matches")
        terminal.resize(60, 15)
        terminal.wait_for("Esc all lines", "chatq")
        terminal.resize(120, 40)
        terminal.wait_for("Esc all lines", "chatq")
        terminal.press("escape")
        terminal.wait_for("> train-gpt")
        terminal.press("q")
        terminal.wait_for("q quit", timeout_s=20)
        terminal.wait_for("forward", "backward")
        terminal.press("S", "enter")
        terminal.wait_for("batch_size")
        terminal.press("7")
        terminal.resize(40, 12)
        terminal.resize(120, 40)
        terminal.press("escape")
        terminal.settle()
        time.sleep(ESCAPE_GAP_S)
        terminal.press("x", "q", "q", "q")  # stop, leave the screen, quit, and once more
        assert terminal.wait_exit() == 0
        assert "session saved to" in terminal.text
