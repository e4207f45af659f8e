"""What the terminal can show, according to the environment. Imported before the first paint:
standard library only."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from enum import IntEnum
from io import TextIOWrapper
from typing import NamedTuple

NO_ADDRESSING = ("dumb", "unknown", "emacs", "cons25-dumb", "network", "dialup")
"""Terminal types without cursor addressing."""
TRUE_COLOUR_TERMS = (
    "direct",
    "kitty",
    "ghostty",
    "alacritty",
    "wezterm",
    "foot",
    "contour",
    "iterm",
)


class Colours(IntEnum):
    """How many colours may be sent."""

    NONE = 0
    SIXTEEN = 16
    MANY = 256
    TRUE = 1 << 24


class Terminal(NamedTuple):
    """`ascii_only`: nothing but ASCII may be sent."""

    colours: Colours
    ascii_only: bool


def screen_fd() -> int | None:
    """The file descriptor of the terminal on which the screen is drawn: stderr, else stdout; None
    if neither is a terminal."""
    return next((number for number in (2, 1) if os.isatty(number)), None)


def screen_file() -> TextIOWrapper | None:
    """The stream of `screen_fd`; stderr if neither is a terminal."""
    return sys.__stdout__ if screen_fd() == 1 else sys.__stderr__


def why_no_terminal() -> str | None:
    """Why there is no terminal for the console; None if there is one."""
    if not os.isatty(0):
        return "there is no terminal: keys come from stdin, and stdin is not a terminal"
    return (
        None
        if screen_fd() is not None
        else "there is no terminal: neither stdout nor stderr is a terminal"
    )


def terminal(environ: Mapping[str, str] = os.environ, encoding: str | None = None) -> Terminal:
    """The terminal on which the screen is drawn."""
    encoding = encoding or getattr(screen_file(), "encoding", None)
    return Terminal(_colours(environ), not (takes_utf8(encoding) and _utf8_locale(environ)))


def why_no_screen(environ: Mapping[str, str] = os.environ) -> str | None:
    """Why a full-screen program cannot draw here; None if it can."""
    name = environ.get("TERM", "")
    if not name:
        return "TERM is not set: the terminal's type is unknown"
    if name in NO_ADDRESSING:
        return f"TERM={name}: this terminal cannot place its cursor"
    return None


def takes_utf8(encoding: str | None) -> bool:
    """Whether a terminal written to in `encoding` shows block characters."""
    return (encoding or "").lower().replace("-", "").replace("_", "") in ("utf8", "utf8sig")


def _colours(environ: Mapping[str, str]) -> Colours:
    if environ.get("NO_COLOR"):
        return Colours.NONE
    name = environ.get("TERM", "")
    if environ.get("COLORTERM", "").lower() in ("truecolor", "24bit") or any(
        word in name for word in TRUE_COLOUR_TERMS
    ):
        return Colours.TRUE
    if "mono" in name or name in ("vt100", "vt102", "vt220"):
        return Colours.NONE
    return Colours.MANY if "256" in name else Colours.SIXTEEN


def _utf8_locale(environ: Mapping[str, str]) -> bool:
    """Whether the user's locale is UTF-8. Without a locale, as in most containers, Python's choice
    counts."""
    if environ.get("PYTHONUTF8") == "1" or environ.get("PYTHONIOENCODING"):
        return True
    names = [environ.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG")]
    if (
        not names[0]
        and names[1] == "C.UTF-8"
        and (sys.flags.utf8_mode or environ.get("PYTHONUTF8") == "0")
    ):
        names[1] = ""  # set by Python itself in place of the C locale (PEP 538)
    locale = next((name for name in names if name), "")
    return not locale or takes_utf8(locale.partition(".")[2].partition("@")[0] or locale)
