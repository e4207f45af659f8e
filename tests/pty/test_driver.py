"""The driver in a real terminal: the same picture as Textual's own, in far fewer bytes, whatever
the terminal does."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.pty.shown_console import NEWEST
from tests.pty.terminal import Terminal
from tests.waiting import wait_until

SHOWN = "tests.pty.shown_console"
MAIN = ("SM active", "data wait", "Too few dataloader workers", "q quit")
LEFT = b"\x1b[?1049l"
ALL_FRAMES = 100_000
"""Bytes of Textual's own driver for the moving numbers, where it leaves out no frame: 130 to 150
thousand."""


def shown(tmp_path: Path, *words: str, **size: int) -> Terminal:
    return Terminal(*words, cwd=tmp_path, module=SHOWN, **size)


def tour(*terminals: Terminal) -> Iterator[str]:
    """Open and close screens, and change the size, on all terminals alike; yields what was done."""

    def all_show(*words: str) -> None:
        for terminal in terminals:
            terminal.wait_for(*words)

    all_show(*MAIN)
    yield "the start"
    for key, words in (
        ("?", "Reading the screen"),
        ("s", "A loader that cannot keep up"),
        ("S", "prefetch_factor"),
        ("d", "Details"),
    ):
        for pressed, shown_words in ((key, (words,)), ("escape", MAIN)):
            for terminal in terminals:
                terminal.press(pressed)
            all_show(*shown_words)
            yield f"{key}, {pressed}"
    for columns, rows in ((90, 30), (40, 12), (120, 40)):
        for terminal in terminals:
            terminal.resize(columns, rows)
        all_show("gpuconsole", "findings", "q quit")
        for terminal in terminals:
            wait_until(partial(_fills, terminal, rows), 10, "the last row")
        yield f"{columns} x {rows}"


def _fills(terminal: Terminal, rows: int) -> bool:
    """Whether the key bar is in the last of `rows` rows."""
    lines = terminal.text.rstrip().splitlines() if terminal.settle() else []
    return len(lines) == rows and lines[-1].endswith("q quit")


@pytest.mark.slow
def test_every_cell_is_as_with_textuals_own_driver(tmp_path: Path) -> None:
    with shown(tmp_path, "plain") as plain, shown(tmp_path, "own") as own:
        for moment in tour(plain, own):
            wait_until(
                lambda: plain.settle() and own.settle() and plain.cells == own.cells,
                20,
                f"the same picture after {moment}",
            )
        for terminal in (plain, own):
            terminal.press("q")
            assert terminal.wait_exit() == 0
    assert len(own.raw) < 0.5 * len(plain.raw)


@pytest.mark.slow
def test_far_fewer_bytes_for_the_same_numbers(tmp_path: Path) -> None:
    for _ in range(3):  # a loaded machine leaves out frames: then there is little to compare
        with shown(tmp_path, "plain", "moving") as plain, shown(tmp_path, "own", "moving") as own:
            for terminal in (plain, own):
                terminal.wait_for(NEWEST)
            assert own.cells == plain.cells
        if len(plain.raw) > ALL_FRAMES:
            break
    assert len(own.raw) < 0.4 * len(plain.raw)


@pytest.mark.slow
@pytest.mark.rates
def test_eco_sends_less_still_and_answers_keys_at_once(tmp_path: Path) -> None:
    with shown(tmp_path, "moving") as usual, shown(tmp_path, "moving", "eco") as eco:
        for terminal in (usual, eco):
            terminal.wait_for(NEWEST)
        assert len(eco.raw) < len(usual.raw)
        answered = []
        for _ in range(3):  # its beat is 2 s: one answer may fall on it by chance
            pressed = time.monotonic()
            eco.press("?")
            eco.wait_for("Reading the screen")
            answered.append(time.monotonic() - pressed)
            eco.press("escape")
            eco.wait_gone("Reading the screen")
        assert sorted(answered)[1] < 1.0


def test_nothing_is_sent_while_nothing_changes(tmp_path: Path) -> None:
    with shown(tmp_path) as terminal:
        terminal.wait_for(*MAIN)
        wait_until(lambda: terminal.settle(), 10)
        before = len(terminal.raw)
        deadline = time.monotonic() + 1.0  # forty looks at the api
        while time.monotonic() < deadline:
            terminal.read(0.05)
        assert len(terminal.raw) == before


@pytest.mark.slow
def test_a_stopped_reader_does_not_hold_up_the_end(tmp_path: Path) -> None:
    with shown(tmp_path, "restless") as terminal:
        terminal.wait_for("SM active")
        program = psutil.Process(terminal.process.pid)
        written = [(program.io_counters().write_chars, time.monotonic())]

        def full() -> bool:
            now = program.io_counters().write_chars
            if now != written[-1][0]:
                written.append((now, time.monotonic()))
            # some forty frames had no room
            return len(written) > 1 and time.monotonic() - written[-1][1] > 1.0

        wait_until(full, 30, "the terminal is full")
        assert terminal.unread() > 4000  # a line of a terminal holds 4095
        terminal.press("q")
        wait_until(lambda: terminal.process.poll() is not None, 10, "the program ends unread")


@pytest.mark.slow
def test_a_slow_line_shows_the_newest_state_and_quits(tmp_path: Path) -> None:
    """20 KB/s, 40 updates a second of which all numbers differ."""
    with shown(tmp_path, "moving") as terminal:
        begun = time.monotonic()
        while NEWEST not in terminal.text:
            assert time.monotonic() - begun < 10, terminal.text
            if len(terminal.raw) < 20_000 * (time.monotonic() - begun):
                terminal.read(0.05, most=1000)
            else:
                time.sleep(0.01)  # the line is busy
        terminal.press("q")
        assert terminal.wait_exit() == 0
    assert LEFT in terminal.raw


@pytest.mark.parametrize("stop", [signal.SIGTSTP, signal.SIGSTOP])
def test_stopped_and_continued(tmp_path: Path, stop: signal.Signals) -> None:
    """SIGTSTP gives the terminal back first; after either all is drawn again."""
    with shown(tmp_path) as terminal:
        terminal.wait_for(*MAIN)
        before = terminal.cells
        os.kill(terminal.process.pid, stop)
        wait_until(
            lambda: psutil.Process(terminal.process.pid).status() == psutil.STATUS_STOPPED,
            5,
            "stopped",
        )
        terminal.settle()
        assert (LEFT in terminal.raw) == terminal.echoes == (stop is signal.SIGTSTP)
        terminal.scribble()
        os.kill(terminal.process.pid, signal.SIGCONT)
        terminal.wait_for(*MAIN)
        assert terminal.cells == before
        terminal.press("?")
        terminal.wait_for("Reading the screen")
        terminal.press("q", "q")
        assert terminal.wait_exit() == 0
        assert terminal.echoes


def test_a_shell_for_a_moment(tmp_path: Path) -> None:
    """`App.suspend`: the program within has the terminal as it was."""
    with shown(tmp_path) as terminal:
        terminal.wait_for(*MAIN)
        before = terminal.cells
        terminal.press("z")
        wait_until(
            lambda: terminal.settle() and terminal.raw.count(b"\x1b[?1049h") == 2, 5, "back again"
        )
        terminal.wait_for(*MAIN)
        assert b"hello from the shell" in terminal.raw
        assert terminal.cells == before


def test_ctrl_l_draws_all_again(tmp_path: Path) -> None:
    with shown(tmp_path) as terminal:
        terminal.wait_for(*MAIN)
        before = terminal.cells
        terminal.scribble()
        terminal.press("\x0c")
        terminal.wait_for(*MAIN)
        assert terminal.cells == before


@pytest.mark.slow
def test_the_cursor_is_where_an_input_wants_it(tmp_path: Path) -> None:
    """For input methods, which write beside it."""
    with shown(tmp_path, "own") as own, shown(tmp_path, "plain") as plain:
        cursors = []
        for terminal in (own, plain):
            terminal.wait_for(*MAIN)
            terminal.press("\x10")
            terminal.wait_for("Search for commands")
            terminal.press("kno")
            wait_until(
                lambda it=terminal: it.settle() and it.before_cursor.rstrip().endswith("kno"),
                20,
                "the letters typed",
            )
            cursors.append(terminal.cursor)
        assert cursors[0] == cursors[1] != (0, 0)


def test_the_first_picture_stays_until_the_first_frame(tmp_path: Path) -> None:
    """One alternate screen, never cleared in between, and the titles that the console has."""
    with shown(tmp_path, "skeleton") as terminal:
        wait_until(
            lambda: terminal.read(0.1, most=512) and "tried" in terminal.text,
            10,
            "the first picture",
        )
        assert "starting" in terminal.text and "tokens/s" in terminal.text
        while "q quit" not in terminal.text:
            assert "throughput" in terminal.text and "tried" in terminal.text
            assert terminal.read(1.0, most=512)
        terminal.wait_for(*MAIN)
        assert terminal.raw.count(b"\x1b[?1049h") == 1
        assert terminal.raw.count(b"\x1b[2J") == 1
        assert b"\x1b[?25h" not in terminal.raw
        terminal.press("q")
        assert terminal.wait_exit() == 0
        assert terminal.echoes


def test_a_terminal_that_knows_synchronized_output_gets_whole_frames(tmp_path: Path) -> None:
    with shown(tmp_path) as terminal:
        terminal.wait_for(*MAIN)
        terminal.press("\x1b[?2026;2$y")
        for keys, words in (
            ("?", "Reading the screen"),
            ("escape", "Too few dataloader workers"),
            ("s", "A loader that cannot keep up"),
        ):
            terminal.press(keys)
            terminal.wait_for(words)
        assert 3 <= terminal.raw.count(b"\x1b[?2026h") == terminal.raw.count(b"\x1b[?2026l") <= 8


def test_a_terminal_that_reports_its_size_itself(tmp_path: Path) -> None:
    with shown(tmp_path) as terminal:
        terminal.wait_for(*MAIN)
        terminal.press("\x1b[?2048;2$y")
        wait_until(
            lambda: terminal.settle() and b"\x1b[?2048h" in terminal.raw, 5, "asked to report"
        )
        terminal.columns, terminal.rows = 90, 30
        terminal._screen.resize(30, 90)
        terminal.press("\x1b[48;30;90;600;900t")
        wait_until(
            lambda: (
                terminal.settle() and terminal.text.rstrip().splitlines()[-1].endswith("q quit")
            ),
            5,
            "the last row",
        )
        assert len(terminal.text.rstrip().splitlines()) == 30
