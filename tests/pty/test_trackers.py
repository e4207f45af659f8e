"""A tracker that hangs, beside the real screen: the screen closes as without a tracker, and what
was lost is said in the terminal."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

import pytest

from tests.pty.terminal import Terminal
from tests.waiting import wait_until

pytest.importorskip("opentelemetry.sdk")

TRAINING = """
import os, time, torch
torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
until = time.monotonic() + 90  # no process stays after a test that failed
while not os.path.exists("go") and time.monotonic() < until:
    optimizer.zero_grad()
    model(torch.ones(8, 64)).square().mean().backward()
    optimizer.step()
    time.sleep(0.02)
"""


@pytest.mark.slow
def test_the_screen_does_not_wait_for_a_tracker_that_hangs_and_the_terminal_says_what_was_lost(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    # it accepts connections, and never answers
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{deaf.getsockname()[1]}"}
        words = ("run", "--log-to", "otlp", "--", sys.executable, "train.py")
        said = tmp_path / "stderr"
        with Terminal(*words, cwd=tmp_path, env=env, stderr=said) as terminal:
            terminal.wait_for("─ findings", "samples/s")
            # the screen names the tracker that fails
            terminal.wait_for("--log-to otlp", timeout_s=30)
            (tmp_path / "go").touch()
            terminal.wait_for("finished 00:", timeout_s=30)
            pressed = time.monotonic()
            terminal.press("q")
            while b"\x1b[?1049l" not in terminal.raw and terminal.read():
                assert time.monotonic() - pressed < 8, "the screen waits for the tracker"
            wait_until(
                lambda: "waiting up to 10 s for otlp" in said.read_text(),
                5,
                "the terminal says what the program waits for",
            )
            terminal.press("\x03")
            assert terminal.wait_exit(5) == 0
    assert "--log-to otlp: " in said.read_text() and "points were not delivered" in said.read_text()
