"""Commands wait here until the training thread takes them between two steps; several processes take a command at the same step."""

from __future__ import annotations

import queue
from typing import Any

from .clock import now
from .world import World

POLL_EVERY_S = 0.05
MOST_SKIPPED = 64


class Inbox:
    """Commands from the console, in order. One thread puts, the training thread takes."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def put(self, command: Any) -> None:
        self._queue.put(command)

    def poll(self) -> Any | None:
        """The next command, or None."""
        return None if self._queue.empty() else self._queue.get()

    def wait(self) -> Any:
        """The next command. Blocks until there is one."""
        return self._queue.get()


class LockstepInbox(Inbox):
    """The leader's commands, given to every process of a world at the same poll.

    A poll takes a broadcast (0.1 to 0.3 ms on loopback). So most polls are skipped: at each broadcast the leader sends the number of polls
    to skip, such that a broadcast happens about every 50 ms. All processes poll once a step, hence they agree on the count.
    """

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._skip = 0
        self._polls = 1
        self._last = now()

    def poll(self) -> Any | None:
        if self._skip:
            self._skip -= 1
            return None
        command, self._skip = self._world.share((super().poll(), self._polls_to_skip()))
        return command

    def wait(self) -> Any:
        return self._world.share(super().wait() if self._world.leads else None)

    def _polls_to_skip(self) -> int:
        """The number of polls to skip, from the duration of the last polls."""
        t = now()
        each = max(1e-6, (t - self._last) / self._polls)
        skip = min(MOST_SKIPPED, int(POLL_EVERY_S / each))
        self._last, self._polls = t, skip + 1
        return skip
