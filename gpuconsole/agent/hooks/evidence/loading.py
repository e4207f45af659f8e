"""Measure whether the worker processes of a DataLoader compute or wait, and the time that the
starts of epochs take.

This file reads only /proc and the clocks. It never opens a user's dataset a second time. (The probe
of the built-in training, `workloads/training/probes/loader.py`, measures the rate of a second
loader that runs alone.)

Many programs make a new DataLoader in each epoch. So the totals belong to the place in the program
that makes loaders, not to one loader.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

from ...clock import ThreadTimes, now, process_cpu_s
from ...forks import in_forked_children
from ..changes.loader import worker_pids
from ..guard import unseen
from ..identity import ByIdentity
from ..recorder import LOADER, LOADERS
from ..watch import program_frame, watch, within

SAMPLE_EVERY_S = 0.04
"""Least seconds between two batches for which the training thread reads its CPU time. The two
readings of a batch take 2 to 80 µs."""
WORKERS_EVERY_S = 0.25
"""Least seconds between two readings of the loader's processes. Each message to the console makes
one more reading. A reading takes 5 µs for each process."""
MAX_PLACES = 512
"""The largest number of places. One more place replaces the oldest place, whose class of datasets
the program may no longer have."""
MAX_BATCHES_PER_EPOCH = 1.2
EPOCHS_SEEN = 4
"""If an epoch has at most MAX_BATCHES_PER_EPOCH calls of `next` on average, over at least
EPOCHS_SEEN epochs, the program makes an iterator for each batch. A loop over a loader calls `next`
once more than there are batches: an epoch of one batch has two calls."""
FRAMES = 2
"""Number of calls in the program that identify a place: the call that makes the loader, and the
call of the function around it. One helper may make both the training loader and the evaluation
loader."""


class LoaderPlace:
    """A place in the program that makes DataLoaders. `code`: the segment of the batches of this
    place."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.batches = self.epochs = 0
        self.epoch_at = -1_000_000
        """The step in which the last epoch of this place began."""
        self.renews = False
        """Whether the program makes an iterator for each batch, and the line is known."""
        self.opened: float | None = None
        """The seconds that the start of the epoch has taken so far. None if no epoch waits for its
        first batch."""


