"""Colours: one meaning each, in both themes; the theme command changes what is on the screen."""

from __future__ import annotations

import asyncio
import colorsys

import pytest
from rich.color import ColorSystem

from gpuconsole.tui.app import ConsoleApp
from gpuconsole.tui.driver.cells import PLAIN, after
from gpuconsole.tui.terminal import Colours
from gpuconsole.tui.theme import DARK, LIGHT, STYLES, THEMES, style_of
from gpuconsole.tui.widgets.live import AnswerZone
from tests.tui.fake_session import FakeSession, gpu_view
from tests.waiting import until

MEANINGS = {
    "waiting": ("wait", "loss"),
    "gain": ("good", "gained"),
    "needs action": ("alert",),
    "focus and keys": ("accent", "key", "trial"),
}
DATA = ("work", "trace", "area")


HUES = ((20, "red"), (70, "yellow"), (160, "green"), (260, "cyan or blue"), (340, "violet"), (360, "red"))
"""The hues below so many degrees."""


def hue(name: str, theme: str) -> str:
    """The family of a style's colour."""
    colour = style_of(name, theme).color
    if colour is None:
        return "none"
    angle, _, saturation = colorsys.rgb_to_hls(*(channel / 255 for channel in colour.get_truecolor()))
    return next(family for below, family in HUES if 360 * angle < below) if saturation > 0.1 else "grey"


@pytest.mark.parametrize("theme", [DARK, LIGHT])
def test_sixteen_colours_separate_a_trial_and_a_gain_from_other_data(theme: str) -> None:
    def sent(name: str) -> str:
        code = style_of(name, theme, sixteen=True).render("x", color_system=ColorSystem.STANDARD).partition("m")[0].removeprefix("\x1b[")
        return after(PLAIN, code, Colours.SIXTEEN).fore

    assert len({sent(name) for name in ("area", "trial", "gained")}) == 3


@pytest.mark.parametrize("theme", [DARK, LIGHT])
def test_each_colour_has_one_meaning(theme: str) -> None:
    families = {meaning: {hue(name, theme) for name in names} for meaning, names in MEANINGS.items()}
    assert families == {"waiting": {"yellow"}, "gain": {"green"}, "needs action": {"red"}, "focus and keys": {"cyan or blue"}}
    assert {hue(name, theme) for name in DATA} == {"grey"}
    others = STYLES - {name for names in MEANINGS.values() for name in names} - set(DATA)
    assert {hue(name, theme) for name in others} == {"none"}


@pytest.mark.parametrize("theme", [DARK, LIGHT])
def test_in_sixteen_colours_the_meanings_stay_apart_and_without_colour_the_words_stay(theme: str) -> None:
    shown = {}
    for meaning, names in MEANINGS.items():
        for name in names[:1]:
            codes = style_of(name, theme).render("x", color_system=ColorSystem.EIGHT_BIT).partition("m")[0].removeprefix("\x1b[")
            shown[meaning] = after(PLAIN, codes, Colours.SIXTEEN).fore
            assert not after(PLAIN, codes, Colours.NONE).fore
    assert len(set(shown.values())) == len(MEANINGS), shown
    assert THEMES[theme].keys() == STYLES


def test_the_theme_command_changes_the_colours_on_the_screen() -> None:
    async def main() -> None:
        app = ConsoleApp(FakeSession(gpu_view()), refresh_hz=20.0)
        async with app.run_test(size=(120, 40)) as pilot:
            await pilot.pause()
            assert set(app.available_themes) == {DARK, LIGHT}
            assert "Theme" in [command.title for command in app.get_system_commands(app.screen)]

            def colours() -> set[str]:
                strip = app.screen.query_one(AnswerZone).render_line(0)
                return {str(part.style.color.name) for part in strip if part.style is not None and part.style.color is not None}

            await until(lambda: "yellow" in colours())
            app.theme = LIGHT
            await until(lambda: "color(136)" in colours() and "yellow" not in colours())

    asyncio.run(main())
