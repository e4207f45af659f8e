"""Where batches come from: DataLoader iterators."""

from __future__ import annotations

import functools
import sys
import weakref
from typing import Any

from ..clock import now
from .changes.loader import is_served
from .changes.servers import belongs_to
from .evidence.loading import Place, loading, size_of
from .evidence.steps import iterations
from .guard import alike, entry, hot_entry, put, switch, wrappers_without_level
from .recorder import LOADER, LOADERS, UNMARKED, get_ident
from .watch import recorder, watch

# --- DataLoader ---------------------------------------------------------------------------------------------


@wrappers_without_level
def on_dataloader(module: Any) -> None:
    """`_BaseDataLoaderIter.__next__`. The class is private: tests pin it for each torch version."""
    base = module._BaseDataLoaderIter
    plain, plain_init = base.__next__, base.__init__
    loader_init, plain_iter = module.DataLoader.__init__, module.DataLoader.__iter__

    def __init__(self: Any, loader: Any) -> None:
        plain_init(self, loader)
        note_iterator(self, loader)

    def __next__(self: Any) -> Any:
        if recorder.light and begin_usual_batch(self.__dict__.get("_gpuconsole_place")):
            try:
                return plain(self)
            finally:
                try:  # here and not in a function of its own: see `hot_entry`
                    recorder.leave()
                except Exception as problem:
                    if switch.part_off("data.end_usual", problem):
                        raise
        begun = begin_batch(self) if recorder.thread else None
        try:
            batch = plain(self)
            if begun is not None:
                note_batch(self, batch)
            return batch
        finally:
            if begun is not None:
                end_batch(self, begun)

    def __iter__(self: Any) -> Any:
        begun = begin_epoch(self) if recorder.thread else None
        try:
            return plain_iter(self)
        finally:
            if begun is not None:
                end_epoch_start(self, begun)

    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        loader_init(self, *args, **kwargs)
        note_loader(self)

    put(base, "__init__", alike(__init__, plain_init))
    put(base, "__next__", functools.update_wrapper(__next__, plain))
    put(module.DataLoader, "__init__", alike(made, loader_init))
    put(module.DataLoader, "__iter__", alike(__iter__, plain_iter))


@entry("data.loader_made")
def note_loader(loader: Any) -> None:
    if switch.failed:
        return
    watch.note_made("loader", loader)
    loading.made(loader)


def had_made(loaders: list[Any], iterators: list[Any]) -> None:
    """DataLoaders and iterators of them that the program had made before the agent began."""
    for iterator in iterators:
        loader = next((loader for loader in loaders if iterator._index_sampler is loader._index_sampler), None)
        if loader is not None:
            note_iterator(iterator, loader)


@entry("data.iterator_made")
def note_iterator(iterator: Any, loader: Any) -> None:
    if getattr(loader, "_gpuconsole_server", False):
        return  # made by a change, not by the program
    origin = belongs_to(iterator, loader)
    if switch.failed:
        return
    watch.note_origin(loader, origin)
    iterator.__dict__["_gpuconsole_place"] = place = loading.place_of(loader)
    iterator.__dict__["_gpuconsole_number"] = place.code
    watch.add(watch.iterators, iterator)
    time_first_draw(iterator, place)


def time_first_draw(iterator: Any, place: Place) -> None:
    """Time how long the sampler takes for the first indices of the epoch that begins: it may sort all samples. Later batches run the plain method."""
    reference = weakref.ref(iterator)

    def _next_index() -> Any:
        present = reference()
        assert present is not None
        present.__dict__.pop("_next_index", None)  # an agent that goes off in another thread may have removed it
        begun = now()
        try:
            return present._next_index()
        finally:
            if recorder.thread == get_ident():
                loading.drawn(place, now() - begun)

    if hasattr(iterator, "_next_index"):
        iterator.__dict__["_next_index"] = _next_index


def forget_iterators() -> None:
    """The agent leaves the program: no iterator holds anything of the agent's, unless another loader of ours serves the rest of the epoch."""
    for iterator in watch.alive(watch.iterators):
        if not is_served(iterator):
            for name in [name for name in vars(iterator) if name.startswith(("_gpuconsole_", "_next_index"))]:
                del vars(iterator)[name]


@hot_entry("data.begin_usual")
def begin_usual_batch(place: Place | None) -> bool:
    """Begin the segment of a batch in a light step, where there is nothing to find out. Returns whether this is so."""
    try:
        stack = recorder.stack
        if (
            stack[-1] != UNMARKED
            or place is None
            or place is not loading.place
            or place.opened is not None
            or recorder.light != get_ident()
        ):
            return False
        begun = now()
        if begun >= loading.due:
            return False
        place.batches += 1
        recorder.codes.append(UNMARKED)
        recorder.times.append(begun)
        stack.append(place.code)
        return True
    except Exception as problem:
        if switch.part_off("data.begin_usual", problem):
            raise
        return False


@hot_entry("data.begin")
def begin_batch(iterator: Any) -> float | None:
    """Begin the segment of a batch. Returns its time, or None where there is no segment to end."""
    try:
        if recorder.stack[-1] >= LOADER or recorder.thread != get_ident():
            return None
        if iterations.on:
            iterations.batch_begins(sys._getframe(1))
        noted = iterator.__dict__
        recorder.enter(noted.get("_gpuconsole_number", LOADER))
        watch.last_loader = noted.get("_gpuconsole_loader")
        begun = recorder.times[-1]
        if begun >= loading.due:
            loading.batch_begins(begun)
        return begun
    except Exception as problem:
        if switch.part_off("data.begin", problem):
            raise
        return None


@hot_entry("data.end")
def end_batch(iterator: Any, begun: float) -> None:
    try:
        if recorder.thread:
            place = iterator.__dict__.get("_gpuconsole_place")
            if place is loading.place and loading.began is None and place is not None and place.opened is None:
                place.batches += 1  # the usual batch: there is nothing to find out
            else:
                loading.batch_ends(place, begun)
            recorder.leave()
    except Exception as problem:
        if switch.part_off("data.end", problem):
            raise


@entry("data.batch")
def note_batch(iterator: Any, batch: Any) -> None:
    """Note once the size of a batch of the training's loader: the cost of sending a batch follows from its size."""
    if loading.batch is None and loading.place is not None and iterator.__dict__.get("_gpuconsole_place") is loading.place:
        loading.batch = size_of(batch)


@entry("data.begin_epoch")
def begin_epoch(loader: Any) -> float | None:
    """The start of an epoch starts the loader's processes: this time counts as a wait for data."""
    if recorder.thread != get_ident() or recorder.stack[-1] >= LOADER or getattr(loader, "_gpuconsole_server", False):
        return None
    place = loading.place_of(loader)
    if (kept := getattr(loader, "_iterator", None)) is not None:  # its processes stay: no iterator is made
        time_first_draw(kept, place)
    recorder.enter(place.code)
    return recorder.times[-1]


@entry("data.end_epoch_start")
def end_epoch_start(loader: Any, begun: float) -> None:
    if recorder.thread:
        loading.epoch_opened(loader, now() - begun)
        recorder.leave()


switch.undo_part["data"] = lambda: recorder.drop(range(LOADER, LOADER + LOADERS))

HOOKS = {"torch.utils.data.dataloader": on_dataloader}
