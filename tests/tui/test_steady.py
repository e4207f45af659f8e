"""An advice on the main screen changes only if another one lasts."""

from __future__ import annotations

import msgspec
from textual.pilot import Pilot

from gpuconsole.model.finding import Finding, Interval, Suggestion, Tried
from gpuconsole.session import facts
from gpuconsole.session.api import View
from gpuconsole.tui.app import ConsoleApp
from gpuconsole.tui.screens.main import HOLD_S, Steady
from tests.tui.fake_session import FakeSession, gpu_view
from tests.tui.test_keys import on_screen


def with_workers(now: float, *workers: int, tried: Tried | None = None) -> View:
    """The view at `now`, in which a finding advises so many workers, the best first."""
    shown = gpu_view(now=now)
    run = shown.runs[-1]
    suggestions = tuple(
        Suggestion({"num_workers": n}, Interval(1.5, 1.7), "", f"num_workers={n}", tried)
        for n in workers
    )
    finding = Finding(
        "input.num_workers",
        "fires",
        "Too few DataLoader workers",
        0.5,
        "high",
        f"{workers[0]} workers",
        suggestions=suggestions,
    )
    return msgspec.structs.replace(
        shown, runs=(*shown.runs[:-1], msgspec.structs.replace(run, findings=[finding]))
    )


def advised(view: View) -> list[object]:
    return [suggestion.changes["num_workers"] for _, suggestion in facts.suggestions(view).values()]


def test_an_advice_that_changes_back_and_forth_stands_still() -> None:
    steady = Steady()
    seen = [
        advised(steady.of(with_workers(100 + n, *((2, 4) if n % 2 else (4, 2)))))[0]
        for n in range(20)
    ]
    assert set(seen) == {4}


def test_an_advice_that_lasts_takes_the_place() -> None:
    steady = Steady()
    steady.of(with_workers(100, 2))
    seen = {
        t: advised(steady.of(with_workers(t, 4)))[0] for t in (101.0, 103.0, 101.0 + HOLD_S, 110.0)
    }
    assert seen == {101.0: 2, 103.0: 2, 101.0 + HOLD_S: 4, 110.0: 4}
    held = steady.of(with_workers(111, 2))
    assert facts.firing(held.run)[0].summary == "4 workers"  # the words belong to the advice


def test_what_was_measured_counts_at_once() -> None:
    steady = Steady()
    steady.of(with_workers(100, 2, 4))
    measured = with_workers(101, 4, 2, tried=Tried(1.4, 1.2, 1.6, "win", "1"))
    assert advised(steady.of(measured)) == [4, 2]


def test_enter_tries_the_advice_in_sight() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: FakeSession) -> None:
        await pilot.pause()
        api.shown = with_workers(101.0, 4)
        app.tick()
        await pilot.press("enter")
        await pilot.pause()

    session = on_screen(with_workers(100.0, 2), body)
    assert next(call for call in session.calls if call[0] == "try_change")[1] == {"num_workers": 2}
