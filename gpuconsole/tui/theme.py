"""Style names and their colours, for a dark and for a light terminal.

Each colour has one meaning: yellow is time spent waiting, green a gain, red needs action, cyan (blue on a light terminal) is a key or what
has the focus. Data is grey. The background is the terminal's own. No information depends on colour alone: under NO_COLOR bold, dim and
reverse remain.
"""

from __future__ import annotations

from rich.style import Style

DARK, LIGHT = "dark", "light"
_DARK: dict[str, str] = {
    "": "",
    "dim": "dim",
    "title": "bold",
    "heading": "bold",
    "code": "bold",
    "accent": "cyan",
    "key": "bold cyan",
    "mark": "bold reverse",
    "good": "bold green",
    "alert": "bold red",
    "wait": "yellow",
    "loss": "bold yellow",
    "work": "bright_black",
    "trace": "bright_black",
    "area": "color(240)",
    "gained": "color(65)",
    "trial": "color(24)",
}
"""The terminal's own sixteen colours need few bytes; large areas are darker. A terminal with sixteen colours shows the nearest."""
_LIGHT = _DARK | {
    "accent": "color(25)",
    "key": "bold color(25)",
    "good": "bold color(28)",
    "alert": "bold color(160)",
    "wait": "color(136)",
    "loss": "bold color(94)",
    "work": "color(247)",
    "trace": "color(245)",
    "area": "color(250)",
    "gained": "color(108)",
    "trial": "color(110)",
}
"""Yellow and light cyan are hard to read on a light background."""
_SIXTEEN = {"gained": "green", "trial": "cyan"}
"""Among sixteen colours, the nearest to each of these would be a grey."""
THEMES = {DARK: _DARK, LIGHT: _LIGHT}
STYLES = frozenset(_DARK)
"""The names of all styles."""


def style_of(name: str, theme: str = DARK, *, sixteen: bool = False) -> Style:
    """The rich style of a style name in a row. `sixteen`: for a terminal with sixteen colours."""
    text = THEMES.get(theme, _DARK)[name]
    if sixteen:
        text = _SIXTEEN.get(name, text)
    return Style.parse(text) if text else Style.null()
