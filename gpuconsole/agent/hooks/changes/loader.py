"""Live changes of the DataLoader that feeds the training: num_workers, prefetch_factor, pin_memory."""

from __future__ import annotations

import functools
import sys
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from ...forks import in_forked_children
from ...protocol import Value
from ..guard import from_outside, put, put_back
from .change import CHANGES_NUMERICS, SAME_BITS, SAME_SAMPLES, Change, Refused
from .control import Control, is_random
from .servers import Settings, loader_of, missing_names, settings_of, start_method
from .state import cannot_share, state_of

if TYPE_CHECKING:
    from ..watch import Watch

NO_LOADER = "the program has no DataLoader: the function that makes a batch would have to become a Dataset"
NO_EPOCH = "no epoch of the DataLoader is under way; where next(iter(loader)) takes one batch of each epoch, new workers would load batches that nobody uses"
ONE_BATCH = "the program has no DataLoader at its steps: it drops each one before, as next(iter(DataLoader(...))) does"
ITERABLE = "an IterableDataset divides its samples among the workers itself: another number of workers would lose or repeat samples"

_controls: dict[int, Control] = {}
"""By the id of the DataLoader."""
changed_loaders: list[weakref.ref[Any]] = []
"""The DataLoaders under control, the newest last."""


class Likeness(NamedTuple):
    """What a DataLoader has in common with the one that the program makes in its place, for example in the next epoch."""

    dataset: type
    samples: int
    sampler: type
    batch_size: int | None
    collate: Any
    worker_init: Any
    settings: Settings


_kept: dict[Likeness, Control] = {}
"""Controls of DataLoaders that are gone. The next DataLoader of the same likeness gets them."""
MOST_KEPT = 32
"""Entries of `_kept`."""
lost: list[str] = []
"""Why a DataLoader did not get the settings of the one before, in one line each; the service reports them."""
NEW_LOADER = "the program made a new DataLoader, and the program's own settings are back"
FALLEN = "the DataLoader has the program's own settings again"
TOO_SHORT = f"{NEW_LOADER}: an epoch ends before new workers are ready"


DATALOADER = "torch.utils.data.dataloader"


def module() -> Any:
    return sys.modules.get(DATALOADER)


def control_of(loader: Any) -> Control | None:
    return _controls.get(id(loader))


def training_loader(watch: Watch) -> tuple[Any, Any]:
    """The DataLoader of the last training batch and its newest iterator; None for each that does not exist."""
    iterators = [iterator for ref in watch.iterators if (iterator := ref()) is not None]
    loader = watch.loader() if watch.loader is not None else None
    if loader is None and iterators:
        loader = loader_of(iterators[-1])
    if loader is None:  # between two epochs
        loader = next((changed for ref in reversed(changed_loaders) if (changed := ref()) is not None), None)
    newest = next((iterator for iterator in reversed(iterators) if loader_of(iterator) is loader), None)
    return loader, newest


def worker_pids(watch: Watch) -> list[int]:
    """Process ids of the workers that serve the training's DataLoader; empty without workers."""
    loader, iterator = training_loader(watch)
    control = control_of(loader) if loader is not None else None
    workers = control.workers if control is not None else getattr(iterator, "_workers", None) or ()
    return [worker.pid for worker in workers]


def why_not(loader: Any, iterator: Any) -> str:
    """Why the loading of `loader` cannot change in the middle of an epoch; empty where it can."""
    data = module()
    if data is None or loader is None:
        return NO_LOADER
    if iterator is None:
        return NO_EPOCH
    if data._DatasetKind.Iterable == loader._dataset_kind:
        return ITERABLE
    if missing := missing_names(data, iterator):
        return f"this version of torch lacks {', '.join(missing)}"
    if type(iterator) not in (data._SingleProcessDataLoaderIter, data._MultiProcessingDataLoaderIter):
        return f"{type(iterator).__name__} keeps a state of its own"
    if not getattr(loader, "in_order", True):
        return "in_order=False: the batches have no order that could be kept"
    if getattr(iterator, "_shared_seed", None) is not None or any(kind.__name__ == "MapDataPipe" for kind in type(loader.dataset).__mro__):
        return "a DataPipe is divided among the workers"
    return ""


