"""Style names and their colours, for terminals with a dark and with a light background.

Each hue has one meaning: yellow is time spent waiting, green a gain, red needs action, cyan (blue
on a light terminal) is a key or what has the focus. A phase of work has its own hue everywhere:
`report.run.account.LOOKS` says which. Histories of devices and of the throughput are indigo, and
brighter where the value is higher. The background is the terminal's own. No information depends on
colour alone: under NO_COLOR bold, dim and reverse remain.
"""

from __future__ import annotations

from typing import NamedTuple

from rich.style import Style

DARK, CONTRAST, LIGHT = "dark", "dark-contrast", "light"


class Look(NamedTuple):
    """A style in each theme. `sixteen`: on a terminal with sixteen colours or none, in all themes;
    empty: the colour of the theme, or the nearest to it."""

    dark: str
    contrast: str
    light: str
    sixteen: str = ""


STYLES = {
    "": Look("", "", ""),
    "dim": Look("color(247)", "color(250)", "color(241)", "dim"),
    "title": Look("bold", "bold", "bold"),
    "heading": Look("bold", "bold", "bold"),
    "code": Look("bold", "bold", "bold"),
    "mark": Look("bold reverse", "bold reverse", "bold reverse"),
    "accent": Look("cyan", "color(87)", "color(25)"),
    "key": Look("bold cyan", "bold color(87)", "bold color(25)"),
    "trial": Look("color(24)", "color(31)", "color(110)", "cyan"),
    "good": Look("bold green", "bold color(120)", "bold color(28)"),
    "gained": Look("color(65)", "color(71)", "color(108)", "green"),
    "alert": Look("bold red", "bold color(203)", "bold color(160)"),
    "wait": Look("yellow", "color(221)", "color(94)"),
    "loss": Look("bold yellow", "bold color(221)", "bold color(94)"),
    "forward": Look("color(68)", "color(111)", "color(68)", "magenta"),
    "backward": Look("color(97)", "color(141)", "color(97)", "magenta"),
    "optimizer": Look("color(139)", "color(182)", "color(139)", "magenta"),
    "work": Look("bright_black", "color(250)", "color(247)"),
    "low": Look("color(60)", "color(60)", "color(146)", "blue"),
    "middle": Look("color(103)", "color(103)", "color(103)", "blue"),
    "high": Look("color(146)", "color(189)", "color(60)", "blue"),
    "grid": Look("color(238)", "color(244)", "color(252)", "bright_black"),
}
"""Text has the terminal's own sixteen colours, which need few bytes; areas are calmer. Yellow and
light cyan are hard to read on a light background. Sentences in grey have a grey of their own:
terminals show the attribute "dim" with a contrast of 3.7 to 4.0, and text needs 4.5 (WCAG 2.2,
1.4.3)."""
THEMES = {DARK: 0, CONTRAST: 1, LIGHT: 2}
"""The place of each theme in `Look`."""


def style_of(name: str, theme: str = DARK, *, sixteen: bool = False) -> Style:
    """The rich style of a style name in a row. `sixteen`: for a terminal with sixteen colours."""
    colours = STYLES[name]
    text = (colours.sixteen if sixteen else "") or colours[THEMES.get(theme, 0)]
    return Style.parse(text) if text else Style.null()
