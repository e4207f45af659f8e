"""The table of actions: one meaning a letter, every action from every screen, and what is made from the table."""

from __future__ import annotations

import argparse
import asyncio
from types import SimpleNamespace

import msgspec
import pytest
from textual import events
from textual.pilot import Pilot

from gpuconsole.cli import console
from gpuconsole.tui import app as app_module
from gpuconsole.tui import keys
from gpuconsole.tui.actions import SCREENS
from gpuconsole.tui.app import ConsoleApp
from gpuconsole.tui.keyboard import parse
from gpuconsole.tui.screens.base import BackScreen
from gpuconsole.tui.screens.main import MainScreen
from gpuconsole.tui.screens.pages import paint_help
from tests.tui.fake_profile import profiled_view
from tests.tui.fake_session import FakeSession, gpu_view, tuned_view, view
from tests.tui.test_app import on_screen, shows, text_of
from tests.tui.test_paint import text
from tests.waiting import until


def test_a_letter_has_one_meaning_everywhere() -> None:
    meanings: dict[str, set[str]] = {}
    for action in keys.ACTIONS:
        for key in action.keys.split(","):
            if len(key) == 1:
                meanings.setdefault(key, set()).add(action.id)
    assert {key: found for key, found in meanings.items() if len(found) > 1} == {}


@pytest.mark.parametrize("screen", ["main", *SCREENS])
def test_no_key_has_two_actions_on_a_screen(screen: str) -> None:
    found = [key for action in [*keys.on(screen), *keys.everywhere()] for key in action.keys.split(",")]
    assert len(found) == len(set(found))


def test_every_action_is_in_the_help() -> None:
    shown = " ".join(text(paint_help(120)).split())
    for action in keys.ACTIONS:
        if action.label and action.id not in ("up", "down", "back"):
            assert " ".join(action.help.split()) in shown, action.id


def test_the_bar_shows_what_makes_sense() -> None:
    def labels(shown: object, screen: str = "main") -> set[str]:
        return {label for _, label in keys.bar(screen, shown)}  # type: ignore[arg-type]

    assert {"try", "tune", "revert", "stop", "knobs"} <= labels(gpu_view())
    assert not {"try", "tune", "revert", "stop", "knobs", "links"} & labels(view())
    recording = labels(gpu_view(recording=True))
    assert not {"try", "tune", "revert", "stop", "scenario", "record"} & recording and "details" in recording
    assert "stop" in labels(tuned_view(under_way=True)) and "begin" not in labels(view(), "tuning")


@pytest.mark.parametrize("screen", SCREENS)
def test_the_palette_works_on_every_screen(screen: str) -> None:
    """From a sub-screen: another screen, and an action."""

    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        app.actions.open(screen)
        await until(lambda: isinstance(app.screen, BackScreen) and screen == app.screen.NAME)
        other = "models" if screen == "history" else "history"
        await pilot.press("ctrl+p")
        await shows(app, "Search for commands")
        await pilot.press(*other)
        await shows(app, {"models": "FLOPs, memory", "history": "Charts of throughput"}[other])
        await pilot.press("enter")
        await until(lambda: isinstance(app.screen, BackScreen) and other == app.screen.NAME)
        await pilot.press("ctrl+p")
        await shows(app, "Search for commands")
        await pilot.press(*"revert")
        await shows(app, "Undo the last change")
        await pilot.press("enter")
        await until(lambda: ("revert",) in api.calls)
        await pilot.press("escape")
        await until(lambda: isinstance(app.screen, MainScreen))

    on_screen(profiled_view(), body)


@pytest.mark.parametrize("screen", SCREENS)
def test_every_action_works_on_every_screen(screen: str) -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        for action in keys.everywhere():
            if action.id in ("quit", "palette"):
                continue
            app.actions.open(screen)
            await pilot.pause()
            api.calls.clear()
            await app.run_action(f"do('{action.id}')")
            await pilot.pause()
            if action.id in SCREENS:
                await until(lambda name=action.id: isinstance(app.screen, BackScreen) and name == app.screen.NAME)
                if action.id == "help" and screen != "help":
                    app.pop_screen()
            elif action.id != "redraw":
                await until(lambda: api.calls)
        await app.run_action("do('try_selected')")
        await until(lambda: any(call[0] == "try_change" for call in api.calls))

    on_screen(profiled_view(), body)


