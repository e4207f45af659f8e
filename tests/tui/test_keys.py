"""The table of actions: one meaning a letter, every action from every screen, and what is made from
the table."""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import Iterator
from types import SimpleNamespace

import msgspec
import pytest
from textual import events
from textual.pilot import Pilot

from gpuconsole.cli import console
from gpuconsole.session.api import Playback, View
from gpuconsole.tui import app as app_module
from gpuconsole.tui import keys
from gpuconsole.tui.actions import SCREENS
from gpuconsole.tui.app import ConsoleApp
from gpuconsole.tui.keyboard import parse
from gpuconsole.tui.screens.base import BackScreen
from gpuconsole.tui.screens.main import MainScreen
from gpuconsole.tui.screens.pages import paint_help
from gpuconsole.tui.widgets.list import ListZone
from tests.matrix import matrix
from tests.tui.fake_profile import profiled_view
from tests.tui.fake_session import FakeSession, cpu_view, gpu_view, trial_view, tuned_view, view
from tests.tui.test_app import on_screen, shows, text_of
from tests.tui.test_paint import text
from tests.waiting import until

SAME = {
    "choose_previous": "up",
    "choose_next": "down",
    "choose_first": "first",
    "choose_last": "last",
    "group": "first",
    "jobs": "down",
}
"""The suggestions of the main screen are a list too. Where a list has groups, `g` means them, and
elsewhere the first line; `j` means the jobs on the main screen, and a line down in lists and pages,
as for many programs."""


def test_a_letter_has_one_meaning_everywhere() -> None:
    meanings: dict[str, set[str]] = {}
    for action in keys.ACTIONS:
        for key in action.keys.split(","):
            if len(key) == 1 and key.isalpha():
                meanings.setdefault(key, set()).add(SAME.get(action.id, action.id))
    assert {key: found for key, found in meanings.items() if len(found) > 1} == {}


@pytest.mark.parametrize("screen", ["main", *SCREENS])
def test_no_key_has_two_actions_on_a_screen(screen: str) -> None:
    found = [
        key for action in [*keys.on(screen), *keys.everywhere()] for key in action.keys.split(",")
    ]
    assert len(found) == len(set(found))


def test_every_action_is_in_the_help() -> None:
    shown = " ".join(text(paint_help(120)).split())
    for action in keys.ACTIONS:
        if action.label and action.id not in ("up", "down", "back"):
            assert " ".join(action.help.split()) in shown, action.id


def test_the_bar_shows_the_few_keys_that_make_sense() -> None:
    def labels(shown: View, screen: str = "main") -> list[str]:
        left, right = keys.bar(screen, shown)
        assert [action.id for action in right][:1] == ["help"] and len(left) <= 8
        return [action.label for action in left]

    assert labels(view()) == ["scenarios", "device"]
    assert labels(cpu_view()) == ["tune", "details", "settings", "history", "stop", "scenarios"]
    assert labels(gpu_view())[:2] == ["try", "tune"]
    assert labels(trial_view()) == ["cancel", "details", "history"]
    assert labels(gpu_view(recording=True)) == ["details", "history", "settings", "export"]
    assert labels(tuned_view(under_way=True))[0] == "stop"
    assert "begin" not in labels(view(), "tuning")
    assert "begin" in labels(gpu_view(), "tuning") and "stop" not in labels(gpu_view(), "tuning")
    assert "stop" in labels(tuned_view(True), "tuning") and "begin" not in labels(
        tuned_view(True), "tuning"
    )


