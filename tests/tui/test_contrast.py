"""Text can be read on the usual backgrounds of each theme."""

from __future__ import annotations

import pytest

from gpuconsole.tui.theme import CONTRAST, DARK, LIGHT, style_of

BACKGROUNDS = {
    DARK: ("#000000", "#1e1e1e"),
    CONTRAST: ("#000000", "#1e1e1e"),
    LIGHT: ("#ffffff", "#fafafa"),
}
TEXT = ("dim", "accent", "key", "good", "alert", "wait", "loss")
"""Styles of text. The others are areas of bars and charts, which differ by their glyphs too."""
MIN_CONTRAST = 4.5
"""WCAG 2.2, success criterion 1.4.3."""


def luminance(red: int, green: int, blue: int) -> float:
    """WCAG 2.2, relative luminance."""
    parts = [part / 255 for part in (red, green, blue)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: tuple[int, int, int], other: tuple[int, int, int]) -> float:
    low, high = sorted((luminance(*one), luminance(*other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("name", TEXT)
@pytest.mark.parametrize("theme", BACKGROUNDS)
def test_text_has_enough_contrast(theme: str, name: str) -> None:
    """The sixteen colours of the terminal are the user's own choice."""
    style = style_of(name, theme)
    assert not style.dim, "how dim it is depends on the terminal"
    if style.color is None or style.color.number is None or style.color.number < 16:
        assert name != "dim"
        return
    own = tuple(style.color.get_truecolor())
    for background in BACKGROUNDS[theme]:
        behind = tuple(int(background[at : at + 2], 16) for at in (1, 3, 5))
        assert contrast(own, behind) >= MIN_CONTRAST  # type: ignore[arg-type]


def test_without_colours_grey_text_is_dim() -> None:
    assert style_of("dim", LIGHT, sixteen=True).dim
