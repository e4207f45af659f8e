"""Where batches come from: DataLoader iterators."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

from ..clock import now
from ..forks import in_forked_children
from .borders.border import Border, NotedCall
from .changes.batch_sources import Origin, Spec, belongs_to
from .evidence.loading import LoaderPlace, loading, size_of
from .guard import switch
from .optimizer import step_ends
from .recorder import LOADER, LOADERS
from .watch import recorder, watch

SHORT_EPOCH = 16
"""Steps of an epoch that is short."""
MAX_KNOWN_ITERATORS = 64
"""Iterators after which those that are gone are forgotten."""


class KnownIterator(NamedTuple):
    """An iterator of the program, its DataLoader, and the place in the program that makes such
    loaders."""

    iterator: weakref.ref[Any]
    origin: Origin | None
    place: LoaderPlace


class Iterators:
    """The iterators of the program, by identity."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """As in a process that has loaded nothing yet."""
        self._known: dict[int, KnownIterator] = {}
        self._most = MAX_KNOWN_ITERATORS
        self.short_epochs = False
        """Whether the last epoch had few steps: then all steps are marked, and each call of an
        iterator is seen."""
        self._open: tuple[LoaderPlace, float] | None = None
        """Whose batch the training thread asks for, and since when."""
        self._opening: tuple[Any, float] | None = None
        """The loader whose epoch begins, and since when."""
        self._drawing: tuple[LoaderPlace, float] | None = None
        """Whose sampler is asked for its first indices, and since when."""

    def note(self, iterator: Any, loader: Any) -> KnownIterator:
        """Note whose iterator this is. `loader`: None where it was made before the agent began."""
        origin = None
        if loader is not None:
            origin = belongs_to(iterator, loader)
            watch.note_origin(loader, origin)
        if len(self._known) >= self._most:
            self._known = {
                key: known for key, known in self._known.items() if known.iterator() is not None
            }
            self._most = max(MAX_KNOWN_ITERATORS, 2 * len(self._known))
        known = KnownIterator(
            weakref.ref(iterator),
            origin,
            loading.place_of(loader if loader is not None else iterator),
        )
        self._known[id(iterator)] = known
        watch.add(watch.iterators, iterator)
        return known

    def of(self, iterator: Any) -> KnownIterator:
        """What is known of an iterator."""
        known = self._known.get(id(iterator))
        return (
            known
            if known is not None and known.iterator() is iterator
            else self.note(iterator, None)
        )

    def begin_batch(self, frame: FrameType) -> bool:
        """The program asks an iterator for a batch. A loader may ask another one."""
        if not recorder.thread or recorder.stack[-1] >= LOADER:
            return False
        known = self.of(frame.f_locals["self"])
        recorder.enter(known.place.code)
        begun = recorder.times[-1]
        watch.last_loader = known.origin
        self._open = known.place, begun
        if begun >= loading.due:
            loading.batch_begins(begun)
        return True

    def end_batch(self, failed: bool) -> None:
        """The program has its batch, or the epoch is over."""
        opened, self._open = self._open, None
        if not recorder.thread or opened is None:
            return
        place, begun = opened
        if place is loading.place and loading.began is None and place.opened is None:
            place.batches += 1  # the usual batch: there is nothing to find out
        else:
            loading.batch_ends(place, begun)
        recorder.leave()

    def begin_epoch(self, frame: FrameType) -> bool:
        """An epoch starts the loader's processes: this time counts as a wait for data."""
        if not recorder.thread or recorder.stack[-1] >= LOADER:
            return False
        loader = frame.f_locals["self"]
        recorder.mark_rest()  # an evaluation may follow
        see_draws(True)
        place = loading.place_of(loader)
        if place is loading.place:  # that of the training
            self.short_epochs = recorder.index - place.epoch_at < SHORT_EPOCH
            if self.short_epochs:
                recorder.every = 0
        place.epoch_at = recorder.index
        recorder.enter(place.code)
        self._opening = loader, recorder.times[-1]
        return True

    def end_epoch_start(self, failed: bool) -> None:
        opening, self._opening = self._opening, None
        if recorder.thread and opening is not None:
            loading.epoch_opened(opening[0], now() - opening[1])
            recorder.leave()

    def begin_draw(self, frame: FrameType) -> bool:
        """An iterator asks the sampler for the indices of its first batch: the sampler may sort all
        samples."""
        if not recorder.thread:
            return False
        opening = self._opening
        self._drawing = (
            loading.place_of(opening[0])
            if opening is not None
            else self.of(frame.f_locals["self"]).place,
            now(),
        )
        return True

    def end_draw(self, failed: bool) -> None:
        """The indices are there: those of later batches are not looked at."""
        drawing, self._drawing = self._drawing, None
        see_draws(False)
        if drawing is not None:
            loading.drawn(drawing[0], now() - drawing[1])

    def note_result(self, iterator: Any, batch: Any) -> bool:
        """Note the size of a batch of the training's loader: the cost of sending a batch follows
        from its size. Returns whether it is known now."""
        if (
            loading.batch is None
            and loading.place is not None
            and self.of(iterator).place is loading.place
        ):
            loading.batch = size_of(batch)
        return loading.batch is not None


iterators = Iterators()
in_forked_children(iterators.reset)
step_ends.append(loading.step_ended)
draws: list[Callable[[bool], None]] = []
"""Makes calls of the border DRAW seen, or not."""


def see_draws(seen: bool) -> None:
    """Whether the calls of the border DRAW are seen from now on."""
    for see in draws:
        see(seen)


def loader_made(frame: FrameType, result: Any) -> None:
    """The program has made a DataLoader."""
    loader = frame.f_locals["self"]
    watch.note_made("loader", loader)
    loading.made(loader)


def iterator_made(frame: FrameType, result: Any) -> None:
    """The program has made an iterator of a DataLoader."""
    names = frame.f_locals
    if not issubclass(type(names["loader"]), Spec):  # an iterator of ours, for a change
        iterators.note(names["self"], names["loader"])


switch.undo_part["data"] = lambda: recorder.drop(range(LOADER, LOADER + LOADERS))

MODULE = "torch.utils.data.dataloader"
NEXT = Border(
    MODULE,
    "_BaseDataLoaderIter.__next__",
    iterators.begin_batch,
    iterators.end_batch,
    "data",
    hot=True,
    records=True,
)
DRAW = Border(
    MODULE, "_BaseDataLoaderIter._next_index", iterators.begin_draw, iterators.end_draw, "data"
)
"""Seen from the start of an epoch to its first indices only."""
BORDERS = (
    NEXT,
    DRAW,
    Border(MODULE, "DataLoader.__iter__", iterators.begin_epoch, iterators.end_epoch_start, "data"),
    NotedCall(MODULE, "DataLoader.__init__", loader_made, "data"),
    NotedCall(MODULE, "_BaseDataLoaderIter.__init__", iterator_made, "data"),
)