def test_a_click_in_the_bar_presses_the_key() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        async def click(words: str) -> None:
            rows = text_of(app).splitlines()
            await pilot.click(offset=(rows[-1].index(words) + 1, len(rows) - 1))

        await shows(app, "d details")
        await click("d details")
        await shows(app, "Details")
        await click("Esc back")
        await until(lambda: isinstance(app.screen, MainScreen))
        await click("Enter try")
        await until(lambda: api.calls and api.calls[0][0] == "try_change")
        await pilot.click(offset=(app.size.width // 2, app.size.height - 1))  # between the keys
        await click("q quit")
        await until(lambda: app.closed)

    on_screen(gpu_view(), body)


def test_a_click_on_the_hint_above_the_keys_presses_none() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        await shows(app, "step 2 of 4")
        rows = text_of(app).splitlines()
        assert rows[-2].startswith("step 2 of 4")
        await pilot.click(offset=(rows[-1].index("q quit") + 1, len(rows) - 2))
        await pilot.pause()
        assert not app.closed and not api.calls

    on_screen(cpu_view(), body)


def test_a_click_selects_a_cause_or_opens_the_history_of_a_metric() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        def place(words: str) -> tuple[int, int]:
            return next(
                (line.index(words) + 2, y)
                for y, line in enumerate(text_of(app).splitlines())
                if words in line
            )

        await shows(app, "> use 4 DataLoader workers")
        await pilot.click(offset=place("use 2 DataLoader workers"))
        await shows(app, "> use 2 DataLoader workers")
        await pilot.click(offset=place("HBM used"))
        await shows(app, "gpu.hbm_used_bytes")
        assert isinstance(app.screen, BackScreen) and app.screen.NAME == "device"
        assert app.screen.query_one(ListZone).selected == "gpu.hbm_used_bytes"
        await pilot.press("q")
        await until(lambda: isinstance(app.screen, MainScreen))
        await pilot.click(offset=place("throughput, tokens/s"))
        await until(lambda: isinstance(app.screen, BackScreen) and app.screen.NAME == "history")

    on_screen(gpu_view(), body)


def test_q_leaves_a_screen_and_quits_from_the_main_screen() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        await pilot.press("d", "question_mark")
        await shows(app, "Reading the screen")
        await pilot.press("q")
        await shows(app, "Details")
        await pilot.press("q")
        await until(lambda: isinstance(app.screen, MainScreen))
        assert ("close",) not in api.calls
        await pilot.press("q", "q")
        await until(lambda: app.closed)

    assert on_screen(gpu_view(), body).calls.count(("close",)) == 1


def test_y_copies_the_code_of_the_selected_suggestion(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[str] = []
    monkeypatch.setattr(ConsoleApp, "copy_to_clipboard", lambda self, text: copied.append(text))

    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        await pilot.press("y")
        await shows(app, "copied the code for num_workers 4")
        await pilot.press("down", "d", "y")  # this one has no code, and the page of details is open
        await until(lambda: len(copied) == 2)

    on_screen(gpu_view(), body)
    assert copied == ["loader = DataLoader(data, num_workers=4)", "num_workers 2"]


@pytest.fixture
def table() -> Iterator[None]:
    before = keys.ACTIONS
    yield
    keys.ACTIONS = before


def test_keys_of_the_configuration(table: None) -> None:
    keys.use({"history": "H", "tuning": "ctrl+t", "help": "f1", "quit": "f10"})
    by_id = {action.id: action for action in keys.ACTIONS}
    assert [by_id[name].keys for name in ("history", "tuning", "help", "quit")] == [
        "H",
        "ctrl+t",
        "f1",
        "f10",
    ]
    assert "f10" in {binding.key for binding in keys.app_bindings()}  # type: ignore[union-attr]
    assert by_id["help"].written == "f1"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"histroy": "H"}, "there is no action 'histroy' (did you mean 'history'?)"),
        ({"history": "hyper"}, "history: there is no key 'hyper'"),
        ({"history": "k"}, "history: the key 'k' is taken by up"),
        ({"jump": "z"}, "jump: this key cannot be changed"),
        ({"filter": "q"}, "filter: the key 'q' is taken by quit"),
    ],
)
def test_a_wrong_key_is_one_clear_line(table: None, changed: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words.partition(",")[0])):
        keys.use(changed)


@pytest.mark.slow
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
        await shows(app, {"models": "FLOPs, memory", "history": "Throughput over time"}[other])
        await pilot.press("enter")
        await until(lambda: isinstance(app.screen, BackScreen) and other == app.screen.NAME)
        await pilot.press("ctrl+p")
        await shows(app, "Search for commands")
        await pilot.press(*"take back")
        await shows(app, "Undo the last change")
        await pilot.press("enter")
        await until(lambda: ("revert",) in api.calls)
        await pilot.press("escape")
        await until(lambda: isinstance(app.screen, MainScreen))

    on_screen(msgspec.structs.replace(profiled_view(), undo={"batch_size": 4}), body)