def test_after_apply_the_heading_no_longer_offers_the_change() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        await pilot.press("k", "enter", "backspace", "1", "6", "enter")
        await shows(app, "8 -> 16: a applies, v tries")
        await pilot.press("a")
        await until(lambda: ("set_knobs", {"batch_size": 16}) in api.calls)
        run = msgspec.structs.replace(api.shown.runs[-1], knobs={**api.shown.runs[-1].knobs, "batch_size": 16})
        api.shown = msgspec.structs.replace(api.shown, runs=(api.shown.runs[0], run))
        await until(lambda: "a applies" not in text_of(app).splitlines()[0])
        await shows(app, "set,")

    on_screen(gpu_view(), body)


def test_the_screen_is_drawn_as_often_as_the_devices_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [app_module.refresh_hz(seconds) for seconds in (0.01, 0.1, 0.5, 5.0)] == [20.0, 10.0, 2.0, 2.0]
    periods = []

    async def show(app: ConsoleApp) -> int:
        periods.append(app._period)
        return 0

    async def nothing(api: FakeSession) -> None: ...

    def engine(args: argparse.Namespace) -> FakeSession:
        api = FakeSession(view())
        api.state = SimpleNamespace(records=[])  # type: ignore[attr-defined]
        return api

    monkeypatch.setattr(app_module, "show", show)
    monkeypatch.setattr(console, "live_engine", engine)
    monkeypatch.setattr(console, "open_checked", nothing)
    monkeypatch.setattr(console, "show_first_picture", lambda: None)
    for interval in (0.1, 1.0):
        console.open_console(argparse.Namespace(interval=interval))
    assert periods == [0.1, 0.5]


@pytest.mark.parametrize("resource", [0, 1], ids=["line", "thread"])
def test_frames_that_take_much_time_are_drawn_twice_a_second(monkeypatch: pytest.MonkeyPatch, resource: int) -> None:
    """Frames that fill the line or the thread would make a key wait for them."""
    app = ConsoleApp(FakeSession(view()), 10.0)
    used = [0.0, 0.0]
    monkeypatch.setattr(app, "_used_s", lambda: tuple(used))

    def frames_in_a_second(seconds_per_frame: float) -> int:
        frames = []

        def tick() -> None:
            frames.append(app)
            app._since_shown, app._used_before = 0.0, (used[0], used[1])
            used[resource] += seconds_per_frame

        monkeypatch.setattr(app, "tick", tick)
        tick()
        for _ in range(10):
            app._on_timer()
        return len(frames) - 1

    assert frames_in_a_second(0.001) == 10
    assert frames_in_a_second(0.05) == 5  # 0.05 s of 0.2 s
    assert frames_in_a_second(0.4) == 2


def test_a_click_selects_and_a_second_click_chooses() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        await pilot.press("s")
        await shows(app, "> data-starved")
        row = next(n for n, line in enumerate(text_of(app).splitlines()) if "logging-heavy" in line)
        await pilot.click(offset=(5, row))
        await shows(app, "> logging-heavy")
        await pilot.click(offset=(5, row))
        await until(lambda: ("start", "logging-heavy", {}) in api.calls)

    on_screen(view(), body)


def test_keys_typed_ahead_are_parsed_one_by_one() -> None:
    found = [event.key for event in parse(b"\x1bs/q\x1b\x1b[A\x1bOB\n?\x1b")]
    assert found == ["escape", "s", "slash", "q", "escape", "up", "down", "enter", "question_mark", "escape"]


def test_keys_at_once_reach_the_screens_that_they_are_for() -> None:
    """An Escape, and what follows it before the screen has changed."""

    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        for key in ("s", "escape", "i", "escape", "p", "escape", "question_mark"):
            app.post_message(events.Key(key, key if len(key) == 1 else None))
        await shows(app, "Reading the screen")
        await pilot.press("escape")
        await until(lambda: isinstance(app.screen, MainScreen))

    on_screen(view(), body)


def test_asyncio_debug_reports_no_lost_task() -> None:
    """The task that delivers the next key ends with the app."""

    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        await pilot.press("i", "escape")
        await until(lambda: app.keyboard._task is None)
        assert not [task for task in asyncio.all_tasks() if "_follow" in repr(task)]

    on_screen(gpu_view(), body)
