"""Passes the readings of a session to trackers. Each tracker has a thread and a queue of its own:
one that is slow or down delays nothing."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gpuconsole.model.snapshot import Environment, Snapshot
from gpuconsole.model.text import without_credentials
from gpuconsole.report.share.html import html_page
from gpuconsole.report.share.session import session_document
from gpuconsole.report.trackers.readings import (
    Final,
    Point,
    SessionFacts,
    Tracker,
    TrackerEvent,
    ViewReader,
    facts_of,
    summary_point,
)
from gpuconsole.session.api import View

EVERY_S = 1.0
MAX_WAITING = 600
"""Points that wait for a tracker, ten minutes. Further points are lost, and counted."""
SETTINGS_S = 15.0
"""How long the first point waits for the settings of a user's job, which are known after its first
steps."""
END_S = 10.0
"""How long the end of the program waits for all trackers together."""
SHORT_S = 0.5
"""A wait of this time needs no line."""


class Delivery(NamedTuple):
    """What a tracker got: points delivered and lost, and its first failure. `ended`: the tracker
    has taken all that it got."""

    delivered: int
    lost: int
    failure: str
    ended: bool = True


class _Worker:
    """The thread of one tracker."""

    def __init__(self, name: str, make: Callable[[], Tracker]) -> None:
        self.name, self._make = name, make
        self._queue: queue.Queue[Any] = queue.Queue(MAX_WAITING)
        self._delivered = self._lost = 0
        self.failure = ""
        """The first failure of the tracker, in one line: those that follow are often its
        consequences."""
        self._under_way: Any = None
        self._tracker: Tracker | None = None
        self._thread = threading.Thread(target=self._run, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def put(self, item: SessionFacts | Point | TrackerEvent | Final) -> None:
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
            return Delivery(self._delivered, self._lost, self.failure)
        waiting = sum(isinstance(item, Point) for item in [self._under_way, *self._queue.queue])
        return Delivery(self._delivered, self._lost + waiting, self.failure, ended=False)

    def _run(self) -> None:
        # before there is an item: the import of a library may take ten seconds
        self._attempt(self._open)
        while True:
            self._under_way = item = self._queue.get()
            done = self._attempt(lambda item=item: self._pass_on(item))  # type: ignore[misc]
            if isinstance(item, Point):
                self._delivered, self._lost = self._delivered + done, self._lost + (not done)
            if isinstance(item, Final):
                return

    def _attempt(self, action: Callable[[], None]) -> bool:
        """Whether `action` has not failed. A tracker's library may raise anything."""
        try:
            action()
        except Exception as problem:
            self.failure = self.failure or without_credentials(
                f"{type(problem).__name__}: {problem}".splitlines()[0]
            )
            return False
        return True

    def _open(self) -> None:
        self._tracker = self._make()

    def _pass_on(self, item: SessionFacts | Point | TrackerEvent | Final) -> None:
        if self._tracker is None:
            self._open()
        assert self._tracker is not None
        match item:
            case SessionFacts():
                self._tracker.begin(item)
            case Point():
                self._tracker.log(item)
            case TrackerEvent():
                self._tracker.note(item)
            case Final():
                self._tracker.end(item)


class TrackerFeed:
    """Feeds the trackers of one session, from its first run on. `serve` runs while the session is
    open, `finish` when its runs have ended, and `wait` once the session is closed, so that no
    tracker delays the end of the screen."""

    def __init__(
        self,
        makers: Sequence[tuple[str, Callable[[], Tracker]]],
        view: Callable[[], View],
        environment: Callable[[], Environment],
        snapshot: Callable[[], Snapshot],
        note: Callable[[str], None],
        command: str = "",
    ) -> None:
        """`makers`: name and constructor of each tracker; the constructor runs on the tracker's
        thread. `note`: a line for the user. `command`: see `SessionFacts`."""
        self._command = command
        self._view, self._environment, self._snapshot, self._note = (
            view,
            environment,
            snapshot,
            note,
        )
        self._reader = ViewReader()
        self._makers = makers
        self._workers: list[_Worker] = []
        self._has_begun = False
        """Whether the trackers have the facts."""
        self._failing: set[str] = set()
        """The trackers whose failure the user has been told."""

    async def serve(self) -> None:
        """Pass on what is new, and name each tracker that fails, until this task is cancelled."""
        self._open()
        while True:
            self._take()
            for worker in self._workers:
                if worker.failure and worker.name not in self._failing:
                    self._failing.add(worker.name)
                    self._note(f"--log-to {worker.name}: {worker.failure}")
            await asyncio.sleep(EVERY_S)

    async def finish(self) -> None:
        """Queue the last values and the end of the session for each tracker. Waits for none."""
        self._take(ends=True)
        if not self._has_begun:
            return
        view, snapshot = self._view(), self._snapshot()
        page = functools.cache(lambda: html_page(session_document(snapshot)))
        final = Final(summary_point(snapshot, view.wall or time.time(), view.now), page)
        self._put(final)

    def wait(self, say: Callable[[str], None], seconds: float | None = None) -> list[str]:
        """Wait for the end of all trackers, `seconds` together (default END_S); Ctrl-C ends the
        wait. Returns a line for each tracker that did not get everything. `say`: takes a line for
        the user if the wait is not short."""
        seconds = END_S if seconds is None else seconds
        workers = self._workers if self._has_begun else []
        with contextlib.suppress(KeyboardInterrupt):
            if slow := [
                worker.name for worker in workers if not worker.join(SHORT_S / len(workers)).ended
            ]:
                say(f"waiting up to {seconds:g} s for {', '.join(slow)}: Ctrl-C ends the wait")
            until = time.monotonic() + seconds
            for worker in workers:
                worker.join(max(0.0, until - time.monotonic()))
        problems = []
        for worker in workers:
            delivery = worker.join(0.0)
            why = delivery.failure or ("" if delivery.ended else "the tracker did not end")
            if delivery.lost or why:
                lost = (
                    f"{delivery.lost} of {delivery.lost + delivery.delivered} points were not"
                    " delivered"
                )
                problems.append(f"--log-to {worker.name}: {lost}" + (f" ({why})" if why else ""))
        return problems

    def _take(self, ends: bool = False) -> None:
        view = self._view()
        run = view.run
        if run is None or not (
            self._has_begun or ends or run.settings or view.running_s > SETTINGS_S
        ):
            return
        if not self._has_begun:
            self._open()
            self._has_begun = True
            self._put(facts_of(self._environment(), view, self._command))
        if (point := self._reader.point(view)) is not None:
            self._put(point)
        for event in self._reader.events(view):
            self._put(event)

    def _open(self) -> None:
        if not self._workers:
            self._workers = [_Worker(name, make) for name, make in self._makers]

    def _put(self, item: SessionFacts | Point | TrackerEvent | Final) -> None:
        for worker in self._workers:
            worker.put(item)