def test_the_palette_has_every_action_that_can_be_done_now_with_its_key() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        every = [
            action
            for action in [*keys.everywhere(), *keys.on("main")]
            if action.id not in ("palette", "choose_previous", "choose_next")
        ]
        every = [action for action in every if action.label]
        now = {
            f"{action.title}   {action.bar or action.written}"
            for action in every
            if action.makes_sense(api.shown)
        }
        assert {"Tune   t", "Settings   S", "Try   Enter", "Help   ?"} <= now
        for screen in SCREENS:
            app.actions.open(screen)
            await pilot.pause()
            found = {command.title for command in app.get_system_commands(app.screen)}
            own = {f"{action.title}   {action.bar or action.written}" for action in keys.on(screen)}
            assert now <= found <= now | own | {"Theme"}, screen

    on_screen(profiled_view(), body)


def test_the_palette_has_nothing_that_cannot_be_done_now() -> None:
    def titles(shown: View) -> set[str]:
        found: set[str] = set()

        async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
            found.update(
                command.title.partition("   ")[0] for command in app.get_system_commands(app.screen)
            )

        on_screen(shown, body)
        return found

    nothing, runs, recorded = (
        titles(view()),
        titles(gpu_view()),
        titles(gpu_view(recording=True, playback=Playback(15.0, 47.0))),
    )
    assert {"Scenarios", "Device", "Help", "Quit"} <= nothing
    assert not nothing & {
        "Try",
        "Tune",
        "Stop",
        "Take back",
        "Cancel",
        "Details",
        "Settings",
        "Interrupt the job",
        "Choose next",
        "Pause",
    }
    assert {"Try", "Tune", "Stop", "Details"} <= runs and not runs & {
        "Cancel",
        "Interrupt the job",
        "Pause",
    }
    assert {"Pause", "Details", "Export"} <= recorded and not recorded & {
        "Scenarios",
        "Try",
        "Tune",
        "Stop",
        "Record",
        "Baseline",
    }


def test_the_present_theme_is_marked() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        app.search_themes()
        await shows(app, "dark   (now)")
        assert "light" in text_of(app) and "light   (now)" not in text_of(app)
        await pilot.press(*"light", "enter")
        await until(lambda: app.theme == "light")
        app.search_themes()
        await shows(app, "light   (now)")

    on_screen(gpu_view(), body)


@pytest.mark.parametrize("screen", matrix(SCREENS, in_ci=("knobs", "details", "help")))
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
                await until(
                    lambda name=action.id: (
                        isinstance(app.screen, BackScreen) and name == app.screen.NAME
                    )
                )
                if action.id == "help" and screen != "help":
                    app.pop_screen()
            elif action.id not in ("redraw", "copy"):
                await until(lambda: api.calls)
        await app.run_action("do('try_selected')")
        await until(lambda: any(call[0] == "try_change" for call in api.calls))

    on_screen(profiled_view(), body)


def test_after_apply_the_heading_no_longer_offers_the_change() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        await pilot.press("S", "enter", "backspace", "1", "6", "enter")
        await shows(app, "8 -> 16: a applies, v tries")
        await pilot.press("a")
        await until(lambda: ("set_knobs", {"batch_size": 16}) in api.calls)
        run = msgspec.structs.replace(
            api.shown.runs[-1], knobs={**api.shown.runs[-1].knobs, "batch_size": 16}
        )
        api.shown = msgspec.structs.replace(api.shown, runs=(api.shown.runs[0], run))
        await until(lambda: "a applies" not in text_of(app).splitlines()[0])
        await shows(app, "set,")

    on_screen(gpu_view(), body)


def test_the_screen_is_drawn_as_often_as_the_devices_are_sampled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert [app_module.refresh_hz(seconds) for seconds in (0.01, 0.1, 0.5, 5.0)] == [
        20.0,
        10.0,
        2.0,
        2.0,
    ]
    periods = []

    async def show(app: ConsoleApp) -> int:
        periods.append(app._period)
        return 0

    async def nothing(api: FakeSession) -> None: ...

    def engine(args: argparse.Namespace, sampler: object) -> FakeSession:
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
def test_frames_that_take_much_time_are_drawn_twice_a_second(
    monkeypatch: pytest.MonkeyPatch, resource: int
) -> None:
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
    assert found == [
        "escape",
        "s",
        "slash",
        "q",
        "escape",
        "up",
        "down",
        "enter",
        "question_mark",
        "escape",
    ]


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
