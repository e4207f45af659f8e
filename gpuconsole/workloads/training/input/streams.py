"""The open streams of a run: the present stream and the one before, so that a trial can switch between its two sides."""

from __future__ import annotations

from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.workloads.training.input.loader import LOADER_KNOBS
from gpuconsole.workloads.training.task import Stream, Task

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
        """Of all streams so far: epochs begun after the first, and the seconds until their first batches."""
        found = [(getattr(stream, "restarts", 0), getattr(stream, "restart_s", 0.0)) for stream in self._open.values()]
        return self._closed_restarts + sum(n for n, _ in found), self._closed_restart_s + sum(s for _, s in found)

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