def why_no_workers(loader: Any) -> str:
    """Why worker processes cannot be started for a loader that has none; empty where they can."""
    if loader.num_workers:
        return ""
    method = start_method(None)
    if method == "fork" or _main_is_guarded():
        return ""
    return (
        f"Python starts workers by {method} here, and the script has no `if __name__ == '__main__'`: each worker would run the script again"
    )


def why_not_without_workers(loader: Any) -> str:
    """Why the workers of a loader cannot go; empty where they can."""
    prepared = loader.num_workers and loader.worker_init_fn is not None
    return "worker_init_fn prepares each worker: without workers it would not run" if prepared else ""


@functools.cache
def _main_is_guarded() -> bool:
    """Whether the program's main module may be imported again, as spawn and forkserver do it."""
    import ast

    file = getattr(sys.modules.get("__main__"), "__file__", None)
    if file is None:
        return True
    try:
        with open(file, encoding="utf-8") as source:
            body = ast.parse(source.read()).body
    except (OSError, ValueError, SyntaxError):
        return False
    return any(isinstance(statement, ast.If) and "__name__" in ast.dump(statement.test) for statement in body)


def under_control(loader: Any, iterator: Any) -> Control:
    """The control of `loader`; made at the first change."""
    control = control_of(loader)
    if control is None:
        data = module()
        install(data)
        control = Control(data, loader, iterator)
        control.likeness = likeness_of(loader)
        _register(loader, control)
    return control


def _register(loader: Any, control: Control) -> None:
    """`control` is that of `loader` until the program drops the loader."""
    _controls[id(loader)] = control
    changed_loaders[:] = [ref for ref in changed_loaders if ref() is not None] + [weakref.ref(loader)]
    control.dropped = weakref.finalize(loader, _forget, id(loader))
    control.dropped.atexit = False


def likeness_of(loader: Any) -> Likeness | None:
    """None where the dataset of the loader has no length. Two functions with the same code count as equal, because a program makes a lambda anew with
    each loader. Two collators of one class count as equal, because a collator may have no hash, and may hold a model."""
    collate, worker_init = (getattr(function, "__code__", type(function)) for function in (loader.collate_fn, loader.worker_init_fn))
    try:
        samples = len(loader.dataset)
    except Exception as problem:  # the program's own `__len__` may raise anything
        if from_outside(problem):
            raise
        return None
    return Likeness(type(loader.dataset), samples, type(loader.sampler), loader.batch_size, collate, worker_init, settings_of(loader))


def _forget(key: int) -> None:
    """The program has dropped a loader."""
    control = _controls.pop(key, None)
    if control is None:
        return
    stand_in = control.stand_in()
    if stand_in is not None:  # the program goes on with an iterator of the loader
        _register(stand_in, control)
    else:
        _keep(control)


def _keep(control: Control) -> None:
    """Keep the control, with its settings and with a change under way, for the loader that the program makes next."""
    control.park()
    if control.inherited and control.wanted is not None and control.got_batches:
        lost.append(TOO_SHORT)
    elif control.likeness is not None:
        _kept.pop(control.likeness, None)
        if len(_kept) < MOST_KEPT:
            _kept[control.likeness] = control


def apply_kept(loader: Any, iterator: Any) -> None:
    """As `_apply_kept`. Raises nothing of its own: the program gets its batches, whatever goes wrong here."""
    try:
        _apply_kept(loader, iterator)
    except Refused as refused:
        lost.append(f"{NEW_LOADER}: {refused}")
    except Exception as problem:
        if from_outside(problem):
            raise
        lost.append(f"{NEW_LOADER}: {type(problem).__name__}: {problem}")


