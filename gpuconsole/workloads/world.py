"""The processes that train together. One of them leads: it talks with the console, and the others do as it does."""

from __future__ import annotations

import datetime
import os
from typing import Any, TypeVar

T = TypeVar("T")

FOR_EVER = datetime.timedelta(days=30)
"""A paused run waits in a broadcast; that must not end it."""


class World:
    """A process on its own. Collective calls must be made by all processes of a world, in the same order."""

    rank = 0
    size = 1
    leader = 0
    local_rank = 0

    @property
    def leads(self) -> bool:
        return self.rank == self.leader

    def share(self, value: T) -> T:
        """The leader's `value`, everywhere."""
        return value

    def gather(self, value: T) -> list[T]:
        """Every process's `value`, by rank, everywhere."""
        return [value]

    def agree(self, decision: bool) -> bool:
        """The leader's decision: whatever hangs on a clock must be decided by one."""
        return bool(self.share(decision))

    def leave(self) -> None:
        """Nothing to leave."""


class ProcessWorld(World):
    """The processes that torchrun started. Raises RuntimeError where they do not find each other.

    `leading`: this process has a console. Small talk runs over gloo in a group of its own, whatever trains.
    """

    def __init__(self, backend: str, leading: bool) -> None:
        import torch.distributed as dist

        dist.init_process_group(backend)
        self._talk = dist.new_group(backend="gloo", timeout=FOR_EVER)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        consoles = self.gather(leading)
        if not any(consoles):
            raise RuntimeError("no process of this job has a console: start it on one node by `gpuconsole run`")
        self.leader = consoles.index(True)

    def share(self, value: T) -> T:
        import torch.distributed as dist

        box: list[Any] = [value if self.leads else None]
        dist.broadcast_object_list(box, src=self.leader, group=self._talk)
        return box[0]

    def gather(self, value: T) -> list[T]:
        import torch.distributed as dist

        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=self._talk)
        return found

    def leave(self) -> None:
        import torch.distributed as dist

        dist.destroy_process_group()
