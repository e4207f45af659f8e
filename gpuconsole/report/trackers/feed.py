"""Passes the readings of a session to trackers. Each tracker has a thread and a queue of its own: one that is slow or down delays nothing."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from gpuconsole.model.snapshot import Environment, Snapshot
from gpuconsole.report.share.html import html_page
from gpuconsole.report.share.session import session_document
from gpuconsole.report.trackers.readings import Event, Facts, Final, Point, Reader, facts_of, summary_point
from gpuconsole.session.api import View

EVERY_S = 1.0
MOST_WAITING = 600
"""Points that wait for a tracker, ten minutes. Further points are lost, and counted."""
SETTINGS_S = 15.0
"""How long the first point waits for the settings of a user's job, which are known after its first steps."""
END_S = 10.0
"""How long the end of the session waits for all trackers together."""


class Tracker(Protocol):
    """A tracker that is open. Each method may take long, and may raise anything. All calls come from one thread."""

    def begin(self, facts: Facts) -> None: ...

    def log(self, point: Point) -> None: ...

    def note(self, event: Event) -> None: ...

    def end(self, final: Final) -> None: ...


class Delivery(NamedTuple):
    """What a tracker got: points delivered and lost, and its last failure."""

    delivered: int
    lost: int
    failure: str


class _Worker:
    """The thread of one tracker."""

    def __init__(self, name: str, make: Callable[[], Tracker]) -> None:
        self.name, self._make = name, make
        self._queue: queue.Queue[Any] = queue.Queue(MOST_WAITING)
        self._delivered = self._lost = 0
        self._failure = ""
        self._under_way: Any = None
        self._tracker: Tracker | None = None
        self._thread = threading.Thread(target=self._run, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def put(self, item: Facts | Point | Event | Final) -> None:
        """Never waits: where the queue is full, the oldest item is lost."""
        while True:
            try:
                return self._queue.put_nowait(item)
            except queue.Full:
                with contextlib.suppress(queue.Empty):
                    self._lost += isinstance(self._queue.get_nowait(), Point)

    def join(self, seconds: float) -> Delivery:
        """Wait for the end; what has not been delivered by then is lost."""
        self._thread.join(seconds)
        if not self._thread.is_alive():
            return Delivery(self._delivered, self._lost, self._failure)
        waiting = sum(isinstance(item, Point) for item in [self._under_way, *self._queue.queue])
        return Delivery(self._delivered, self._lost + waiting, self._failure or f"it did not end within {END_S:g} s")

    def _run(self) -> None:
        while True:
            self._under_way = item = self._queue.get()
            try:
                self._pass_on(item)
                self._delivered += isinstance(item, Point)
            except Exception as problem:  # of the tracker's library: anything
                self._lost += isinstance(item, Point)
                self._failure = f"{type(problem).__name__}: {problem}".splitlines()[0]
            if isinstance(item, Final):
                return

    def _pass_on(self, item: Facts | Point | Event | Final) -> None:
        if self._tracker is None:
            self._tracker = self._make()
        match item:
            case Facts():
                self._tracker.begin(item)
            case Point():
                self._tracker.log(item)
            case Event():
                self._tracker.note(item)
            case Final():
                self._tracker.end(item)


class Feed:
    """Feeds the trackers of one session, from its first run on."""

    def __init__(
        self,
        makers: Sequence[tuple[str, Callable[[], Tracker]]],
        view: Callable[[], View],
        environment: Callable[[], Environment],
        snapshot: Callable[[], Snapshot],
    ) -> None:
        """`makers`: name and constructor of each tracker; the constructor runs on the tracker's thread."""
        self._makers, self._view, self._environment, self._snapshot = makers, view, environment, snapshot
        self._reader = Reader()
        self._workers: list[_Worker] = []
        self.problems: list[str] = []
        """After `finish`: a line for each tracker that did not get everything."""

    async def serve(self) -> None:
        """Pass on what is new, until this task is cancelled."""
        while True:
            self._take()
            await asyncio.sleep(EVERY_S)

    async def finish(self) -> None:
        """Pass on the end of the session, and wait for the trackers. Call it when all runs have ended."""
        self._take(ends=True)
        if not self._workers:
            return
        view = self._view()
        snapshot = self._snapshot()
        page = await asyncio.to_thread(lambda: html_page(session_document(snapshot)))
        final = Final(summary_point(snapshot, view.wall or time.time(), view.now), page)
        for worker in self._workers:
            worker.put(final)
        until = time.monotonic() + END_S
        for worker in self._workers:
            delivery = await asyncio.to_thread(worker.join, max(0.0, until - time.monotonic()))
            if delivery.lost or delivery.failure:
                lost = f"{delivery.lost} of {delivery.lost + delivery.delivered} points were not delivered"
                self.problems.append(f"--log-to {worker.name}: {lost}" + (f" ({delivery.failure})" if delivery.failure else ""))

    def _take(self, ends: bool = False) -> None:
        view = self._view()
        run = view.run
        if run is None or not (self._workers or ends or run.settings or view.running_s > SETTINGS_S):
            return
        if not self._workers:
            facts = facts_of(self._environment(), view)
            self._workers = [_Worker(name, make) for name, make in self._makers]
            for worker in self._workers:
                worker.put(facts)
        point, events = self._reader.point(view), self._reader.events(view)
        for worker in self._workers:
            if point is not None:
                worker.put(point)
            for event in events:
                worker.put(event)
