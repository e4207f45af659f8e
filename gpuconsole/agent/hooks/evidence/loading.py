"""Whether the processes that load data compute or wait, and what the starts of epochs cost.

Only /proc and the clocks are read. The probe of a loader of ours
(`workloads/training/probes/loader.py`) measures another thing: the rate of a second loader that
runs alone. A dataset of a user is never opened a second time.

Many programs make a new DataLoader in each epoch. So all that is kept belongs to the place in the
program that makes loaders, not to a loader.
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
"""Seconds between two batches whose CPU time is read in the training thread: two readings take 2 to
80 µs."""
WORKERS_EVERY_S = 0.25
"""Seconds between two readings of the loader's processes at least, apart from those of each
message: 5 µs for each process."""
MAX_PLACES = 512
"""Places that are told apart. The oldest is forgotten then: it may be one of a class of datasets
that the program no longer has."""
MAX_BATCHES_PER_EPOCH = 1.2
EPOCHS_SEEN = 4
"""Calls of `next` in an epoch, on average over so many epochs at least, below which the program
makes an iterator for each batch. A loop over a loader calls it once more than there are batches, so
an epoch of one batch has two."""
FRAMES = 2
"""Calls in the program that tell places apart: the call that makes the loader, and the call of the
function around it. One helper may make the loader of the training and the one of the evaluation."""


class LoaderPlace:
    """A place in the program that makes DataLoaders. `code`: the segment of its batches."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.batches = self.epochs = 0
        self.epoch_at = -1_000_000
        """The step in which its last epoch began."""
        self.renews = False
        """Whether the program makes an iterator for each batch, and the line is known."""
        self.opened: float | None = None
        """The seconds that the start of an epoch has taken so far, where it has no batch yet."""


class Loading:
    """Totals since the start. `here_*`: the training thread within sampled `next()` calls;
    `workers_*`: the loader's processes.

    `place`: the one with the most batches, because an evaluation has loaders of its own. The totals
    grow with its batches and epochs only.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """As in a process that has loaded nothing yet."""
        self.place: LoaderPlace | None = None
        self._places: dict[Any, LoaderPlace] = {}
        self._place_of = ByIdentity()
        self._count = 0
        self._restarts, self._restart_s, self._sampler_s = 0, 0.0, 0.0
        self._times: ThreadTimes | None = None
        self.due = self._workers_due = 0.0
        """When the next batch is sampled, and when the loader's processes are read."""
        self._of_steps = (0, 0)
        """The batches of the last two marked steps. The smaller number is that of a step: the last
        step of an epoch asks once more."""
        self._counted_at: tuple[LoaderPlace | None, int] = None, 0
        """The place whose batches they are, and its batches then."""
        self.began: tuple[float, float, float] | None = None
        self._here = [0.0, 0.0, 0.0]
        self._workers = [0.0, 0.0, 0.0]
        self._last: dict[int, tuple[float, float, float]] = {}
        self.batch: tuple[int, int] | None = None
        """Tensors and bytes of a batch from `place`; None before one was seen."""

    def close(self) -> None:
        """Give the file of the thread's times back."""
        if self._times is not None:
            self._times.close()

    # --- places -----------------------------------------------------------------------------------

    def made(self, loader: Any) -> None:
        """The program makes `loader`: called while its `__init__` runs."""
        calls, frame = list[tuple[str, int, int]](), program_frame(sys._getframe(1))
        while frame is not None and len(calls) < FRAMES:
            calls.append((frame.f_code.co_filename, frame.f_lineno, frame.f_lasti))
            frame = program_frame(frame.f_back)
        # a loop over two datasets may make both loaders by one call: they then differ in what they
        # load, and in which order. (Identities: a class that is held here holds its module's
        # globals, and what stands in them would outlive the program.)
        kind = (
            id(type(loader.dataset)),
            id(type(getattr(loader, "sampler", None))),
            loader.batch_size,
        )
        self._keep(loader, (*calls, *kind))

    def place_of(self, loader: Any) -> LoaderPlace:
        """The place that has made `loader`. A loader that was not seen while it was made has a
        place of its own."""
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
        """`iter(loader)` has taken so long."""
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
        """The training thread asks for a batch at `t`, which is `due` or later."""
        if self._times is None:
            self._times = ThreadTimes()
        self.began = (t, self._times.cpu_s(), self._times.runq_s())

    def batch_ends(self, place: LoaderPlace | None, begun: float) -> None:
        """The training thread has its batch, or the epoch is over. `place`: None where the loader
        is not known. `begun`: when it asked."""
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
        """A step has ended. Where the batches of a step that was only counted were not seen, it had
        as many as a marked one."""
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
        """The sampler has taken so long for the first indices of an epoch. It runs in the training
        process, whoever loads."""
        if place is self.place:
            self._sampler_s += seconds

    # --- what is sent -----------------------------------------------------------------------------

    def facts(self) -> dict[str, float]:
        """Return the number of tensors and the bytes of a batch; empty before a batch was seen."""
        return (
            {
                "loader.batch_tensors": float(self.batch[0]),
                "loader.batch_bytes": float(self.batch[1]),
            }
            if self.batch and self.batch[0]
            else {}
        )

    def read(self) -> dict[str, float]:
        """The counters; empty before the first batch of a DataLoader. Reads the loader's processes,
        which takes 5 µs each."""
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
"""Of a batch: parts that are looked at, which takes 2 ms, and containers within containers."""


@unseen
def size_of(batch: Any) -> tuple[int, int]:
    """The number of tensors in a batch, and their bytes; 0 for a batch of too many parts. No code
    of the program runs: other objects are known by what they hold."""
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
