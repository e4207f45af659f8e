"""Commands as a workload takes them: between two steps, and by several processes at the same step."""

from __future__ import annotations

import queue

from gpuconsole.agent.clock import now
from gpuconsole.agent.world import World
from gpuconsole.wire.events import AnyCommand

CHECK_EVERY_S = 0.05
MOST_SKIPPED = 64


class Inbox:
    """Commands from the console, in order."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[AnyCommand] = queue.SimpleQueue()

    def put(self, command: AnyCommand) -> None:
        self._queue.put(command)

    def poll(self) -> AnyCommand | None:
        """The next command, if there is one."""
        return None if self._queue.empty() else self._queue.get()

    def wait(self) -> AnyCommand:
        """The next command, however long it takes."""
        return self._queue.get()


class LockstepInbox(Inbox):
    """The leader's commands, handed to every process of a world at the same poll.

    A poll costs a broadcast (0.1-0.3 ms on loopback), so most are skipped: the leader tells at each one how many, such
    that it happens about every 50 ms. All processes poll once a step, hence they agree on the count.
    """

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._skip = 0
        self._polls = 1
        self._last = now()

    def poll(self) -> AnyCommand | None:
        if self._skip:
            self._skip -= 1
            return None
        command, self._skip = self._world.share((super().poll(), self._pace()))
        return command

    def wait(self) -> AnyCommand:
        command = self._world.share(super().wait() if self._world.leads else None)
        assert command is not None
        return command

    def _pace(self) -> int:
        """Polls to skip until the next look, from the time that the last ones took."""
        t = now()
        each = max(1e-6, (t - self._last) / self._polls)
        skip = min(MOST_SKIPPED, int(CHECK_EVERY_S / each))
        self._last, self._polls = t, skip + 1
        return skip