def _apply_kept(loader: Any, iterator: Any) -> None:
    """Give a new loader the changed settings of the loader that it replaces. New workers rehearse first, as in every change. Raises Refused."""
    likeness = likeness_of(loader) if _controls or _kept else None
    if likeness is None:
        return
    for key, former in list(_controls.items()):  # the program may still hold the former loader
        if former.ended and former.serves(loader.dataset) and former.likeness == likeness:
            _release(key)
            _keep(former)
    control = _kept.pop(likeness, None)
    if control is None:
        return
    settings = control.wanted or control.in_force
    reason = why_not(loader, iterator) or (why_no_workers(loader) if settings.num_workers else why_not_without_workers(loader))
    if not reason:
        control.adopt(loader, iterator)
        _register(loader, control)
    elif settings != control.program:
        raise Refused(reason)


def under_way() -> bool:
    """Whether a new DataLoader still waits for the settings of the former DataLoader. `lost` gets each refusal, and each failure of workers in force."""
    waits = False
    for control in list(_controls.values()):
        if control.fallen:
            lost.append(f"{FALLEN}: {control.fallen}")
            control.fallen = ""
        if control.inherited:
            try:
                waits |= control.under_way()
            except Refused as refused:
                control.inherited = False
                lost.append(f"{NEW_LOADER}: {refused}")
    return waits


def install(data: Any) -> None:
    """Let new epochs of changed loaders begin with the servers in force. Only once, at the first change."""
    plain_get, several = data.DataLoader._get_iterator, data._MultiProcessingDataLoaderIter
    plain_reset = several._reset
    if hasattr(plain_get, "_gpuconsole_plain"):
        return

    def _get_iterator(self: Any) -> Any:
        control = control_of(self)
        if control is not None:
            return control.new_iterator(self, plain_get)
        iterator = plain_get(self)
        apply_kept(self, iterator)
        return iterator

    def _reset(self: Any, loader: Any, first_iter: bool = False) -> None:
        control = None if first_iter else control_of(loader)
        if control is None:
            return plain_reset(self, loader, first_iter)
        control.abandon()
        epoch = self.__dict__.pop("_gpuconsole_epoch", None)
        self.__dict__.pop("_next_data", None)
        if epoch is not None:
            epoch.leave()
        if control.in_force == control.program:
            plain_reset(self, loader, first_iter)
            if control.wanted is not None:
                control.follow(self)
            return None
        data._BaseDataLoaderIter._reset(self, loader, first_iter)
        control.begin_epoch(self)
        return None

    _get_iterator._gpuconsole_plain, _reset._gpuconsole_plain = plain_get, plain_reset  # type: ignore[attr-defined]
    put(data.DataLoader, "_get_iterator", _get_iterator)
    put(several, "_reset", _reset)


def leave() -> bool:
    """The agent leaves the program: the program's own settings are in force again. Returns whether the hooks of DataLoaders must stay, because another
    loader of ours serves an epoch that is not over. They go with the iterator of that epoch."""
    _kept.clear()
    for key, control in list(_controls.items()):
        epoch = control.epoch() if control.epoch is not None else None
        outer = epoch.outer() if epoch is not None else None
        if control.ended or outer is None:
            _end(key)
        else:
            control.ask(control.program, outer)
            weakref.finalize(outer, _served, key).atexit = False
    return bool(_controls)


def _release(key: int) -> Control | None:
    """Take a loader out of its control. Returns the control."""
    control = _controls.pop(key, None)
    if control is not None and control.dropped is not None:
        control.dropped.detach()
    return control


def _end(key: int) -> None:
    """Give a loader up, and keep nothing for the next one."""
    control = _release(key)
    if control is not None:
        control.close()


def _forked() -> None:
    """In a forked child: its DataLoaders load with the program's own settings, and the workers of the parent stay as they are."""
    for key in list(_controls):
        control = _release(key)
        if control is not None:
            control.go_on_in_child()
    _kept.clear()
    changed_loaders.clear()


in_forked_children(_forked)


def is_served(iterator: Any) -> bool:
    """Whether a loader of the agent makes the batches of `iterator`, in place of the program's loader."""
    epoch = vars(iterator).get("_gpuconsole_epoch")
    return epoch is not None and not epoch.over and any(control is epoch.control for control in _controls.values())


