"""A recording on the screen: pause, seek and speed, and what is not offered there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from importlib import resources

import pytest
from textual.pilot import Pilot

from gpuconsole.engine.recording import DEMO, Replay
from gpuconsole.session.api import A_RECORDING
from gpuconsole.tui import keys
from gpuconsole.tui.app import ConsoleApp
from gpuconsole.tui.screens.base import BackScreen
from gpuconsole.tui.screens.main import MainScreen
from tests.tui.fake_session import gpu_view
from tests.tui.test_app import on_screen, shows, text_of
from tests.waiting import until

Body = Callable[[ConsoleApp, "Pilot[int]", Replay], Awaitable[None]]


def replayed(body: Body, size: tuple[int, int] = (120, 40), speed: float = 1.0) -> None:
    """Run `body` on the recorded session of `--demo`."""

    async def run() -> None:
        with resources.as_file(DEMO) as path:
            replay = Replay(path, speed)
        app = ConsoleApp(replay, refresh_hz=20.0)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await body(app, pilot, replay)
            await replay.close()

    asyncio.run(run())


def at_s(replay: Replay) -> float:
    playback = replay.view().playback
    assert playback is not None
    return playback.at_s


@pytest.mark.parametrize("size", [(60, 15), (80, 24), (120, 40)])
def test_the_header_says_which_moment_is_shown(size: tuple[int, int]) -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], replay: Replay) -> None:
        await shows(app, " of 00:38")
        await pilot.press("space", "5")
        await shows(app, "REPLAY 00:19 of 00:38  paused")
        assert at_s(replay) == replay._length_s / 2
        await pilot.press("right", "right", "left")
        await shows(app, "REPLAY 00:24 of 00:38  paused")
        await pilot.press("d")
        await shows(app, "Details")
        assert "REPLAY 00:24 of 00:38  paused" in text_of(app).splitlines()[0]
        await pilot.press("escape", "0", "plus", "plus", "space")
        await until(lambda: "paused" not in text_of(app) and "4x" in text_of(app).splitlines()[0])
        await pilot.press("minus", "minus")
        await until(lambda: "x" not in text_of(app).splitlines()[0].partition("of 00:38")[2][:4])

    replayed(body, size)


def test_what_a_seek_shows_is_what_was_known_then() -> None:
    """The trial of the recording is not there before it began, and its verdict not before it
    ended."""

    async def body(app: ConsoleApp, pilot: Pilot[int], replay: Replay) -> None:
        await pilot.press("space", "9", "right")
        await shows(app, "faster: kept")
        (trial,) = replay.view().trials
        ended_s = replay.view().trial_times[trial.id][1]
        replay.seek(ended_s - 3.0)
        await until(lambda: not any(trial.state != "running" for trial in replay.view().trials))
        await until(lambda: "faster: kept" not in text_of(app))
        assert "no run" not in text_of(app)
        await pilot.press("0")
        await until(lambda: replay.view().trials == ())
        await until(lambda: "faster" not in text_of(app))

    replayed(body)


def test_at_the_end_space_plays_again() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], replay: Replay) -> None:
        await shows(app, "REPLAY 00:38 of 00:38")
        await pilot.press("space")
        await until(lambda: at_s(replay) < 10.0)
        await shows(app, "REPLAY 00:0")

    replayed(body, speed=0)


def test_keys_that_cannot_work_in_a_recording_are_not_offered() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], replay: Replay) -> None:
        await pilot.press("space", "8")
        await shows(app, "paused")
        last = text_of(app).splitlines()[-1]
        for words in ("space pause", "left/right 5 s", "0-9 jump", "+/- speed", "d details"):
            assert words in last
        assert not any(
            words in text_of(app)
            for words in ("Enter try", "t tune", "s scenarios", "x stop", "Esc cancel")
        )
        # which digit is not said
        await pilot.click(offset=(last.index("0-9 jump") + 1, app.size.height - 1))
        await pilot.click(offset=(last.index("space pause") + 1, app.size.height - 1))
        await until(lambda: "paused" not in text_of(app).splitlines()[0])
        await pilot.press("t")
        await shows(app, "The recording has no tuning session")
        assert "Press Enter" not in text_of(app) and "begin" not in text_of(app).splitlines()[-1]
        await pilot.press("escape", "s")
        await shows(app, A_RECORDING)
        assert isinstance(app.screen, MainScreen)

    replayed(body)


@pytest.mark.parametrize("screen", ["tuning", "knobs", "details", "profile"])
def test_no_screen_offers_a_change_in_a_recording(screen: str) -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], replay: Replay) -> None:
        app.actions.open(screen)
        await until(lambda: isinstance(app.screen, BackScreen))
        left, _ = keys.bar(screen, replay.view())
        assert not {action.id for action in left} & {
            "begin",
            "stop",
            "edit",
            "apply",
            "prove",
            "forget",
            "revert",
        }

    replayed(body, speed=0)


def test_in_a_live_session_the_keys_of_a_recording_do_nothing() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: object) -> None:
        before = text_of(app)
        await pilot.press("space", "left", "right", "5", "plus", "minus")
        assert text_of(app) == before and "pause" not in before

    assert on_screen(gpu_view(), body).calls == []
