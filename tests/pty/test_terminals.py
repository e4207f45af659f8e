"""What goes to terminals that can do less, in raw bytes."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.pty.terminal import Terminal
from tests.pty.test_driver import LEFT, MAIN, SHOWN
from tests.waiting import wait_until


def seen_by(tmp_path: Path, **env: str) -> bytes:
    """All bytes of a tour through screens, a toast and the command palette."""
    with Terminal("skeleton", cwd=tmp_path, module=SHOWN, env=env) as terminal:
        terminal.wait_for(*MAIN)
        for keys, words in (
            ("r", "recording"),
            ("\x10", "Search for commands"),
            ("sett", "Edit the settings"),
        ):
            terminal.press(keys)
            terminal.wait_for(words)
        terminal.press("escape")
        terminal.wait_gone("Edit the settings")
        for key, words in (
            ("s", "A loader that cannot keep up"),
            ("h", "step times of"),
            ("?", "Reading the screen"),
        ):
            terminal.press(key)
            terminal.wait_for(words)
            terminal.press("escape")
            terminal.wait_for(*MAIN)
        terminal.press("q")
        assert terminal.wait_exit() == 0
        return bytes(terminal.raw)


def colours_in(raw: bytes) -> set[int]:
    """The SGR codes that are about colour; 38 and 48 stand for all that follows them."""
    found = set()
    for codes in re.findall(rb"\x1b\[([0-9;]*)m", raw):
        numbers = [int(code or 0) for code in codes.split(b";")]
        while numbers:
            code = numbers.pop(0)
            if code >= 30 and not 50 <= code < 60:
                found.add(code)
            if code in (38, 48):
                numbers = numbers[4 if numbers[0] == 2 else 2 :]
    return found


@pytest.mark.slow
def test_no_color_sends_no_colour(tmp_path: Path) -> None:
    raw = seen_by(tmp_path, NO_COLOR="1")
    assert not colours_in(raw)
    assert b"\x1b[1m" in raw or b";1m" in raw


@pytest.mark.slow
def test_sixteen_colours_are_all_that_an_xterm_gets(tmp_path: Path) -> None:
    colours = colours_in(seen_by(tmp_path, TERM="xterm", COLORTERM=""))
    assert colours and not colours & {38, 48}


@pytest.mark.slow
@pytest.mark.parametrize(
    "env", [{"LANG": "C", "LC_CTYPE": ""}, {"LC_ALL": "POSIX", "PYTHONUTF8": "0"}], ids=str
)
def test_a_terminal_without_utf8_gets_ascii(tmp_path: Path, env: dict[str, str]) -> None:
    raw = seen_by(tmp_path, **env)
    assert raw.isascii()
    assert b"+- " in raw


@pytest.mark.parametrize("arguments", [(), ("run", "train-gpt"), ("--device", "cpu")])
@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_terminal_without_cursor_addressing_is_told_what_to_do(
    tmp_path: Path, arguments: tuple[str, ...], term: str
) -> None:
    with Terminal(*arguments, cwd=tmp_path, env={"TERM": term}) as terminal:
        assert terminal.wait_exit() == 2
        raw = bytes(terminal.raw)
    assert raw.startswith(b"gpuconsole: TERM") and raw.count(b"\n") == 1 and b"--headless" in raw
    assert b"\x1b" not in raw


@pytest.mark.parametrize(
    "arguments",
    [
        ("--nonsense",),
        ("run", "nosuch"),
        ("nosuch",),
        ("run", "train-gpt", "--set", "no=1"),
        ("--token-file", "x"),
        ("run", "train-gpt", "--token-file", "x"),
    ],
)
def test_bad_usage_is_told_before_anything_is_painted(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    with Terminal(*arguments, cwd=tmp_path) as terminal:
        assert terminal.wait_exit() == 2
        assert b"\x1b" not in terminal.raw


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT])
def test_killed_before_the_app_is_there_the_terminal_is_given_back(
    tmp_path: Path, number: signal.Signals
) -> None:
    """The picture is up 0.04 s after the start, the app after some 0.4 s."""
    with Terminal(cwd=tmp_path) as terminal:
        wait_until(
            lambda: terminal.read(0) and b"\x1b[?1049h" in terminal.raw, 20, "the first picture"
        )
        os.kill(terminal.process.pid, number)
        code = terminal.wait_exit()
        assert code in (-number, 128 + number), code
        assert LEFT in terminal.raw and terminal.raw.rindex(LEFT) > terminal.raw.rindex(
            b"\x1b[?1049h"
        )
        assert b"\x1b[?25h" in terminal.raw
        assert terminal.echoes


@pytest.mark.parametrize("key", ["\x1c", "\x1a"], ids=["ctrl+backslash", "ctrl+z"])
def test_keys_that_make_signals_are_keys_from_the_first_picture_on(
    tmp_path: Path, key: str
) -> None:
    with Terminal(cwd=tmp_path) as terminal:
        wait_until(
            lambda: terminal.read(0) and b"\x1b[?1049h" in terminal.raw, 20, "the first picture"
        )
        terminal.press(key, key)
        terminal.wait_for("q quit")
        terminal.press("q")
        assert terminal.wait_exit() == 0


def test_an_error_before_the_app_is_there_gives_the_terminal_back(tmp_path: Path) -> None:
    with Terminal(cwd=tmp_path, module="tests.pty.broken_console") as terminal:
        assert terminal.wait_exit() == 70
        assert b"\x1b[?1049h" in terminal.raw
        assert terminal.raw.index(LEFT) < terminal.raw.index(b"no engine today")
        assert terminal.echoes


def test_the_first_picture_comes_long_before_the_app(tmp_path: Path) -> None:
    with Terminal(cwd=tmp_path) as terminal:
        begun = time.monotonic()
        terminal.wait_for("gpuconsole", "starting", "what to press", timeout_s=20)
        picture_s = time.monotonic() - begun
        terminal.wait_for("q quit")
        assert picture_s < 0.5 * (time.monotonic() - begun)
        assert not re.search(r"\d", _first_frame(bytes(terminal.raw)))
        terminal.press("q")
        assert terminal.wait_exit() == 0


def _first_frame(raw: bytes) -> str:
    """The text of the first picture."""
    picture = raw[: raw.index(b"\x1b[?1000h")].decode()
    return re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", picture)
