"""Style names to colours: the terminal's own sixteen, so that its light or dark theme is kept and colour bytes stay few.

One accent colour; red only for what needs action. Under NO_COLOR what is left is bold, dim and reverse.
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
    """The rich style behind a painter's style name."""
    return Style.parse(STYLES[name]) if STYLES[name] else Style.null()
