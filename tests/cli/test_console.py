"""The end of the console: the session is saved however the console ends, and the user reads
where."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuconsole.cli import console
from gpuconsole.session.api import SessionError
from gpuconsole.tui import app


class FakeEngine:
    """A session with one run, or none; `full`: the disk is."""

    def __init__(self, runs: int = 1, full: bool = False) -> None:
        self.state = SimpleNamespace(records=[object()] * runs)
        self.exports: list[Path | None] = []
        self._full = full
        self.job = None
        self.recording_lost = ""

    async def open(self) -> None:
        pass

    def device(self) -> None:
        pass

    def export(self, path: Path | None = None) -> Path:
        self.exports.append(path)
        if self._full:
            raise SessionError(
                f"{path or 'gpuconsole-1.json'}: cannot be written: No space left on device"
            )
        return path or Path("gpuconsole-1.json")


Open = Callable[..., int]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Open:
    """`open_console` on a fake engine and without a screen: `show` is what the screen would do."""

    def run(engine: FakeEngine, show: Callable[[Any], int], snapshot: Path | None = None) -> int:
        async def shown(screen: Any) -> int:
            return show(screen)

        monkeypatch.setattr(console, "live_engine", lambda args, sampler: engine)
        monkeypatch.setattr(console, "show_first_picture", lambda: None)
        monkeypatch.setattr(app, "ConsoleApp", lambda *words, **options: SimpleNamespace(**options))
        monkeypatch.setattr(app, "show", shown)
        return console.open_console(
            cast(
                "argparse.Namespace",
                SimpleNamespace(interval=1.0, serve=None, eco=False, snapshot=snapshot),
            )
        )

    return run


def test_quitting_saves_the_session_and_prints_where(
    opened: Open, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = FakeEngine()
    assert opened(engine, lambda screen: 0) == 0
    assert engine.exports == [None]
    assert capsys.readouterr().err == "gpuconsole: session saved to gpuconsole-1.json\n"


def test_the_file_that_the_user_chose_is_written_also_without_runs(
    opened: Open, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = FakeEngine(runs=0)
    assert opened(engine, lambda screen: 0, Path("mine.json")) == 0
    assert engine.exports == [Path("mine.json")]


def test_a_session_without_runs_leaves_no_file(
    opened: Open, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = FakeEngine(runs=0)
    assert opened(engine, lambda screen: 0) == 0
    assert engine.exports == []
    assert capsys.readouterr().err == ""


def test_a_crash_of_the_screen_saves_the_session(
    opened: Open, capsys: pytest.CaptureFixture[str]
) -> None:
    def crash(screen: Any) -> int:
        raise RuntimeError("a bug")

    engine = FakeEngine()
    with pytest.raises(RuntimeError, match="a bug"):
        opened(engine, crash)
    assert engine.exports == [None]
    assert "session saved to gpuconsole-1.json" in capsys.readouterr().err


def test_a_hang_up_saves_once(opened: Open) -> None:
    def hang_up(screen: Any) -> int:
        screen.on_hangup()
        return 129

    engine = FakeEngine()
    assert opened(engine, hang_up) == 129
    assert engine.exports == [None]


@pytest.mark.parametrize("snapshot", [None, Path("mine.json")])
def test_a_full_disk_is_one_line_and_exit_code_1(
    opened: Open, capsys: pytest.CaptureFixture[str], snapshot: Path | None
) -> None:
    assert opened(FakeEngine(full=True), lambda screen: 0, snapshot) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gpuconsole: the session could not be saved: ")
    assert line.endswith(": cannot be written: No space left on device")
