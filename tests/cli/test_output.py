"""Notes and problems on stderr, colours of results: `--quiet`, `--color`, NO_COLOR."""

from __future__ import annotations

import argparse
import io
import os
from collections.abc import Iterator
from typing import cast

import pytest

from gpuconsole.cli import output
from gpuconsole.cli.headless import ProgressLines
from gpuconsole.cli.parser import parse
from gpuconsole.cli.values import device, eco, interval, price_per_hour
from gpuconsole.host import settings
from gpuconsole.report.cells import SGR, ansi, plain
from gpuconsole.report.parts import Column, Table, labelled, printed, text
from gpuconsole.session.api import View
from gpuconsole.tui.theme import STYLES, THEMES


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    output.configure(argparse.Namespace(quiet=False, color="auto"))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("color", "stream", "variables", "coloured"),
    [
        ("auto", Terminal(), {}, True),
        ("auto", io.StringIO(), {}, False),
        ("auto", Terminal(), {"NO_COLOR": "1"}, False),
        ("auto", Terminal(), {"TERM": "dumb"}, False),
        ("always", io.StringIO(), {"NO_COLOR": "1"}, True),
        ("never", Terminal(), {}, False),
    ],
)
def test_when_a_result_has_colours(
    color: str,
    stream: io.StringIO,
    variables: dict[str, str],
    coloured: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    output.configure(argparse.Namespace(color=color))
    assert output.paint(stream) is (ansi if coloured else plain)


def test_colours_change_no_column() -> None:
    table = Table([Column("change"), Column("speedup", ">")], [[("a", "good"), ("1.5x", "alert")]])
    report = [labelled("error", "x\x1b[31m", "alert"), text("words"), table]
    shown = printed(report, paint=ansi)
    without = shown
    for code in ("\x1b[m", "\x1b[2m", "\x1b[1;32m", "\x1b[1;31m"):
        without = without.replace(code, "")
    assert without == printed(report) and "\x1b" not in without, (
        "control characters of others are not printed"
    )
    assert "\x1b[1;32ma\x1b[m" in shown


def test_the_styles_and_themes_are_those_of_the_screen() -> None:
    assert set(SGR) <= set(STYLES)
    assert set(settings.THEMES) == set(THEMES)


@pytest.mark.parametrize(("color", "value"), [("auto", "x"), ("always", None), ("never", "1")])
def test_the_screen_takes_the_choice_and_a_job_keeps_the_environment(
    color: str, value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "x")
    output.configure(argparse.Namespace(color=color))
    with output.screen_colors():
        assert os.environ.get("NO_COLOR") == value
    assert os.environ["NO_COLOR"] == "x"
    monkeypatch.delenv("NO_COLOR")
    with output.screen_colors():
        pass
    assert "NO_COLOR" not in os.environ


def test_quiet_leaves_out_notes_and_progress_and_no_problem(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output.configure(argparse.Namespace(quiet=True))
    stream = io.StringIO()
    progress = ProgressLines(stream)
    progress.show(cast("View", None), 1.0, 2.0)
    progress.line("trial: batch_size 4 -> 8")
    progress.done()
    output.print_note("kept as a baseline")
    assert stream.getvalue() == "" and capsys.readouterr().err == ""
    output.problem("run 1 failed")
    assert capsys.readouterr().err == "gpuconsole: run 1 failed\n"


def test_an_option_comes_before_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCONSOLE_INTERVAL", "2")
    monkeypatch.setenv("GPUCONSOLE_PRICE", "3")
    settings.settings.cache_clear()
    try:
        args = parse(["--price", "4", "run", "train-gpt"])
        assert (interval(args), price_per_hour(args), device(args), eco(args)) == (
            2.0,
            4.0,
            None,
            False,
        )
    finally:
        settings.settings.cache_clear()
