"""The app under Pilot: sizes, keys, hostile text, and what is not redrawn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from textual.pilot import Pilot

from gpuconsole.model.finding import Interval
from gpuconsole.report.cells import Row
from gpuconsole.session.api import View
from gpuconsole.tui import actions
from gpuconsole.tui.app import ConsoleApp
from gpuconsole.tui.screens.main import MainScreen
from gpuconsole.tui.screens.scenarios import ScenariosScreen
from gpuconsole.tui.widgets import bars
from gpuconsole.tui.widgets.live import Zone
from tests.tui.fake_session import (
    SCENARIOS,
    STARVED,
    FakeSession,
    cpu_view,
    failed_view,
    gpu_view,
    trial_view,
    tuned_view,
    view,
)
from tests.tui.test_paint import HOSTILE, hostile_view
from tests.waiting import until

Body = Callable[[ConsoleApp, "Pilot[int]", FakeSession], Awaitable[None]]


def on_screen(
    shown: View, body: Body, size: tuple[int, int] = (120, 40), api: FakeSession | None = None
) -> FakeSession:
    """Run `body` on an app that shows `shown`."""
    api = api or FakeSession(shown)

    async def run() -> None:
        app = ConsoleApp(api, refresh_hz=20.0)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await body(app, pilot, api)

    asyncio.run(run())
    return api


def text_of(app: ConsoleApp) -> str:
    """The text on the terminal."""
    width, height = app.size
    rows = app.screen._compositor.render_strips()[:height]
    return "\n".join("".join(segment.text for segment in row)[:width] for row in rows)


async def shows(app: ConsoleApp, words: str) -> None:
    await until(lambda: words in text_of(app), 10.0, words)


def plain_row(row: Row) -> str:
    return "".join(part for part, _ in row)


def zones(app: ConsoleApp) -> list[Zone]:
    return list(app.screen.query(Zone))


@pytest.mark.slow
@pytest.mark.parametrize("size", [(120, 40), (80, 24), (40, 12), (180, 50)])
@pytest.mark.parametrize(
    "shown",
    [gpu_view(), trial_view(), cpu_view(), failed_view()],
    ids=["gpu", "trial", "cpu", "failed"],
)
def test_fits_any_size_and_resizes_back(shown: View, size: tuple[int, int]) -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        before = text_of(app)
        assert "gpuconsole" in before and "q quit" in before and "findings" in before
        for other in ((40, 12), (20, 6), size):
            await pilot.resize_terminal(*other)
            await pilot.pause()
        await until(lambda: text_of(app) == before, 10.0)
        for zone in zones(app):
            assert len(zone.rows) == zone.content_size.height

    on_screen(shown, body, size)


def test_four_tiles_at_80_columns_and_eight_at_120() -> None:
    async def narrow(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        assert [
            title in text_of(app) for title in ("SM active", "HBM used", "tokens/s", "p50", "PCIe")
        ] == [True, True, True, True, False]

    async def wide(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        for title in (
            "SM active",
            "tensor active",
            "HBM used",
            "HBM bandwidth",
            "PCIe",
            "NVLink",
            "tokens/s",
            "p50",
        ):
            assert title in text_of(app)

    on_screen(gpu_view(), narrow, (80, 24))
    on_screen(gpu_view(), wide)


def test_keys_reach_the_session() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        await pilot.press("enter")
        await shows(app, "1.50x [1.40, 1.60], faster: kept")
        await pilot.press("down", "enter", "u", "r", "e", "b", "x")
        await until(lambda: ("stop",) in api.calls)

    api = on_screen(gpu_view(), body)
    assert api.calls[:2] == [
        ("try_change", {"num_workers": 4}, Interval(1.45, 1.69)),
        ("try_change", {"num_workers": 2}, Interval(1.3, 1.5)),
    ]
    assert {call[0] for call in api.calls[2:]} >= {
        "revert",
        "record",
        "export",
        "keep_baseline",
        "stop",
    }


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_a_line_says_what_an_agent_does_and_a_key_takes_the_control_back(
    size: tuple[int, int],
) -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        assert "agent" not in text_of(app)
        api.shown = msgspec.structs.replace(
            api.shown, remote="an agent is connected: try_change num_workers=4"
        )
        await shows(app, "an agent is connected: try_change num_workers=4")
        lines = text_of(app).splitlines()
        (row,) = (y for y, line in enumerate(lines) if "an agent is connected" in line)
        assert "c take control" in lines[row] and row >= len(lines) - 3
        await pilot.press("c")
        await until(lambda: ("switch",) in api.calls)
        api.shown = msgspec.structs.replace(api.shown, remote="")
        await until(lambda: "an agent is connected" not in text_of(app))

    on_screen(gpu_view(), body, size)


def test_the_tree_of_a_tuning_session_is_one_key_away() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        await pilot.press("t")
        await shows(app, "diagnosing the run")
        await shows(app, "─ throughput, tokens/s")  # in the room below
        api.shown = msgspec.structs.replace(api.shown, now=103.0)
        await shows(app, "81 of 300 s")  # 78 s at the last attempt, told 3 s ago
        await pilot.press("enter")
        await until(lambda: ("tune",) in api.calls)
        await pilot.press("x")
        await until(lambda: ("end_tuning",) in api.calls)
        api.shown = tuned_view(under_way=False)
        await shows(app, "gpuconsole run data-starved --set num_workers=4 --set log_every=20")
        await pilot.press("escape")
        await until(lambda: isinstance(app.screen, MainScreen))

    on_screen(tuned_view(under_way=True), body)


def test_enter_means_what_was_selected_when_the_ranking_changes() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        await pilot.press("down")
        run = msgspec.structs.replace(
            api.shown.runs[-1],
            findings=[
                msgspec.structs.replace(api.shown.runs[-1].findings[1], recoverable_ratio=0.9),
                STARVED,
            ],
        )
        api.shown = msgspec.structs.replace(api.shown, runs=(api.shown.runs[0], run))
        await pilot.press("enter")
        await until(lambda: api.calls)

    assert on_screen(gpu_view(), body).calls[0][1] == {"num_workers": 2}


def test_an_action_that_cannot_be_done_is_one_line() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        api.error = "nothing to revert: [/b] no change was kept"
        await pilot.press("u", "e")
        await shows(app, "nothing to revert: [/b]")

    on_screen(cpu_view(), body)


def test_the_overview_comes_first_when_nothing_runs() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        await shows(app, "No GPU: no NVIDIA driver")
        assert isinstance(app.screen, MainScreen)
        for words in (
            "this machine (CPU)",
            "cores busy",
            "gpuconsole run -- python train.py",
            "step 1 of 4",
            "s scenarios",
        ):
            assert words in text_of(app)
        await pilot.press("s")
        await until(lambda: isinstance(app.screen, ScenariosScreen))
        # the first one with a fault to find, not the healthy run above it
        await shows(app, "> data-starved")
        await shows(app, "step 1 of 4  Enter starts the selected scenario")
        await pilot.press("slash", *"logging")
        await until(lambda: "train-gpt" not in text_of(app))
        await pilot.press("escape")
        await shows(app, "train-gpt")
        await pilot.press("home", "down", "enter")
        await until(lambda: isinstance(app.screen, MainScreen) and api.calls)

    assert on_screen(view(), body).calls[0] == ("start", "data-starved", {})


def test_no_overview_while_a_run_is_about_to_start() -> None:
    api = FakeSession(view())

    async def run() -> None:
        begin = asyncio.Event()
        app = ConsoleApp(api, scenario="train-gpt", opening=begin.wait())  # type: ignore[arg-type]
        async with app.run_test(size=(120, 40)):
            await shows(app, "throughput")
            assert "what to press" not in text_of(app)
            begin.set()
            await shows(app, "what to press")  # this session starts nothing

    asyncio.run(run())


def broken_off_view() -> View:
    """A trial that ended without a verdict."""
    (trial,) = trial_view().trials[-1:]
    return msgspec.structs.replace(
        gpu_view(), trials=(msgspec.structs.replace(trial, state="failed", verdict="undecided"),)
    )


LONG = " ".join(f"word{n}" for n in range(20))


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (44, 14), (60, 15)])
@pytest.mark.parametrize("screen", ["main", "knobs", "device", "history", "processes"])
def test_a_message_is_whole_above_the_keys_and_covers_nothing(
    screen: str, size: tuple[int, int]
) -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        if screen != "main":
            app.actions.open(screen)
            await pilot.pause()
        before = text_of(app).splitlines()
        app.actions.report("nothing to revert: no change was kept", wrong=True)
        await until(
            lambda: (
                "nothing to revert: no change was kept"
                in " ".join(text_of(app).replace("▌", " ").split())
            )
        )
        app.actions.report(LONG)
        await until(lambda: "word19" in text_of(app))
        await pilot.pause()
        rows = text_of(app).splitlines()
        message = [row for row in rows if "word" in row]
        assert " ".join(message).replace("▌", " ").split() == LONG.split(), (
            "the newest is whole, row by row"
        )
        assert rows[-1 - len(message) : -1] == message, "it stands above the keys"
        assert rows[-1] == before[-1], "the keys stay"
        assert rows[:2] == before[:2], "title and answer stay"
        for zone in app.screen.query(Zone):
            assert not zone.is_on_screen or len(zone.rows) == zone.content_size.height, zone
        app.messages._messages.clear()
        app.tick()
        await until(lambda: text_of(app).splitlines() == before)

    on_screen(trial_view(), body, size)


def test_a_message_goes_after_its_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bars, "MESSAGE_S", 0.3)
    monkeypatch.setattr(actions, "MESSAGE_S", 0.3)

    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        app.actions.report("a short while")
        await shows(app, "a short while")
        await until(lambda: "a short while" not in text_of(app), 5.0)

    on_screen(gpu_view(), body)


def test_messages_of_one_topic_replace_each_other_and_the_newest_stay() -> None:
    now = [0.0]
    shown = bars.Messages(lambda: now[0])
    shown.add("asked: batch_size 16 -> 8", topic="change")
    shown.add("an error", "alert")
    shown.add("an error", "alert")
    shown.add("batch_size 16 -> 8 applied", topic="change")
    rows = [plain_row(row) for row in shown.rows(40, 40)]
    assert [row.strip() for row in rows] == ["▌an error", "▌batch_size 16 -> 8 applied"] and {
        len(row) for row in rows
    } == {40}
    assert [plain_row(row).strip() for row in shown.rows(40, 5)] == ["▌batch_size 16 -> 8 applied"]
    now[0] = bars.MESSAGE_S + 1
    assert shown.rows(40, 40) == []


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (cpu_view(), "step 2 of 4  Wait for the finding"),
        (msgspec.structs.replace(gpu_view(), trials=()), "step 3 of 4  Press Enter"),
        (
            msgspec.structs.replace(trial_view(), trials=trial_view().trials[-1:]),
            "step 4 of 4  Wait for the verdict",
        ),
        (broken_off_view(), "step 3 of 4  The trial failed, see above. Enter tries again"),
        (gpu_view(), ""),
        (msgspec.structs.replace(cpu_view(), recording=True), ""),
    ],
    ids=["measuring", "finding", "trial", "broken-off", "proven", "recording"],
)
def test_the_hint_of_a_first_session_follows_the_session(shown: View, words: str) -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        await shows(app, "q quit")
        assert words in text_of(app) if words else "step " not in text_of(app).splitlines()[-2]
        assert text_of(app).splitlines()[-1].rstrip().endswith("q quit")

    on_screen(shown, body)


def test_a_scenario_of_the_command_line_starts_at_once() -> None:
    api = FakeSession(view())

    async def run() -> None:
        app = ConsoleApp(api, scenario="train-gpt", knobs={"batch_size": 2})
        async with app.run_test() as pilot:
            await pilot.pause()
            await until(lambda: api.calls)
            assert isinstance(app.screen, MainScreen)

    asyncio.run(run())
    assert api.calls[0] == ("start", "train-gpt", {"batch_size": 2})


def test_knobs_are_edited_then_applied_or_tried() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        await pilot.press("S", "enter", "x", "enter")
        await shows(app, "'x' is not allowed; allowed: int 1..65536")
        await pilot.press("backspace", "1", "6", "enter")
        await shows(app, "8 -> 16")
        await pilot.press("a")
        await until(lambda: api.calls)
        await pilot.press("v")
        await until(lambda: len(api.calls) == 2 and isinstance(app.screen, MainScreen))

    assert on_screen(gpu_view(), body).calls[:2] == [
        ("set_knobs", {"batch_size": 16}),
        ("try_change", {"batch_size": 16}, None),
    ]


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("d", "input.too_few_workers"),
        ("i", "gpu.sm_active_ratio"),
        ("h", "throughput, tokens/s"),
        ("question_mark", "Reading the screen"),
    ],
)
def test_other_screens_open_and_close(key: str, words: str) -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        await pilot.press(key)
        await shows(app, words)
        await pilot.press("pagedown", "end", "home", "down")
        await shows(app, words)
        for size in ((80, 24), (40, 12)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
        await pilot.press("escape")
        await until(lambda: isinstance(app.screen, MainScreen))

    on_screen(gpu_view(), body)


def test_text_from_outside_is_plain_and_harmless() -> None:
    scenario = msgspec.structs.replace(SCENARIOS[0], name=HOSTILE, title=HOSTILE, summary=HOSTILE)

    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        api.error = HOSTILE
        await pilot.press("u")
        await shows(app, "[/b] \\x1b[2J\\x07\\u202e")
        for key in ("s", "S", "d", "i", "h"):
            await pilot.press(key)
            await pilot.pause()
            assert not any(char in text_of(app) for char in "\x1b\x07\u202e\r")
            await pilot.press("escape")

    api = FakeSession(hostile_view())
    api.list = [scenario]
    on_screen(api.shown, body, api=api)


def test_an_unchanged_view_refreshes_nothing() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        before, views = [zone.refreshed_rows for zone in zones(app)], api.views
        await until(lambda: api.views >= views + 5)
        assert [zone.refreshed_rows for zone in zones(app)] == before
        api.shown = msgspec.structs.replace(api.shown, running_s=103.0)
        await shows(app, "running 01:43")
        changed = [zone.refreshed_rows - old for zone, old in zip(zones(app), before, strict=True)]
        assert sum(changed) == 1

    on_screen(gpu_view(), body)


def test_a_hidden_screen_does_no_work() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        main = zones(app)
        await pilot.press("question_mark")
        await shows(app, "Reading the screen")
        before, views = [zone.refreshed_rows for zone in main], api.views
        api.shown = cpu_view()
        await until(lambda: api.views >= views + 3)
        assert [zone.refreshed_rows for zone in main] == before

    on_screen(gpu_view(), body)


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
def test_quit_closes_the_session(key: str) -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        await pilot.press(key)
        await until(lambda: app.closed)
        assert app.return_value == 0

    assert on_screen(view(), body).calls[-1] == ("close",)


def test_the_second_escape_out_of_a_screen_cancels_no_trial() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        await shows(app, "Esc cancel")
        await pilot.press("d", "escape", "escape")
        await shows(app, "press Esc again to cancel the trial")
        assert ("cancel_trial",) not in api.calls
        await pilot.press("escape")
        await until(lambda: ("cancel_trial",) in api.calls)

    on_screen(trial_view(), body)


def test_escape_cancels_a_trial_and_does_nothing_without_one() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        await shows(app, "Esc cancel")
        await pilot.press("escape")
        await until(lambda: ("cancel_trial",) in api.calls)
        api.shown = gpu_view()
        await shows(app, "Enter try")
        await pilot.press("escape", "u")
        await until(lambda: ("revert",) in api.calls)
        assert api.calls.count(("cancel_trial",)) == 1

    on_screen(trial_view(), body)
