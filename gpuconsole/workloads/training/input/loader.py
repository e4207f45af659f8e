"""DataLoader streams: configured by knobs, endless, and without processes left after `close`."""

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
    """torch's own watchdog checks for a dead parent every 5 s; the kernel reacts at once."""
    die_with_parent()


class LoaderStream:
    """Batches of `dataset`, epoch after epoch. `finish` transforms each batch in this process. Not thread-safe.

    `restarts`: epochs begun after the first. `restart_s`: the sum of the seconds until each of them delivered its first batch.
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
        """Process ids of the loader's present workers; this process's id where it has none."""
        workers = getattr(self._batches, "_workers", None)  # private in torch 2.13
        return [worker.pid for worker in workers] if workers else [os.getpid()]

    def close(self) -> None:
        shutdown = getattr(self._batches, "_shutdown_workers", None)
        if shutdown is not None:
            shutdown()


@contextlib.contextmanager
def _without_advice() -> Iterator[None]:
    """Suppress torch's warning that num_workers exceeds the cores. The warning is right for transforms, wrong for slow storage."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def waits_for_messages() -> Iterator[list[float]]:
    """Yields a list that receives the seconds of each wait for a message from a loader opened in this block.

    The rest of the time in `next()` is unpacking. Unpacking may wait too: each tensor's memory comes as a separate descriptor, which the
    loading process must send.
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
    """A collate function that leaves the work to the training process: each tensor travels separately."""
    return samples


def settle_steps(knobs: Knobs) -> int:
    """Steps until an idle loader delivers at its own rate again: the steps must use up its full queue first."""
    workers = int(knobs.get("num_workers", 0))
    return workers * int(knobs.get("prefetch_factor", 0)) + 2 if workers else 1
