"""Whether the processes that load data compute or wait, and what the starts of epochs cost. Only /proc and the clocks are read.

The probe of a loader of ours (`workloads/training/probes/loader.py`) measures another thing: the rate of a second loader that runs alone. A dataset of
a user is never opened a second time.
"""

from __future__ import annotations

import weakref
from typing import Any

from ...clock import ThreadTimes, now, process_cpu_s
from ..changes.loader import worker_pids
from ..watch import watch

SAMPLE_EVERY_S = 0.04
"""Seconds between two batches whose CPU time is read in the training thread: two readings take 2 to 80 µs."""


class Loading:
    """Totals since the start. `here_*`: the training thread within sampled `next()` calls; `workers_*`: the loader's processes.

    The totals are those of the loader with the most batches: an evaluation has a loader of its own.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """As in a process that has loaded nothing yet."""
        self.loader: weakref.ref[Any] | None = None
        self.count = 0
        """Batches of `loader`."""
        self._batches: dict[int, int] = {}
        """Batches of each loader; that of `loader` is out of date."""
        self._epochs: dict[int, tuple[int, float]] = {}
        """For each loader: epochs begun, and the seconds until each of them after the first had its first batch."""
        self.opened: dict[int, float] = {}
        """For each loader whose epoch has no batch yet: the seconds that its start has taken so far."""
        self._times: ThreadTimes | None = None
        self.due = 0.0
        """When the next batch is sampled."""
        self.began: tuple[float, float, float] | None = None
        self._here = [0.0, 0.0, 0.0]
        self._workers = [0.0, 0.0, 0.0]
        self._last: dict[int, tuple[float, float, float]] = {}
        self._last_read: dict[str, float] = {}

    def epoch_opened(self, loader: Any, seconds: float) -> None:
        """`iter(loader)` has taken so long."""
        key = id(loader)
        epochs, spent = self._epochs.get(key, (int(key in self._batches), 0.0))
        self._epochs[key] = epochs + 1, spent
        self.opened[key] = seconds

    def batch_begins(self, t: float) -> None:
        """The training thread asks for a batch at `t`, which is `due` or later."""
        if self._times is None:
            self._times = ThreadTimes()
        self.began = (t, *self._times.cpu_and_runq_s())

    def batch_ends(self, ref: weakref.ref[Any] | None, begun: float) -> None:
        """The training thread has its batch, or the epoch is over. `ref`: the loader, None where it is not known. `begun`: when it asked."""
        if ref is self.loader:
            self.count += 1
        elif not self._takes_over(ref):
            self._first_of_epoch(ref, begun)
            return
        if self.opened and self._first_of_epoch(ref, begun):
            return
        if self.began is not None and self._times is not None:
            t = now()
            self.due = t + SAMPLE_EVERY_S
            cpu, runq = self._times.cpu_and_runq_s()
            for i, gained in enumerate((t - self.began[0], cpu - self.began[1], runq - self.began[2])):
                self._here[i] += gained
            self.began = None

    def _takes_over(self, ref: weakref.ref[Any] | None) -> bool:
        """Whether another loader than the present one, which has a batch, has the most batches now. The totals then begin anew."""
        loader = ref() if ref is not None else None
        if ref is None or loader is None:  # the program has dropped it
            return False
        count = self._batches[id(loader)] = self._batches.get(id(loader), 0) + 1
        current = self.loader() if self.loader is not None else None
        if current is not None:
            self._batches[id(current)] = self.count
            if count <= self.count:
                return False
        self.loader, self.count = ref, count
        self._here, self._workers, self._last = [0.0, 0.0, 0.0], [0.0, 0.0, 0.0], {}
        return True

    def _first_of_epoch(self, ref: weakref.ref[Any] | None, begun: float) -> bool:
        """Whether this is the first batch of an epoch, which counts for the starts of epochs."""
        key = id(ref()) if ref is not None else 0
        opened = self.opened.pop(key, None)
        if opened is None:
            return False
        epochs, spent = self._epochs.get(key, (1, 0.0))
        if epochs > 1:
            self._epochs[key] = epochs, spent + opened + now() - begun
        return True

    def read(self) -> dict[str, float]:
        """The counters; empty before the first batch of a DataLoader, the last ones after the program has dropped its loader.

        Reads the loader's processes, which takes 5 µs each.
        """
        loader = self.loader() if self.loader is not None else None
        if loader is None:
            return self._last_read
        self._read_workers()
        epochs, restart_s = self._epochs.get(id(loader), (1, 0.0))
        counters = {"loader.restarts": float(max(0, epochs - 1)), "loader.restart_s": restart_s}
        for who, totals in (("here", self._here), ("workers", self._workers)):
            counters |= {f"loader.{who}_{name}": total for name, total in zip(("s", "cpu_s", "runq_s"), totals, strict=True)}
        self._last_read = counters
        return counters

    def _read_workers(self) -> None:
        t, present = now(), {}
        for pid in worker_pids(watch):
            try:
                present[pid] = (t, *process_cpu_s(pid))
            except (OSError, IndexError, ValueError):  # it has ended since
                continue
        for pid, reading in present.items():
            last = self._last.get(pid)
            if last is not None:
                for i in range(3):
                    self._workers[i] += reading[i] - last[i]
        self._last = present


loading = Loading()
