"""The input of a training loop: DataLoader streams configured by knobs, copies to the device, room
in /dev/shm, and the two sides of a trial.

Streams are endless, and leave no process after `close`.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from gpuconsole.agent import step_breakdown as phase
from gpuconsole.agent.clock import now
from gpuconsole.model.knobs.catalogue import CATALOGUE, Knobs
from gpuconsole.wire.channel import die_with_parent
from gpuconsole.workloads.training.task import Batch, Stream, Task

# --- DataLoader streams ---------------------------------------------------------------------------

LOADER_KNOBS = tuple(name for name, knob in CATALOGUE.items() if knob.loader)


def _loader_worker_started(worker_id: int) -> None:
    """torch's own watchdog checks for a dead parent every 5 s; the kernel reacts at once."""
    die_with_parent()


class LoaderStream:
    """Batches of `dataset`, epoch after epoch. `finish` transforms each batch in this process. Not
    thread-safe.

    `restarts`: epochs begun after the first. `restart_s`: the sum of the seconds until each of them
    delivered its first batch.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        knobs: Knobs,
        seed: int,
        finish: Callable[[tuple[Any, ...]], Batch] = tuple,
    ) -> None:
        workers = int(knobs["num_workers"])
        parallel: dict[str, Any] = {}
        if workers:
            parallel = {
                "prefetch_factor": int(knobs["prefetch_factor"]),
                "persistent_workers": bool(knobs["persistent_workers"]),
            }
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
    """Suppress torch's warning that num_workers exceeds the cores. The warning is right for
    transforms, wrong for slow storage."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def waits_for_messages() -> Iterator[list[float]]:
    """Yields a list that receives the seconds of each wait for a message from a loader opened in
    this block.

    The rest of the time in `next()` is unpacking. Unpacking may wait too: each tensor's memory
    comes as a separate descriptor, which the loading process must send.
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
    """A collate function that leaves the work to the training process: each tensor travels
    separately."""
    return samples


def settle_steps(knobs: Knobs) -> int:
    """Steps until an idle loader delivers at its own rate again: the steps must use up its full
    queue first."""
    workers = int(knobs.get("num_workers", 0))
    return workers * int(knobs.get("prefetch_factor", 0)) + 2 if workers else 1


# --- copies of batches from the host to the device ------------------------------------------------


class Copier:
    """`take()` returns the batch to train on. `fetch_ahead()` starts with the next batch, once the
    work on the present batch is issued.

    With `h2d_stream` the host waits for the next batch and copies it while the device computes. On
    a CPU nothing is copied.
    """

    def __init__(self, device: torch.device, knobs: Knobs) -> None:
        self._device = device
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._ahead: Batch | None = None
        self.knobs = knobs

    def take(self, stream: Stream, mark: Callable[[int], None]) -> Batch:
        """The next batch, on the device. Its time is marked as `data_wait` and `h2d`."""
        if self._ahead is None or self._side is None:
            host_batch = stream.next()
            mark(phase.DATA_WAIT)
            batch = self.to_device(host_batch)
            if batch is not host_batch:  # on a CPU there is no copy
                mark(phase.H2D)
        else:
            batch, self._ahead = self._ahead, None
            present = torch.cuda.current_stream(self._device)
            present.wait_stream(self._side)
            for tensor in batch:
                # otherwise the allocator could give the memory to the side stream while this stream
                # reads it
                tensor.record_stream(present)
            mark(phase.H2D)
        return batch

    def fetch_ahead(self, stream: Stream, mark: Callable[[int], None]) -> None:
        if self._side is None or not self.knobs["h2d_stream"]:
            return
        host_batch = stream.next()
        mark(phase.DATA_WAIT)
        with torch.cuda.stream(self._side):
            self._ahead = self.to_device(host_batch)
        mark(phase.H2D)

    def forget(self) -> None:
        """Drop the batch that was fetched ahead, because its knobs are no longer in force."""
        self._ahead = None

    def to_device(self, batch: Batch) -> Batch:
        channels_last = bool(self.knobs.get("channels_last"))
        if self._device.type == "cpu" and not channels_last:
            return batch
        wait = not self.knobs["non_blocking"]
        return tuple(
            tensor.to(self._device, non_blocking=not wait, memory_format=torch.channels_last)
            if channels_last and tensor.dim() == 4
            else tensor.to(self._device, non_blocking=not wait)
            for tensor in batch
        )


# --- the open streams of a run --------------------------------------------------------------------

STREAM_KNOBS = ("batch_size", "seq_len", "varied_lengths", "pad_to_multiple_of", *LOADER_KNOBS)
KEPT = 2


class Streams:
    """Opens streams, keeps the last KEPT of them open, and counts their epochs."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._open: dict[tuple[object, ...], Stream] = {}
        self._closed_restarts, self._closed_restart_s = 0, 0.0

    def open(self, knobs: Knobs) -> Stream:
        """The stream for `knobs`; where it is still open, it continues where it stopped."""
        key = tuple(knobs.get(name) for name in STREAM_KNOBS)
        stream = self._open.pop(key, None) or self._task.open_stream(knobs)
        self._open[key] = stream
        while len(self._open) > KEPT:
            self._close(next(iter(self._open)))
        return stream

    def restarts(self) -> tuple[int, float]:
        """Of all streams so far: epochs begun after the first, and the seconds until their first
        batches."""
        epochs = [
            (getattr(stream, "restarts", 0), getattr(stream, "restart_s", 0.0))
            for stream in self._open.values()
        ]
        return self._closed_restarts + sum(n for n, _ in epochs), self._closed_restart_s + sum(
            s for _, s in epochs
        )

    def close_others(self, stream: Stream) -> None:
        """Close the streams that a finished trial kept open."""
        for key in [key for key, value in self._open.items() if value is not stream]:
            self._close(key)

    def _close(self, key: tuple[object, ...]) -> None:
        stream = self._open.pop(key)
        self._closed_restarts += getattr(stream, "restarts", 0)
        self._closed_restart_s += getattr(stream, "restart_s", 0.0)
        stream.close()

    def close(self) -> None:
        for stream in self._open.values():
            stream.close()


# --- room in /dev/shm for the batches of DataLoader workers ---------------------------------------

FOLDER = "/dev/shm"
MB = 2**20


def check_room(knobs: Knobs, sample_bytes: float) -> None:
    """Raise ValueError with one line if the prefetched batches do not fit into shared memory.

    `sample_bytes`: of one collated sample. Each worker keeps `prefetch_factor` batches ready, and
    the training process holds one more.
    """
    workers = int(knobs["num_workers"])
    room = total_bytes()
    if not workers or room is None:
        return
    batches = workers * int(knobs["prefetch_factor"]) + 1
    needed = batches * int(knobs["batch_size"]) * sample_bytes
    if needed > room:
        raise ValueError(
            f"{FOLDER} has {room / MB:.0f} MB, and {workers} DataLoader workers keep {batches}"
            f" batches in it, {needed / MB:.0f} MB: give the container more (docker run"
            " --shm-size=8g, or --ipc=host), or lower num_workers, prefetch_factor or batch_size"
        )


def total_bytes() -> int | None:
    """The size of /dev/shm; None where this system has none. What other programs hold there is not
    subtracted: it changes."""
    try:
        filesystem = os.statvfs(FOLDER)
    except OSError:
        return None
    return filesystem.f_blocks * filesystem.f_frsize
