"""What a command writes: its result on stdout, notes and problems on stderr.

`--quiet` leaves out notes and progress. `--color` decides whether a result has colours.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TextIO

import msgspec

from gpuconsole.host.settings import COLORS, settings
from gpuconsole.model.encoding import encode
from gpuconsole.model.text import is_unseen, visible, without_credentials
from gpuconsole.report.cells import Paint, ansi, plain
from gpuconsole.report.parts import Part, printed

_quiet = False
_color = COLORS[0]


def configure(args: argparse.Namespace) -> None:
    """Take --quiet and --color, or else the settings. Raises SettingsError."""
    global _quiet, _color
    _quiet = getattr(args, "quiet", settings().quiet)
    _color = getattr(args, "color", settings().color)


def quiet() -> bool:
    """Whether progress and notes are left out."""
    return _quiet


@contextlib.contextmanager
def screen_colors() -> Iterator[None]:
    """NO_COLOR as --color says, while the screen is created. A job of the user's own keeps the
    environment of the shell."""
    before = os.environ.get("NO_COLOR")
    _set_no_color({"auto": before, "always": None, "never": "1"}[_color])
    try:
        yield
    finally:
        _set_no_color(before)


def _set_no_color(value: str | None) -> None:
    """Set the variable, or remove it: Textual takes an empty value for a set one."""
    if value is None:
        os.environ.pop("NO_COLOR", None)
    else:
        os.environ["NO_COLOR"] = value


def paint(stream: TextIO) -> Paint:
    """How text on `stream` is coloured. See https://no-color.org."""
    if _color == "auto":
        on = (
            stream.isatty()
            and not os.environ.get("NO_COLOR")
            and os.environ.get("TERM", "") not in ("", "dumb")
        )
        return ansi if on else plain
    return ansi if _color == "always" else plain


def show(report: Iterable[Part]) -> None:
    """Print a result."""
    print(printed(report, paint=paint(sys.stdout)))


def show_result(
    args: argparse.Namespace, data: object, report: Callable[[], Iterable[Part]]
) -> None:
    """Print `data` as JSON where --json asks for JSON, else the report for people."""
    if args.json:
        print(to_json(data))
    else:
        show(report())


def to_json(value: object) -> str:
    """`value` as indented JSON. Characters that control a terminal or change the order of the text
    are escapes of JSON: they are in texts only."""
    text = msgspec.json.format(encode(value), indent=2).decode()
    if text.isascii() and "\x7f" not in text:
        return text
    return "".join(_escape(char) if char >= "\x7f" and is_unseen(char) else char for char in text)


def _escape(char: str) -> str:
    """JSON's escape of a character: that of both halves in UTF-16 where it has two."""
    data = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{data[place : place + 2].hex()}" for place in range(0, len(data), 2))


def on_stderr(text: str) -> None:
    """Write a result on stderr, where stdout belongs to the user's job. The terminal or the reader
    of stderr may have gone."""
    with contextlib.suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


def progress(text: str) -> None:
    """Print a line on stderr that --quiet leaves out."""
    if not _quiet:
        with contextlib.suppress(OSError):  # the reader of stderr has ended
            print(visible(without_credentials(text)), file=sys.stderr, flush=True)


def print_note(text: str) -> None:
    """Print a line of the program's own on stderr that --quiet leaves out."""
    progress(f"gpuconsole: {text}")


def problem(text: str) -> None:
    """Print a line of the program's own on stderr."""
    with contextlib.suppress(OSError):
        print(f"gpuconsole: {visible(without_credentials(text))}", file=sys.stderr, flush=True)