def _served(key: int) -> None:
    """The last iterator that others served is gone."""
    _end(key)
    if not _controls:
        put_back()


class LoaderChange(Change):
    """What the three knobs of a loader have in common."""

    effect = SAME_BITS

    def read(self, watch: Watch) -> Value | None:
        loader, _ = training_loader(watch)
        if loader is None:
            return None
        control = control_of(loader)
        if control is None:
            return self.value(settings_of(loader))
        return self.value((control.wanted if control.inherited else None) or control.in_force)

    def why_fixed(self, watch: Watch) -> str:
        loader, iterator = training_loader(watch)
        if loader is None and watch.last_loader is not None:
            return ONE_BATCH
        control = control_of(loader)
        if (
            iterator is not None
            and (control is None or control.in_force == control.program)
            and (shared := state_of(iterator._dataset).shared)
        ):
            return cannot_share(shared)
        return why_not(loader, iterator)

    def set(self, watch: Watch, value: Value) -> None:
        self._ask(watch, value, held=False)

    def prepare(self, watch: Watch, value: Value) -> None:
        self._ask(watch, value, held=True)

    def _ask(self, watch: Watch, value: Value, held: bool) -> None:
        loader, iterator = training_loader(watch)
        if reason := LoaderChange.why_fixed(self, watch):
            raise Refused(reason)
        control = under_control(loader, iterator)
        wanted = self.changed(control.wanted or control.in_force, value)
        if wanted.num_workers and (reason := why_no_workers(loader)):
            raise Refused(reason)
        if not wanted.num_workers and (reason := why_not_without_workers(loader)):
            raise Refused(reason)
        control.inherited, control.allows_numerics = False, watch.allows_numerics
        control.ask(wanted, iterator, held)
        if not held:
            for other in list(_controls.values()):  # several loaders may feed the training in turn
                if other is not control and other.program == control.program:
                    other.ask_beside(wanted)

    def prepared(self, watch: Watch, value: Value) -> bool:
        loader, _ = training_loader(watch)
        control = control_of(loader) if loader is not None else None
        if control is not None:
            if not control.ready():
                return False
            settings = control.wanted or control.in_force
            if self.changed(settings, value) == settings:
                return True
        self.prepare(watch, value)  # the program has made another DataLoader
        return False

    def pending(self, watch: Watch) -> bool:
        loader, _ = training_loader(watch)
        control = control_of(loader) if loader is not None else None
        return control is not None and control.under_way()

    def value(self, settings: Settings) -> Value | None:
        raise NotImplementedError

    def changed(self, settings: Settings, value: Value) -> Settings:
        raise NotImplementedError


class NumWorkers(LoaderChange):
    """Worker processes. A worker has one torch thread, so a transform may round in another way."""

    knob, effect = "num_workers", SAME_SAMPLES

    def why_fixed(self, watch: Watch) -> str:
        loader, _ = training_loader(watch)
        return super().why_fixed(watch) or why_no_workers(loader)

    def effect_here(self, watch: Watch) -> str:
        loader, _ = training_loader(watch)
        return CHANGES_NUMERICS if loader is not None and is_random(loader.dataset) else self.effect

    def value(self, settings: Settings) -> Value:
        return settings.num_workers

    def changed(self, settings: Settings, value: Value) -> Settings:
        return settings.with_(num_workers=int(value))


class PrefetchFactor(LoaderChange):
    knob = "prefetch_factor"

    def value(self, settings: Settings) -> Value | None:
        return settings.prefetch_factor or None

    def changed(self, settings: Settings, value: Value) -> Settings:
        """Without workers there is nothing to change; the value in force stays the default."""
        return settings.with_(prefetch_factor=int(value)) if settings.num_workers else settings


class PinMemory(LoaderChange):
    knob = "pin_memory"

    def value(self, settings: Settings) -> Value:
        return settings.pin_memory

    def why_fixed(self, watch: Watch) -> str:
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_available():
            return "no GPU: page-locked memory has no effect"
        return super().why_fixed(watch)

    def changed(self, settings: Settings, value: Value) -> Settings:
        return settings.with_(pin_memory=bool(value))
