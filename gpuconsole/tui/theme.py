"""Style names and their colours: the terminal's own sixteen, which follow its light or dark theme and need few bytes.

One accent colour; red only for what needs action. Under NO_COLOR bold, dim and reverse remain.
"""

from __future__ import annotations

from rich.style import Style

STYLES: dict[str, str] = {
    "": "",
    "dim": "dim",
    "title": "bold",
    "heading": "bold cyan",
    "accent": "cyan",
    "good": "bold cyan",
    "alert": "bold red",
    "key": "bold cyan",
    "mark": "bold reverse",
    "code": "cyan",
    "trace": "cyan",
    "wait": "cyan",
    "work": "bright_black",
}


def style_of(name: str) -> Style:
    """The rich style of a style name in a row."""
    return Style.parse(STYLES[name]) if STYLES[name] else Style.null()
