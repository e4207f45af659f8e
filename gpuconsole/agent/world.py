"""The processes that train together. One process leads: it serves the console, and the others do
the same as the leader."""

from __future__ import annotations

import datetime
import io
import json
import os
import pickle
import time
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from .protocol import PlainError

T = TypeVar("T")

STORE = "GPUCONSOLE_STORE"
"""The variable with the path of the file by which the processes of one machine find each other. The
folder of the file is private."""

FOR_EVER = datetime.timedelta(days=30)
"""The time limit of broadcasts: a paused run waits in one."""
OUTCOME_S = 30.0
"""How long a process whose action failed waits for the outcome of the others."""
MEET_S = 180.0
"""How long processes wait for each other at the start. Importing torch takes 3 s, and much longer
on a busy machine or over a network."""
ASK_EVERY_S = 0.005


class Torn(PlainError):
    """An action failed in some processes only: they no longer make the same calls, and the run
    cannot continue."""


class World:
    """A process without others. All processes of a world must make the collective calls, in the
    same order."""

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
        """Collective: the leader's decision. What depends on a clock must be decided by one
        process."""
        return bool(self.share(decision))

    def outcome(self, error: str | None) -> str | None:
        """Collective: the outcome of an action of all processes, None or what went wrong. Raises
        Torn where only some processes failed."""
        return error

    def leave(self) -> None:
        """End the world."""


def _packed(value: object) -> Any:
    import torch

    return torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)


class PlainUnpickler(pickle.Unpickler):
    """Reads values of Python's own types, and of the classes `plain`. Raises UnpicklingError for
    all others.

    Another user of the machine may reach the port at which a process waits for the others (gloo has
    no password), and a pickle can call any function: see "Restricting Globals" in the documentation
    of pickle.
    """

    def __init__(self, data: bytes, plain: Mapping[tuple[str, str], type]) -> None:
        super().__init__(io.BytesIO(data))
        self._plain = plain

    def find_class(self, module: str, name: str) -> type:
        if (module, name) not in self._plain:
            raise pickle.UnpicklingError(f"{module}.{name} is no value that the processes exchange")
        return self._plain[module, name]


class ProcessWorld(World):
    """The processes that train together. Raises RuntimeError or TimeoutError where they do not find
    each other.

    Their ranks are in the environment, as torchrun sets it. They find each other by the file
    `$GPUCONSOLE_STORE`, or by torchrun's store where that variable is not set. Collective calls run
    over gloo in a separate group, whatever backend trains.
    """

    def __init__(self, backend: str, leading: bool, plain: Collection[type] = ()) -> None:
        """`leading`: this process has a console. `plain`: the classes of values that the processes
        exchange, in addition to Python's own."""
        import torch.distributed as dist
        from torch.distributed.distributed_c10d import PrefixStore
        from torch.distributed.rendezvous import rendezvous

        self._plain = {(kind.__module__, kind.__qualname__): kind for kind in plain}
        if path := os.environ.get(STORE):
            rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            self._store = dist.FileStore(path, size)  # type: ignore[attr-defined]  # public, and missing from torch's stubs
        else:
            self._store, rank, size = next(rendezvous("env://"))
        self._meet(rank, size)
        self._calls = self._outcomes = 0
        dist.init_process_group(
            backend, store=PrefixStore("processes", self._store), rank=rank, world_size=size
        )
        self._talk = dist.new_group(backend="gloo", timeout=FOR_EVER)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        consoles = self.gather(leading)
        if not any(consoles):
            raise RuntimeError(
                "no process of this job has a console: start it on one node by `gpuconsole run`"
            )
        self.leader = consoles.index(True)

    def _meet(self, rank: int, size: int) -> None:
        """Wait for all processes. A process group would wait for half an hour, and its error would
        not name the missing processes."""
        self._store.set(f"here/{rank}", "")
        deadline, missing = time.monotonic() + MEET_S, list(range(size))
        while missing := [rank for rank in missing if not self._store.check([f"here/{rank}"])]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no rank {', '.join(map(str, missing))} within {MEET_S:.0f} s")
            time.sleep(10 * ASK_EVERY_S)

    def share(self, value: T) -> T:
        import torch
        import torch.distributed as dist

        self._calls += 1
        sent = _packed(value) if self.leads else torch.empty(0, dtype=torch.uint8)
        length = torch.tensor([len(sent)])
        dist.broadcast(length, self.leader, group=self._talk)
        received = sent if self.leads else torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(received, self.leader, group=self._talk)
        shared: T = value if self.leads else self._unpacked(received)
        return shared

    def gather(self, value: T) -> list[T]:
        import torch
        import torch.distributed as dist

        self._calls += 1
        sent = _packed(value)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([len(sent)]), group=self._talk)
        longest = int(max(lengths))
        pieces = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(
            pieces, torch.nn.functional.pad(sent, (0, longest - len(sent))), group=self._talk
        )
        return [
            self._unpacked(piece[: int(length)])
            for piece, length in zip(pieces, lengths, strict=True)
        ]

    def _unpacked(self, packed: Any) -> Any:
        return PlainUnpickler(packed.numpy().tobytes(), self._plain).load()

    def outcome(self, error: str | None) -> str | None:
        """Exchanged through the store, which blocks no process: a process that failed may have left
        the others in the middle of a call."""
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
