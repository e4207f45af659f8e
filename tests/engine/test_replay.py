"""A recording that plays: pause, seek and speed. What is shown at a moment is what was known at
that moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from importlib import resources
from pathlib import Path

import msgspec
import pytest

from gpuconsole.engine import recording
from gpuconsole.engine.recording import DEMO, Replay
from gpuconsole.session.api import View
from gpuconsole.session.state import SessionState
from gpuconsole.wire.events import encode
from tests.waiting import until


@pytest.fixture
def path() -> Iterator[Path]:
    with resources.as_file(DEMO) as file:
        yield file


def played(path: Path, body: Callable[[Replay], Awaitable[None]], speed: float = 1.0) -> None:
    async def run() -> None:
        replay = Replay(path, speed)
        await replay.open()
        await body(replay)
        await replay.close()

    asyncio.run(run())


def playing(replay: Replay) -> tuple[float, bool]:
    playback = replay.view().playback
    assert playback is not None
    return playback.at_s, playback.paused


def known(replay: Replay) -> View:
    """What is shown, apart from the clock of the player."""
    return msgspec.structs.replace(replay.view(), playback=None)


def events_until(replay: Replay, at_s: float) -> int:
    """How many events come before the first that is later."""
    first = replay._events[0].t
    return next(
        (n for n, event in enumerate(replay._events) if event.t > first + at_s), len(replay._events)
    )


async def stands_at(replay: Replay, at_s: float) -> None:
    await until(lambda: replay._folded == events_until(replay, at_s), 10.0, str(at_s))


def test_a_moment_is_the_fold_of_the_events_before_it(path: Path) -> None:
    """Forward, back and forward again: each time the same as a session that was watched up to
    there. The histories too."""

    async def body(replay: Replay) -> None:
        replay.pause()
        for at_s in (20.0, 6.0, 30.0, 13.0, 0.0, 38.0):
            replay.seek(at_s)
            await stands_at(replay, at_s)
            other = Replay(path, 0)
            for event in other._events[: events_until(replay, at_s)]:
                other.state.apply(event)
            other._folded = events_until(replay, at_s)
            assert known(replay) == known(other)
            assert playing(replay) == (at_s, True)
            for key in other.state.readings.series:
                assert replay.points(key) == other.points(key)
                assert replay.history(key, 30, 60.0) == other.history(key, 30, 60.0)

    played(path, body)


def test_folding_changes_no_event(path: Path) -> None:
    replay = Replay(path, 0)
    before = [encode(event) for event in replay._events]
    state = SessionState()
    for event in replay._events:
        state.apply(event)
    assert [encode(event) for event in replay._events] == before


def test_pause_stands_and_goes_on(path: Path) -> None:
    async def body(replay: Replay) -> None:
        await until(lambda: replay._folded > 5)
        replay.pause()
        at_s, paused = playing(replay)
        assert paused and at_s < 10.0
        folded = replay._folded
        await asyncio.sleep(0.3)  # nothing may happen in this time
        assert playing(replay) == (at_s, True) and replay._folded <= max(
            folded, events_until(replay, at_s)
        )
        replay.pause()
        await until(lambda: replay._folded > folded)

    played(path, body)


def test_at_the_end_it_rests_and_plays_again(path: Path) -> None:
    async def body(replay: Replay) -> None:
        replay.seek(1e9)
        await until(lambda: replay.ended)
        view = replay.view()
        assert (
            view.ended
            and view.playback is not None
            and view.playback.at_s == view.playback.length_s
        )
        replay.pause()
        await until(lambda: not replay.ended)
        assert playing(replay)[0] < 10.0 and not playing(replay)[1]
        replay.seek(-5.0)
        assert playing(replay)[0] < 5.0

    played(path, body)


def test_the_speed_has_steps(path: Path) -> None:
    async def body(replay: Replay) -> None:
        for faster, speed in (
            (True, 4.0),
            (True, 8.0),
            (False, 4.0),
            (False, 2.0),
            (False, 1.0),
            (False, 0.5),
            (False, 0.25),
            (False, 0.25),
        ):
            replay.change_speed(faster=faster)
            playback = replay.view().playback
            assert playback is not None and playback.speed == speed
        for _ in recording.SPEEDS:
            replay.change_speed(faster=True)
        await until(lambda: replay.ended, 10.0)

    played(path, body, 3.0)


def test_all_at_once_is_at_the_end_at_once(path: Path) -> None:
    async def body(replay: Replay) -> None:
        assert replay.ended and playing(replay)[0] == replay._length_s
        replay.seek(5.0)
        await until(lambda: not replay.ended)

    played(path, body, 0)


def test_a_long_fold_lets_keys_in_between(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old state stays in sight until the other one is complete."""
    monkeypatch.setattr(recording, "SLICE_S", 0.0005)

    async def body(replay: Replay) -> None:
        replay.pause()
        replay.seek(30.0)
        await stands_at(replay, 30.0)
        before, turns = replay.state, 0
        replay.seek(25.0)
        while replay.state is before:
            playback = replay.view().playback
            assert playback is not None and playback.at_s == 25.0
            assert replay._folded == events_until(replay, 30.0) and (playback.seeking or not turns)
            turns += 1
            await asyncio.sleep(0)
        assert turns > 3
        assert (playback := replay.view().playback) is not None and not playback.seeking

    played(path, body)
