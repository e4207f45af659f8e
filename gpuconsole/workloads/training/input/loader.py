"""DataLoader streams: made as the knobs say, endless, and closed without leaving processes behind."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from gpuconsole.agent.clock import now
from gpuconsole.model.knobs.catalogue import CATALOGUE, Knobs
from gpuconsole.wire.channel import die_with_parent
from gpuconsole.workloads.training.task import Batch

LOADER_KNOBS = tuple(name for name, knob in CATALOGUE.items() if knob.loader)


def _loader_worker_started(worker_id: int) -> None:
    """torch's own watchdog looks for a dead parent every 5 s; the kernel does it at once."""
    die_with_parent()


class LoaderStream:
    """Batches of `dataset`, epoch after epoch, each as `finish` makes it in this process. Not thread-safe.

    `restarts` and `restart_s` count the epochs that began after the first, and the seconds until each had its first batch.
    """

    def __init__(self, dataset: Dataset[Any], knobs: Knobs, seed: int, finish: Callable[[tuple[Any, ...]], Batch] = tuple) -> None:
        workers = int(knobs["num_workers"])
        parallel: dict[str, Any] = {}
        if workers:
            parallel = {"prefetch_factor": int(knobs["prefetch_factor"]), "persistent_workers": bool(knobs["persistent_workers"])}
        with _without_advice():
            self._loader: DataLoader[Any] = DataLoader(
                dataset,
                batch_size=int(knobs["batch_size"]),
                shuffle=True,
                drop_last=True,
                num_workers=workers,
                in_order=bool(knobs["in_order"]),
                pin_memory=bool(knobs["pin_memory"]) and torch.cuda.is_available(),
                generator=torch.Generator().manual_seed(seed),
                worker_init_fn=_loader_worker_started,
                collate_fn=as_they_are if knobs["collate_fn"] == "list" else None,
                **parallel,
            )
        self.restarts, self.restart_s = 0, 0.0
        self._finish = finish
        self._stacks_here = knobs["collate_fn"] == "list"
        self._batches = self._epoch()

    def next(self) -> Batch:
        try:
            batch = next(self._batches)
        except StopIteration:
            batch = self._next_epoch()
        return self._finish(default_collate(batch) if self._stacks_here else batch)

    def _next_epoch(self) -> Any:
        start = now()
        self._batches = self._epoch()
        batch = next(self._batches)
        self.restarts += 1
        self.restart_s += now() - start
        return batch

    def _epoch(self) -> Iterator[Any]:
        with _without_advice():
            return iter(self._loader)

    def worker_pids(self) -> list[int]:
        """Process ids of the loader's workers; this process's own where it has none."""
        workers = getattr(self._batches, "_workers", None)  # no public way to them (torch 2.13)
        return [worker.pid for worker in workers] if workers else [os.getpid()]

    def close(self) -> None:
        shutdown = getattr(self._batches, "_shutdown_workers", None)
        if shutdown is not None:
            shutdown()


@contextlib.contextmanager
def _without_advice() -> Iterator[None]:
    """torch warns when num_workers exceeds the cores: right for transforms, wrong for slow storage."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def waits_for_messages() -> Iterator[list[float]]:
    """The seconds of each wait for a message from the processes of a loader that is opened within the block.

    What remains of the time in `next()` goes into unpacking, also where that in its turn waits: a tensor's memory is asked for by a descriptor
    of its own, which the process that loads must send.
    """
    poll, waits = Connection.poll, []

    def timed(connection: Connection, timeout: float | None = 0.0) -> bool:
        start = now()
        try:
            return poll(connection, timeout)
        finally:
            waits.append(now() - start)

    Connection.poll = timed  # type: ignore[assignment, method-assign]
    try:
        yield waits
    finally:
        Connection.poll = poll  # type: ignore[method-assign]


def as_they_are(samples: list[Any]) -> list[Any]:
    """A collate function that leaves the work to the training process: every tensor travels there by itself."""
    return samples


def settle_steps(knobs: Knobs) -> int:
    """Steps until a loader's rate is its own again after it stood idle: its full queue must be eaten first."""
    workers = int(knobs.get("num_workers", 0))
    return workers * int(knobs.get("prefetch_factor", 0)) + 2 if workers else 1
