"""The settings screen: a value is typed, accepted or refused, applied, and taken back."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from textual.pilot import Pilot

from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.session.api import A_RECORDING, Playback
from gpuconsole.tui.app import ConsoleApp
from gpuconsole.tui.screens.main import MainScreen
from tests.tui.fake_session import FakeSession, cpu_view, gpu_view
from tests.tui.test_app import on_screen, shows, text_of
from tests.waiting import until


class SlowSession(FakeSession):
    """A worker in the middle of a long step: a change is made when `go_on` is set, at step 412."""

    def __init__(self) -> None:
        super().__init__(gpu_view())
        self.go_on = asyncio.Event()

    def _changed(self, changes: Knobs, undo: Knobs, at_step: int) -> None:
        run = self.shown.runs[-1]
        after = msgspec.structs.replace(
            run, id="3", knobs={**run.knobs, **changes}, changes=changes, at_step=at_step
        )
        self.shown = msgspec.structs.replace(self.shown, runs=(*self.shown.runs, after), undo=undo)

    async def set_knobs(self, changes: Knobs) -> None:
        await super().set_knobs(changes)
        await self.go_on.wait()
        run = self.shown.runs[-1]
        self._changed(changes, {name: run.knobs[name] for name in changes}, 412)

    async def revert(self) -> None:
        await super().revert()
        self._changed(self.shown.undo, {}, 450)


def keys_row(app: ConsoleApp) -> str:
    return text_of(app).splitlines()[-1].strip()


@pytest.mark.parametrize(
    ("size", "beside"), [((120, 40), True), ((80, 24), True), ((44, 20), False)]
)
def test_while_a_value_is_typed_only_its_keys_are_offered_and_the_error_stands_at_the_field(
    size: tuple[int, int], beside: bool
) -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        await pilot.press("S")
        await shows(app, "batch_size")
        assert "Enter edit" in keys_row(app)
        assert "a apply" not in keys_row(app) and "v try" not in keys_row(app), "nothing was edited"
        await pilot.press("enter")
        await shows(app, "batch_size = 8")
        assert keys_row(app) == "Enter accept   Esc discard"
        await pilot.press(*"av?", "enter")
        await shows(app, "'av?' is not allowed")
        rows = text_of(app).splitlines()
        (field,) = (y for y, row in enumerate(rows) if row.startswith("batch_size = av?"))
        (note,) = (
            y for y, row in enumerate(rows) if "'av?' is not allowed; allowed: int 1..6" in row
        )
        assert (note == field) == beside and note - field in (0, 1) and note >= len(rows) - 3
        await pilot.press("backspace")
        await until(
            lambda: "not allowed" not in text_of(app) and "allowed: int 1..65536" in text_of(app)
        )
        await pilot.press("escape")
        await until(lambda: "batch_size = " not in text_of(app))
        assert "Enter edit" in keys_row(app) and "8 ->" not in text_of(app)

    assert on_screen(gpu_view(), body, size).calls == []


def test_a_click_accepts_or_discards() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        async def click(words: str) -> None:
            await pilot.click(
                offset=(text_of(app).splitlines()[-1].index(words) + 1, app.size.height - 1)
            )

        await pilot.press("S", "enter", *"16")
        await click("Enter accept")
        await shows(app, "8 -> 16")
        await pilot.press("enter", *"32")
        await click("Esc discard")
        await until(lambda: "batch_size = " not in text_of(app))
        assert "8 -> 16" in text_of(app)

    on_screen(gpu_view(), body)


def test_a_change_is_confirmed_at_once_then_with_its_step_and_u_takes_it_back() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        assert isinstance(api, SlowSession)
        await pilot.press("S", "enter", *"16", "enter")
        await shows(app, "8 -> 16")
        assert (
            "a apply" in keys_row(app)
            and "backspace forget" in keys_row(app)
            and "u take back" not in keys_row(app)
        )
        await pilot.press("a")
        await shows(app, "asked: batch_size 8 -> 16")  # the worker has not answered
        api.go_on.set()
        await shows(app, "batch_size 8 -> 16 applied at step 412, u takes it back")
        assert "asked:" not in text_of(app) and "a apply" not in keys_row(app)
        await until(lambda: "u take back" in keys_row(app))
        await pilot.press("u")
        await shows(app, "batch_size 16 -> 8: change taken back at step 450")
        await until(lambda: "u take back" not in keys_row(app))

    on_screen(gpu_view(), body, api=SlowSession())


def test_a_refusal_replaces_the_request() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        await pilot.press("S", "enter", *"16", "enter")
        api.error = "batch_size 8 -> 16 needs a restart of the worker: try it as a trial"
        await pilot.press("a")
        await shows(app, "needs a restart of the worker")
        assert "asked:" not in text_of(app)

    on_screen(gpu_view(), body)


@pytest.mark.parametrize("key", ["enter", "a", "v"])
def test_in_a_recording_no_change_is_offered(key: str) -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        await pilot.press("S")
        await shows(app, "batch_size")
        assert not any(
            words in keys_row(app) for words in ("edit", "apply", "try", "forget", "take back")
        )
        await pilot.press(key)
        await shows(app, A_RECORDING)
        assert "batch_size = " not in text_of(app)

    shown = gpu_view(recording=True, playback=Playback(15.0, 47.0), undo={"batch_size": 4})
    assert on_screen(shown, body).calls == []


def test_a_setting_is_tried_from_its_screen() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        await pilot.press("S", "enter", *"16", "enter", "v")
        await until(lambda: isinstance(app.screen, MainScreen) and bool(api.calls))

    assert on_screen(cpu_view(), body).calls[0] == ("try_change", {"batch_size": 16}, None)
