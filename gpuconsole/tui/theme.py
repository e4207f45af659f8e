"""Style names and their colours: the terminal's own sixteen, which follow its light or dark theme and need few bytes.

Each colour has one meaning: yellow is time spent waiting, green a gain, red needs action, cyan is a key or what has the focus. Data is grey. Under
NO_COLOR bold, dim and reverse remain.
"""

from __future__ import annotations

from rich.style import Style

STYLES: dict[str, str] = {
    "": "",
    "dim": "dim",
    "title": "bold",
    "heading": "bold",
    "accent": "cyan",
    "key": "bold cyan",
    "mark": "bold reverse",
    "good": "bold green",
    "gained": "green",
    "alert": "bold red",
    "wait": "yellow",
    "loss": "bold yellow",
    "work": "bright_black",
    "trace": "bright_black",
    "code": "bold",
}


def style_of(name: str) -> Style:
    """The rich style of a style name in a row."""
    return Style.parse(STYLES[name]) if STYLES[name] else Style.null()
