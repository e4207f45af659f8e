"""Moves and filters that every list and page has, and screens that do not open where they could do
nothing."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest
from textual.pilot import Pilot

from gpuconsole.model.job import JOB
from gpuconsole.session.api import View
from gpuconsole.tui import keys
from gpuconsole.tui.actions import SCREENS
from gpuconsole.tui.app import ConsoleApp
from gpuconsole.tui.screens.base import BackScreen, ListScreen
from gpuconsole.tui.screens.main import MainScreen
from tests.tui.fake_gpu_box import box
from tests.tui.fake_profile import profiled_view
from tests.tui.fake_session import FakeSession, gpu_view
from tests.tui.test_app import on_screen, shows, text_of
from tests.waiting import until

QUESTIONS = ("leave_job", "consent")
"""Lists of two or three answers: there is nothing to filter."""


@pytest.mark.parametrize(
    "screen", [name for name in SCREENS if name not in ("history", *QUESTIONS)]
)
def test_every_list_and_page_has_a_filter_and_moves(screen: str) -> None:
    by_key = {key: action.id for action in keys.on(screen) for key in action.keys.split(",")}
    assert by_key["slash"] == "filter"
    assert (by_key["tab"], by_key["shift+tab"]) in (
        ("down", "up"),
        ("next_device", "previous_device"),
    )
    assert by_key["g"] in ("first", "group") and by_key["G"] == by_key["end"] == "last"
    assert (by_key["j"], by_key["k"]) == ("down", "up")


@pytest.mark.parametrize(
    ("key", "words", "kept", "left_out"),
    [
        ("question_mark", "kernel roofline", "Profile a few steps", "Command palette"),
        ("d", "workers", "Too few dataloader workers", "fp32 matmuls"),
        ("m", "flop/s", "FLOP/s", "Memory"),
    ],
)
def test_a_filter_leaves_only_lines_with_the_words(
    key: str, words: str, kept: str, left_out: str
) -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        await pilot.press(key)
        await until(lambda: isinstance(app.screen, ListScreen))
        whole = text_of(app)
        await pilot.press("slash", *words)
        await until(lambda: left_out not in text_of(app))
        assert kept.lower() in text_of(app).lower()
        assert (
            text_of(app).splitlines()[-1].strip()
            == "Enter keep the filter   up/down select   Esc all lines"
        )
        await pilot.press("enter")
        await shows(app, f"filter: {words}")
        await pilot.press("escape")
        await until(lambda: text_of(app) == whole)
        await pilot.press("slash", *"nothing has this")
        await shows(app, "No line has 'nothing has this'; escape shows all.")

    on_screen(profiled_view(), body)


def test_links_are_filtered_too() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        await pilot.press("l")
        await until(lambda: isinstance(app.screen, ListScreen))
        rows = text_of(app).splitlines()
        assert any(row.startswith("gpu:5") for row in rows)
        await pilot.press("slash", *"gpu:1", "enter")
        await until(lambda: not any(row.startswith("gpu:5") for row in text_of(app).splitlines()))
        assert any(row.startswith("gpu:1") for row in text_of(app).splitlines())

    on_screen(box(8, kind="pcie"), body)


def test_tab_and_g_move_also_while_a_filter_is_typed() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        await pilot.press("S")
        await shows(app, "> batch_size")
        await pilot.press("tab", "tab")
        await until(lambda: "> batch_size" not in text_of(app))
        await pilot.press("shift+tab", "G")
        await until(
            lambda: "> storage_latency_ms" in text_of(app) or "> prefetch_factor" in text_of(app)
        )
        await pilot.press("g")
        await shows(app, "> batch_size")
        await pilot.press("slash", "tab")
        await until(lambda: "> batch_size" not in text_of(app))

    on_screen(gpu_view(), body)


def test_tab_chooses_the_next_finding_of_the_main_screen() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        await shows(app, "> use 4 DataLoader workers")
        await pilot.press("tab")
        await shows(app, "> use 2 DataLoader workers")
        await pilot.press("shift+tab")
        await shows(app, "> use 4 DataLoader workers")
        await pilot.press("G")
        await shows(app, "> compute in bf16")
        await pilot.press("g")
        await shows(app, "> use 4 DataLoader workers")

    on_screen(gpu_view(), body)


def job_view() -> View:
    view = gpu_view()
    return msgspec.structs.replace(
        view, runs=(*view.runs[:-1], msgspec.structs.replace(view.runs[-1], workload=JOB))
    )


def test_during_a_job_of_the_users_own_no_scenario_is_offered() -> None:
    api = FakeSession(job_view())
    api.job = SimpleNamespace(ended=False, resize=lambda columns, rows: None)  # type: ignore[assignment]
    assert api.shown.run is not None and api.shown.run.is_job

    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        await pilot.press("s")
        await shows(app, "your job runs: x ends or leaves it, then s starts a scenario")
        assert isinstance(app.screen, MainScreen) and "Enter starts" not in text_of(app)
        run = msgspec.structs.replace(api.shown.runs[-1], state="finished")
        api.shown = msgspec.structs.replace(
            api.shown, runs=(*api.shown.runs[:-1], run), state="finished"
        )
        api.job.ended = True  # type: ignore[attr-defined]
        await pilot.press("s")
        await until(lambda: isinstance(app.screen, BackScreen) and app.screen.NAME == "scenarios")

    on_screen(api.shown, body, api=api)
