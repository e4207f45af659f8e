"""`gpuconsole watch` on the screen."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_watch import answered, client, embedded_server
from tests.fakes.processes import address_of
from tests.pty.terminal import Terminal

pytestmark = pytest.mark.slow


def test_the_screen_shows_what_limits_a_server_and_the_flag_of_its_engine(tmp_path: Path) -> None:
    with (
        address_of("server_pages", "sglang", "capped") as url,
        Terminal("watch", url, cwd=tmp_path) as terminal,
    ):
        terminal.wait_for(
            "The limit of running sequences is reached",
            "python -m sglang.launch_server ... --max-running-requests 128",
        )
        text = terminal.wait_for("running 10", "waiting 90", "ITL p50")
        assert "t tune" not in text and "TPOT" not in text, (
            "nothing is changed, and nothing is shown that only a client measures"
        )
        terminal.press("q")
        assert terminal.wait_exit() == 0


def test_a_probe_asks_first_and_no_sends_nothing(tmp_path: Path) -> None:
    with embedded_server() as url, Terminal("watch", url, cwd=tmp_path) as terminal:
        terminal.wait_for("has room for more requests", "P probe", timeout_s=60)
        terminal.press("P")
        terminal.wait_for(
            "Send requests to the server?",
            "5 streaming requests",
            "256 characters",
            "32 tokens out",
            "60 s at most",
        )
        terminal.press("enter")  # the no is selected
        terminal.wait_gone("Send requests to the server?")
        assert answered(url) == 0
        terminal.press("P")
        terminal.wait_for("Send requests to the server?")
        terminal.press("up", "enter")
        terminal.wait_for("probe: a client waits", timeout_s=60)
        terminal.wait_for("5 requests of ours", "requests of ours: first token after")
        assert answered(url) == 5
        terminal.press("d")
        terminal.wait_for("No queue before the engine")
        terminal.press("q")
        terminal.wait_for("P probe")
        terminal.press("q")
        assert terminal.wait_exit() == 0


def test_enter_tries_a_limit_under_the_traffic_and_gives_it_back(tmp_path: Path) -> None:
    """A cache of 16 blocks: requests are thrown out, and the rule suggests fewer at a time, which
    needs no restart of this server."""
    with (
        embedded_server("--live-limits", max_num_seqs=16, num_gpu_blocks_override=16) as url,
        client(url, 12, 100, seconds=200),
        Terminal("watch", url, cwd=tmp_path) as terminal,
    ):
        terminal.wait_for(
            "The KV cache limits this server", "Enter try", "max_num_seqs 16 ->", timeout_s=90
        )
        terminal.press("enter")
        terminal.wait_for("trial ", "max_num_seqs 16", "the first blocks run", timeout_s=60)
        terminal.press("escape")
        terminal.wait_for("cancelled", timeout_s=90)
        terminal.press("q")
        assert terminal.wait_exit() == 0
