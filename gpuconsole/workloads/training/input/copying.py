"""Copies of batches from the host to the device: within the step, or one batch ahead on a separate CUDA stream."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gpuconsole.agent import account as phase
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.workloads.training.task import Batch, Stream


class Copier:
    """`take()` returns the batch to train on. `fetch_ahead()` starts with the next batch, once the work on the present batch is issued.

    With `h2d_stream` the host waits for the next batch and copies it while the device computes. On a CPU nothing is copied.
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
                tensor.record_stream(present)  # otherwise the allocator could give the memory to the side stream while this stream reads it
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
