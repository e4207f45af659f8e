"""Colours of text in a terminal: the terminal's own sixteen. A style has the same meaning as on the screen."""

from __future__ import annotations

from collections.abc import Callable

Paint = Callable[[str, str], str]
"""Text and the name of its style, to the text as it is printed."""

SGR = {
    "dim": "2",
    "title": "1",
    "heading": "1",
    "code": "1",
    "accent": "36",
    "key": "1;36",
    "mark": "1;7",
    "good": "1;32",
    "wait": "33",
    "loss": "1;33",
    "alert": "1;31",
    "work": "90",
}
"""Parameters of the escape sequence of each style. A style without one has no colour."""


def plain(text: str, style: str) -> str:
    """The text without colours."""
    return text


def ansi(text: str, style: str) -> str:
    """The text in the colour of `style`. Blanks around the text stay plain."""
    words = text.strip(" ")
    if style not in SGR or not words:
        return text
    before, _, after = text.partition(words)
    return f"{before}\x1b[{SGR[style]}m{words}\x1b[m{after}"
