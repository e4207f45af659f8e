"""The feed of trackers: bounded, and no tracker delays another one or the session."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from gpuconsole.report.trackers import feed as feed_of
from gpuconsole.report.trackers.choice import BY_NAME, choice, why_not
from gpuconsole.report.trackers.feed import TrackerFeed
from gpuconsole.report.trackers.readings import Final, Point, SessionFacts, TrackerEvent
from tests.tui.fake_session import FakeSession, gpu_view


class Kept:
    """A tracker that keeps what it gets."""

    def __init__(self) -> None:
        self.got: list[Any] = []

    def begin(self, facts: SessionFacts) -> None:
        self.got.append(facts)

    def log(self, point: Point) -> None:
        self.got.append(point)

    def note(self, event: TrackerEvent) -> None:
        self.got.append(event)

    def end(self, final: Final) -> None:
        self.got.append(final)


class Broken(Kept):
    def log(self, point: Point) -> None:
        raise OSError("no route to host\nand more")


class Stuck(Kept):
    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()

    def log(self, point: Point) -> None:
        self.go_on.wait(30)


def fed(trackers: dict[str, Kept], points: int, seconds: float = 10.0) -> list[str]:
    """What a feed says that has passed on so many points and the end of the session."""
    view = gpu_view()
    session = FakeSession(view)

    def at(number: int) -> Callable[[], Any]:
        latest = {
            "workload.loss{device=gpu:0}": float(number),
            "gpu.power_w{device=gpu:0}": 2.0 * number,
            "gpu.power_w{device=gpu:0/link:1}": 1.0,
        }
        return lambda: msgspec.structs.replace(
            view, now=float(number), latest=latest, sampled=dict.fromkeys(latest, float(number))
        )

    makers = [(name, lambda tracker=tracker: tracker) for name, tracker in trackers.items()]
    feed = TrackerFeed(makers, at(1), session.environment, session.snapshot, lambda line: None)  # type: ignore[arg-type]

    async def play() -> None:
        for number in range(1, points + 1):
            feed._view = at(number)
            feed._take()
        await feed.finish()

    asyncio.run(play())
    said: list[str] = []
    problems = feed.wait(said.append, seconds)
    assert said == (
        [f"waiting up to {seconds:g} s for stuck: Ctrl-C ends the wait"]
        if "stuck" in trackers
        else []
    )
    return problems


def points(tracker: Kept) -> list[Point]:
    return [item for item in tracker.got if isinstance(item, Point)]


def test_facts_come_first_then_what_is_new_and_the_summary_last() -> None:
    tracker = Kept()
    problems = fed({"one": tracker}, 3)
    facts, *_ = tracker.got
    assert isinstance(facts, SessionFacts) and facts.values["setting.batch_size"]
    assert isinstance(tracker.got[-1], Final)
    values = [
        {reading.name: reading.value for reading in point.readings} for point in points(tracker)
    ]
    assert [one["workload.loss"] for one in values] == [1.0, 2.0, 3.0]
    assert [one["gpu.power_w/gpu:0"] for one in values] == [2.0, 4.0, 6.0]
    assert not any("link" in name for one in values for name in one)
    assert sum(
        share for name, share in values[0].items() if name.startswith("phase.")
    ) == pytest.approx(1.0, abs=0.02)
    findings = [item.name for item in tracker.got if isinstance(item, TrackerEvent)]
    assert findings and len(set(findings)) == len(findings), "each finding once"
    assert problems == []


def test_a_tracker_that_fails_is_named_and_the_other_one_gets_everything() -> None:
    whole, broken = Kept(), Broken()
    problems = fed({"whole": whole, "broken": broken}, 4)
    assert len(points(whole)) == 4
    assert problems == [
        "--log-to broken: 4 of 4 points were not delivered (OSError: no route to host)"
    ]


def test_a_tracker_that_hangs_loses_points_beyond_its_queue_and_the_end_does_not_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed_of, "MAX_WAITING", 5)
    stuck = Stuck()
    begun = time.monotonic()
    problems = fed({"stuck": stuck}, 20, seconds=0.5)
    assert time.monotonic() - begun < 10
    assert problems == [
        "--log-to stuck: 20 of 20 points were not delivered (the tracker did not end)"
    ]
    stuck.go_on.set()


@pytest.mark.parametrize(
    "text", ["", "nothing", "wandb=project", "tensorboard=", "otlp=http://localhost"]
)
def test_a_tracker_that_does_not_exist(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"allowed are tensorboard\[=FOLDER\], wandb, mlflow, otlp"
    ):
        choice(text)


def test_where_the_library_is_missing_the_command_that_installs_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert why_not(BY_NAME["tensorboard"]).startswith("tensorboard is not installed: ")