class Loading:
    """Totals since the start. `here_*`: times of the training thread in the sampled calls of
    `next()`. `workers_*`: times of the loader's processes.

    `place`: the place with the most batches. The totals count only batches and epochs of this
    place, because an evaluation has its own loaders.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Set all totals to those of a process that has loaded nothing yet."""
        self.place: LoaderPlace | None = None
        self._places: dict[Any, LoaderPlace] = {}
        self._place_of = ByIdentity()
        self._count = 0
        self._restarts, self._restart_s, self._sampler_s = 0, 0.0, 0.0
        self._times: ThreadTimes | None = None
        self.due = self._workers_due = 0.0
        """The times of the next sampled batch, and of the next reading of the loader's
        processes."""
        self._of_steps = (0, 0)
        """The numbers of batches in the last two marked steps. The smaller number is right: the
        last step of an epoch calls `next` once more."""
        self._counted_at: tuple[LoaderPlace | None, int] = None, 0
        """The place at the end of the last step, and its number of batches at that time."""
        self.began: tuple[float, float, float] | None = None
        self._here = [0.0, 0.0, 0.0]
        self._workers = [0.0, 0.0, 0.0]
        self._last: dict[int, tuple[float, float, float]] = {}
        self.batch: tuple[int, int] | None = None
        """Number of tensors and bytes of a batch from `place`; None before the first such batch."""

    def close(self) -> None:
        """Close the file of the thread's times."""
        if self._times is not None:
            self._times.close()

    # --- places -----------------------------------------------------------------------------------

    def made(self, loader: Any) -> None:
        """Note the place in the program that makes `loader`. Called while `loader.__init__`
        runs."""
        calls, frame = list[tuple[str, int, int]](), program_frame(sys._getframe(1))
        while frame is not None and len(calls) < FRAMES:
            calls.append((frame.f_code.co_filename, frame.f_lineno, frame.f_lasti))
            frame = program_frame(frame.f_back)
        # A loop over two datasets may make two loaders by one call: their datasets, samplers or
        # batch sizes then differ. The key holds the id of a class, not the class: a reference to
        # the class would keep the globals of its module alive until after the exit of the program.
        kind = (
            id(type(loader.dataset)),
            id(type(getattr(loader, "sampler", None))),
            loader.batch_size,
        )
        self._keep(loader, (*calls, *kind))

    def place_of(self, loader: Any) -> LoaderPlace:
        """Return the place that has made `loader`. If the agent did not see the creation of the
        loader, the loader gets its own place."""
        place = self._place_of.get(loader)
        return place if place is not None else self._keep(loader, None)

    def _keep(self, loader: Any, key: Any) -> LoaderPlace:
        place = self._places.get(key) if key is not None else None
        if place is None:
            place = LoaderPlace(LOADER + self._count % LOADERS)
            self._count += 1
            if key is not None:
                if len(self._places) >= MAX_PLACES:
                    del self._places[next(iter(self._places))]
                self._places[key] = place
        if loader is not None:
            try:
                self._place_of.put(loader, place)
            except TypeError:  # a class without weak references
                return self._keep(None, id(type(loader)))
        return place

    # --- batches and epochs -----------------------------------------------------------------------

    def epoch_opened(self, loader: Any, seconds: float) -> None:
        """Count a new epoch of `loader`. `seconds`: the duration of `iter(loader)`."""
        place = self.place_of(loader)
        place.epochs = max(place.epochs, int(place.batches > 0)) + 1
        place.opened = seconds
        if (
            not place.renews
            and place.epochs > EPOCHS_SEEN
            and place.batches <= MAX_BATCHES_PER_EPOCH * (place.epochs - 1)
        ):
            place.renews = True
            watch.note_made("iterator", loader)
        if place is self.place:
            self._read_workers(now())

    def batch_begins(self, t: float) -> None:
        """Start the sample of a batch: the training thread asks for the batch at `t`, which is
        `due` or later."""
        if self._times is None:
            self._times = ThreadTimes()
        self.began = (t, self._times.cpu_s(), self._times.runq_s())

    def batch_ends(self, place: LoaderPlace | None, begun: float) -> None:
        """Count a batch that the training thread has received, or the end of an epoch. `place`:
        None if the loader is not known. `begun`: the time at which the thread asked for the
        batch."""
        if place is None:
            return
        place.batches += 1
        if place is not self.place and (self.place is None or place.batches > self.place.batches):
            self.place, self.batch = place, None
        opened, place.opened = place.opened, None
        if place is not self.place:
            return
        t = now()
        if opened is not None and place.epochs > 1:
            self._restarts += 1
            self._restart_s += opened + t - begun
        if opened is not None and self._last:
            return  # the loader's processes have just started
        if self.began is not None and self._times is not None:
            self.due = t + SAMPLE_EVERY_S
            # /proc counts the time on a core only at the ticks of the scheduler
            now_here = (t, self._times.cpu_s(), self._times.runq_s())
            for i in range(3):
                self._here[i] += now_here[i] - self.began[i]
            self.began = None
            if t >= self._workers_due:
                self._read_workers(t)

    def step_ended(self, marked: bool) -> None:
        """Count the batches of a step that has ended. If the agent saw no batch of an unmarked
        step, the step counts with as many batches as a marked step."""
        place = self.place
        if place is None:
            return
        before_of, before = self._counted_at
        seen = place.batches - before if place is before_of else 0
        if marked and place is before_of:
            self._of_steps = self._of_steps[1], seen
        elif not marked and not seen:
            place.batches += min(self._of_steps)
        self._counted_at = place, place.batches

    def drawn(self, place: LoaderPlace, seconds: float) -> None:
        """Add the seconds that the sampler took for the first indices of an epoch. The sampler
        always runs in the training process, also if worker processes load the data."""
        if place is self.place:
            self._sampler_s += seconds

    # --- what is sent -----------------------------------------------------------------------------

    def facts(self) -> dict[str, float]:
        """Return the number of tensors and the bytes of a batch; empty before the first batch."""
        return (
            {
                "loader.batch_tensors": float(self.batch[0]),
                "loader.batch_bytes": float(self.batch[1]),
            }
            if self.batch and self.batch[0]
            else {}
        )

    def read(self) -> dict[str, float]:
        """Return the counters; empty before the first batch of a DataLoader. Reads the loader's
        processes: 5 µs for each process."""
        if self.place is None:
            return {}
        self._read_workers(now())
        counters = {
            "loader.batches": float(self.place.batches),
            "loader.restarts": float(self._restarts),
            "loader.restart_s": self._restart_s,
            "loader.sampler_s": self._sampler_s,
        }
        for who, totals in (("here", self._here), ("workers", self._workers)):
            counters |= {
                f"loader.{who}_{name}": total
                for name, total in zip(("s", "cpu_s", "runq_s"), totals, strict=True)
            }
        return counters

    def _read_workers(self, t: float) -> None:
        self._workers_due, present = t + WORKERS_EVERY_S, {}
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


MAX_PARTS = 4096
DEPTH = 3
"""Limits for one batch. MAX_PARTS: objects that `size_of` reads (this takes 2 ms). DEPTH: levels of
nested containers."""


@unseen
def size_of(batch: Any) -> tuple[int, int]:
    """Return the number of tensors in a batch, and their bytes; 0 and 0 for a batch with too many
    objects. Runs no code of the program: `within` reads the contents of objects."""
    torch, tensors, size = sys.modules["torch"], 0, 0
    parts, seen = [(batch, DEPTH)], 0
    while parts:
        part, depth = parts.pop()
        seen += 1
        if type(part) is torch.Tensor:
            tensors, size = tensors + 1, size + part.numel() * part.element_size()
        elif depth:
            parts += [(inner, depth - 1) for inner in itertools.islice(within(part), MAX_PARTS)]
        if seen + len(parts) > MAX_PARTS:
            return 0, 0
    return tensors, size


loading = Loading()
in_forked_children(loading.reset)
