"""The processes that train together. One process leads: it serves the console, and the others do the same as the leader."""

from __future__ import annotations

import datetime
import json
import os
import time
from typing import Any, TypeVar

T = TypeVar("T")

FOR_EVER = datetime.timedelta(days=30)
"""The time limit of broadcasts: a paused run waits in one."""
OUTCOME_S = 30.0
"""How long a process whose action failed waits for the outcome of the others."""
MEET_S = 180.0
"""How long processes wait for each other at the start. Importing torch takes 3 s, and much longer on a busy machine or over a network."""
ASK_EVERY_S = 0.005


class PlainError(RuntimeError):
    """An error whose message alone is shown to the user, without the name of its class."""


class Torn(PlainError):
    """An action failed in some processes only: they no longer make the same calls, and the run cannot continue."""


class World:
    """A process without others. All processes of a world must make the collective calls, in the same order."""

    rank = 0
    size = 1
    leader = 0
    local_rank = 0

    @property
    def leads(self) -> bool:
        """Whether this process serves the console."""
        return self.rank == self.leader

    def share(self, value: T) -> T:
        """Collective: the leader's `value`."""
        return value

    def gather(self, value: T) -> list[T]:
        """Collective: the `value` of every process, by rank."""
        return [value]

    def agree(self, decision: bool) -> bool:
        """Collective: the leader's decision. What depends on a clock must be decided by one process."""
        return bool(self.share(decision))

    def outcome(self, error: str | None) -> str | None:
        """Collective: the outcome of an action of all processes, None or what went wrong. Raises Torn where only some processes failed."""
        return error

    def leave(self) -> None:
        """End the world."""


class ProcessWorld(World):
    """The processes that torchrun started. Raises RuntimeError or TimeoutError where they do not find each other.

    `leading`: this process has a console. Collective calls run over gloo in a separate group, whatever backend trains.
    """

    def __init__(self, backend: str, leading: bool) -> None:
        import torch.distributed as dist
        from torch.distributed.distributed_c10d import PrefixStore
        from torch.distributed.rendezvous import rendezvous

        self._store, rank, size = next(rendezvous("env://"))
        self._meet(rank, size)
        self._calls = self._outcomes = 0
        dist.init_process_group(backend, store=PrefixStore("processes", self._store), rank=rank, world_size=size)
        self._talk = dist.new_group(backend="gloo", timeout=FOR_EVER)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        consoles = self.gather(leading)
        if not any(consoles):
            raise RuntimeError("no process of this job has a console: start it on one node by `gpuconsole run`")
        self.leader = consoles.index(True)

    def _meet(self, rank: int, size: int) -> None:
        """Wait for all processes. A process group would wait for half an hour, and its error would not name the missing processes."""
        self._store.set(f"here/{rank}", "")
        deadline, missing = time.monotonic() + MEET_S, list(range(size))
        while missing := [rank for rank in missing if not self._store.check([f"here/{rank}"])]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no rank {', '.join(map(str, missing))} within {MEET_S:.0f} s")
            time.sleep(10 * ASK_EVERY_S)

    def share(self, value: T) -> T:
        import torch.distributed as dist

        self._calls += 1
        box: list[Any] = [value if self.leads else None]
        dist.broadcast_object_list(box, src=self.leader, group=self._talk)
        return box[0]

    def gather(self, value: T) -> list[T]:
        import torch.distributed as dist

        self._calls += 1
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=self._talk)
        return found

    def outcome(self, error: str | None) -> str | None:
        """Exchanged through the store, which blocks no process: a process that failed may have left the others in the middle of a call."""
        self._outcomes += 1
        keys = [f"outcome/{self._outcomes}/{rank}" for rank in range(self.size)]
        self._store.set(keys[self.rank], json.dumps([self._calls, error]))
        deadline = time.monotonic() + OUTCOME_S
        while not self._store.check(keys):
            if error is not None and time.monotonic() > deadline:
                raise Torn(f"{error} (in this process alone)")
            time.sleep(ASK_EVERY_S)
        said: list[tuple[int, str | None]] = [json.loads(self._store.get(key)) for key in keys]
        failed = {rank: problem for rank, (_, problem) in enumerate(said) if problem is not None}
        if failed and (len(failed) < self.size or len({calls for calls, _ in said}) > 1):
            raise Torn("; ".join(f"rank {rank}: {problem}" for rank, problem in failed.items()))
        return failed.get(self.leader)

    def leave(self) -> None:
        import torch.distributed as dist

        dist.destroy_process_group()
