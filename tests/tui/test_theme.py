"""Colours: one meaning each, in both themes; the theme command changes what is on the screen."""

from __future__ import annotations

import asyncio
import colorsys
from importlib.resources import files

import pytest
from rich.color import ColorSystem

from gpuconsole.report.cells import SHADES
from gpuconsole.report.run.breakdown import LOOKS
from gpuconsole.tui.app import ConsoleApp
from gpuconsole.tui.driver.cells import PLAIN, after
from gpuconsole.tui.terminal import Colours
from gpuconsole.tui.theme import LIGHT, STYLES, THEMES, style_of
from gpuconsole.tui.widgets.live import AnswerZone
from tests.tui.fake_session import FakeSession, gpu_view
from tests.waiting import until

MEANINGS = {
    "waiting": ("wait", "loss"),
    "gain": ("good", "gained"),
    "needs action": ("alert",),
    "focus and keys": ("accent", "key", "trial"),
    "histories": SHADES,
    "forward and prefill": ("forward",),
    "backward and decode": ("backward",),
    "optimizer": ("optimizer",),
}
SIGNALS = ("waiting", "gain", "needs action", "focus and keys")
FAMILIES = ("yellow", "green", "red", "cyan", "indigo", "blue", "violet", "mauve")
"""The hue of each meaning, in the same order."""
DATA = ("work", "grid")


HUES = (
    (20, "red"), (70, "yellow"), (160, "green"), (215, "cyan"), (230, "blue"), (250, "indigo"),
    (290, "violet"), (340, "mauve"), (360, "red"),
)  # fmt: skip
"""The hues below so many degrees."""


def hue(name: str, theme: str) -> str:
    """The family of a style's colour."""
    colour = style_of(name, theme).color
    if colour is None:
        return "none"
    angle, _, saturation = colorsys.rgb_to_hls(
        *(channel / 255 for channel in colour.get_truecolor())
    )
    return (
        next(family for below, family in HUES if 360 * angle < below)
        if saturation > 0.1
        else "grey"
    )


@pytest.mark.parametrize("theme", THEMES)
def test_sixteen_colours_separate_a_trial_and_a_gain_from_other_data(theme: str) -> None:
    def sent(name: str) -> str:
        code = (
            style_of(name, theme, sixteen=True)
            .render("x", color_system=ColorSystem.STANDARD)
            .partition("m")[0]
            .removeprefix("\x1b[")
        )
        return after(PLAIN, code, Colours.SIXTEEN).fore

    assert len({sent(name) for name in ("low", "trial", "gained", "forward")}) == 4


@pytest.mark.parametrize("theme", THEMES)
def test_each_hue_has_one_meaning(theme: str) -> None:
    families = {
        meaning: {hue(name, theme) for name in names} for meaning, names in MEANINGS.items()
    }
    assert families == {
        meaning: {family} for meaning, family in zip(MEANINGS, FAMILIES, strict=True)
    }
    assert {hue(name, theme) for name in DATA} == {"grey"}
    others = set(STYLES) - {name for names in MEANINGS.values() for name in names} - set(DATA)
    assert {hue(name, theme) for name in others} <= {"none", "grey"}


@pytest.mark.parametrize("theme", THEMES)
def test_a_history_is_brighter_where_the_value_is_higher(theme: str) -> None:
    def lightness(name: str) -> float:
        colour = style_of(name, theme).color
        assert colour is not None
        return colorsys.rgb_to_hls(*(channel / 255 for channel in colour.get_truecolor()))[1]

    levels = [lightness(name) for name in SHADES]
    assert levels == sorted(levels, reverse=theme == LIGHT) and len(set(levels)) == len(SHADES)


def test_each_kind_of_work_has_its_hue_and_each_wait_is_amber() -> None:
    assert {style for _, style in LOOKS.values()} == {
        "wait",
        "forward",
        "backward",
        "optimizer",
        "work",
    }
    assert {name for name, (_, style) in LOOKS.items() if style == "wait"}.isdisjoint(
        {"forward", "backward", "optimizer", "prefill", "decode", "other"}
    )
    page = files("gpuconsole.report.share").joinpath("page.html").read_text(encoding="utf-8")
    for style in {style for _, style in LOOKS.values()}:
        assert f"svg rect.{style} " in page and f".swatch.{style} " in page, style


@pytest.mark.parametrize("theme", THEMES)
def test_in_sixteen_colours_the_meanings_stay_apart_and_without_colour_the_words_stay(
    theme: str,
) -> None:
    shown = {}
    for meaning, names in MEANINGS.items():
        for name in names[:1] if meaning in SIGNALS else ():
            codes = (
                style_of(name, theme)
                .render("x", color_system=ColorSystem.EIGHT_BIT)
                .partition("m")[0]
                .removeprefix("\x1b[")
            )
            shown[meaning] = after(PLAIN, codes, Colours.SIXTEEN).fore
            assert not after(PLAIN, codes, Colours.NONE).fore
    assert len(set(shown.values())) == len(SIGNALS), shown


def test_the_theme_command_changes_the_colours_on_the_screen() -> None:
    async def main() -> None:
        app = ConsoleApp(FakeSession(gpu_view()), refresh_hz=20.0)
        async with app.run_test(size=(120, 40)) as pilot:
            await pilot.pause()
            assert set(app.available_themes) == set(THEMES) and len(THEMES) >= 3
            assert "Theme" in [command.title for command in app.get_system_commands(app.screen)]

            def colours() -> set[str]:
                strip = app.screen.query_one(AnswerZone).render_line(1)
                return {
                    str(part.style.color.name)
                    for part in strip
                    if part.style is not None and part.style.color is not None
                }

            await until(lambda: "yellow" in colours())
            app.theme = LIGHT
            await until(lambda: "color(94)" in colours() and "yellow" not in colours())

    asyncio.run(main())
