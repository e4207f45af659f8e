"""Live changes of the DataLoader that feeds the training: num_workers, prefetch_factor, pin_memory.

And which loaders the training loop cannot reach: a change of their workers needs no permission of
the user. Python lets a program change almost everything that a dataset reads: its attributes, its
lists, globals, files. So this list is short, and everything that is not on it asks. Not on it, for
example: TensorDataset (a write through `.data` or a numpy view of a tensor leaves no trace),
ImageFolder and the other file datasets of torchvision (`samples` and `targets` are lists, and files
can be written), random transforms, lists, and all classes of the program.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ...forks import in_forked_children
from ...protocol import Value
from ..guard import from_outside
from .batch_sources import LoaderSettings, loader_of, missing_names, settings_of, start_method
from .change import MAY_DIFFER, NEEDS_PERMISSION, SAME_BITS, SAME_SAMPLES, Change, ChangeRefused
from .loader_switch import LoaderSwitch, _broken
from .loader_switch import lost as lost
from .state import cannot_share, shared_by

if TYPE_CHECKING:
    from ..watch import Watch

# --- loaders that the training loop cannot reach --------------------------------------------------


class KnownType(NamedTuple):
    """`name`: of the class or the function, with its module. `holds`: whether this object of the
    class is one that the loop cannot reach."""

    name: str
    reason: str
    holds: Callable[[Any], bool] = lambda given: True


def _is_plain_arrow(dataset: Any) -> bool:
    kwargs, features = dataset._format_kwargs, dataset._info.features
    return (
        dataset._format_type in (None, "torch", "numpy")
        and not kwargs
        and all(map(_is_plain_feature, features.values()))
    )


def _is_plain_feature(feature: Any) -> bool:
    """Whether a column needs nothing but its table: an image or a sound may lie in a file."""
    if type(feature) is dict:
        return all(map(_is_plain_feature, feature.values()))
    if type(feature).__name__ in ("List", "LargeList", "Sequence"):
        return _is_plain_feature(feature.feature)
    return type(feature).__name__ in ("Value", "ClassLabel")


def _has_no_generator(sampler: Any) -> bool:
    return sampler.generator is None


def _has_known_sampler(batches: Any) -> bool:
    return is_in(SAMPLERS, batches.sampler)


DATASETS = (
    KnownType("builtins.range", "the numbers of a range never change"),
    KnownType(
        "datasets.arrow_dataset.Dataset",
        "a table of Arrow cannot be written: map, filter and select give another dataset",
        _is_plain_arrow,
    ),
)
SAMPLERS = (
    KnownType("torch.utils.data.sampler.SequentialSampler", "its order is that of the dataset"),
    KnownType(
        "torch.utils.data.sampler.RandomSampler",
        "it draws from a generator of its own, which nobody else has",
        _has_no_generator,
    ),
    KnownType(
        "torch.utils.data.distributed.DistributedSampler",
        "its order is fixed when the epoch begins",
    ),
    KnownType(
        "torch.utils.data.sampler.BatchSampler",
        "it groups what its sampler gives",
        _has_known_sampler,
    ),
)
COLLATES = (
    KnownType("torch.utils.data._utils.collate.default_collate", "it uses the samples only"),
    KnownType("torch.utils.data._utils.collate.default_convert", "it uses the samples only"),
    KnownType("transformers.data.data_collator.default_data_collator", "it uses the samples only"),
)


def is_in(table: tuple[KnownType, ...], given: Any) -> bool:
    """Whether an object, or a function, is of a row of `table`. A subclass is not: it may read what
    it wants."""
    named = given if hasattr(given, "__qualname__") else type(given)
    row = next(
        (row for row in table if row.name == f"{named.__module__}.{named.__qualname__}"), None
    )
    return row is not None and row.holds(given)


def is_out_of_reach(loader: Any) -> bool:
    """Whether the training loop cannot reach what the samples of `loader` come from."""
    module = sys.modules.get("torch.utils.data.dataloader")
    try:
        return (
            module is not None
            and type(loader) is module.DataLoader
            and loader.worker_init_fn is None
            and is_in(DATASETS, loader.dataset)
            and is_in(
                SAMPLERS,
                loader.batch_sampler if loader.batch_sampler is not None else loader.sampler,
            )
            and is_in(COLLATES, loader.collate_fn)
        )
    except Exception as problem:  # another version of a library: then the user is asked
        if from_outside(problem):
            raise
        return False


# --- the changes ----------------------------------------------------------------------------------

NO_LOADER = (
    "the program has no DataLoader: the function that makes a batch would have to become a Dataset"
)
NO_EPOCH = (
    "no epoch of the DataLoader is under way; where next(iter(loader)) takes one batch of each"
    " epoch, new workers would load batches that nobody uses"
)
ONE_BATCH = (
    "the program has no DataLoader at its steps: it drops each one before, as"
    " next(iter(DataLoader(...))) does"
)
ITERABLE = (
    "an IterableDataset divides its samples among the workers itself: another number of workers"
    " would lose or repeat samples"
)
SEVERAL = "the steps take their batches from several DataLoaders in turn"
WORKERS_NEEDED = (
    "the program's workers have the dataset, and its own process would load with other random"
    " numbers and files: num_workers=0 needs a new start"
)
NEW_LOADER = (
    "the program made a new DataLoader, and the program's own settings are back: make it once,"
    " before the epochs"
)

_controls: dict[int, LoaderSwitch] = {}
"""By the id of the DataLoader."""
_plain_get: Any = None
"""`DataLoader._get_iterator`, while another function is in its place."""

DATALOADER = "torch.utils.data.dataloader"


def module() -> Any:
    return sys.modules.get(DATALOADER)


def control_of(loader: Any, iterator: Any = None) -> LoaderSwitch | None:
    """The control of a DataLoader, or of an epoch of one that the program has dropped."""
    epoch = vars(iterator).get("_gpuconsole_epoch") if iterator is not None else None
    return _controls.get(id(loader)) or (epoch.control if epoch is not None else None)


def training_loader(watch: Watch) -> tuple[Any, Any]:
    """The DataLoader of the last training batch and its newest iterator; None for each that does
    not exist."""
    iterators = [iterator for ref in watch.iterators if (iterator := ref()) is not None]
    loader = watch.loader() if watch.loader is not None else None
    if loader is None and iterators:
        loader = loader_of(iterators[-1])
    newest = next(
        (iterator for iterator in reversed(iterators) if loader_of(iterator) is loader), None
    )
    return loader, newest


def worker_pids(watch: Watch) -> list[int]:
    """Process ids of the workers that serve the training's DataLoader; empty without workers."""
    loader, iterator = training_loader(watch)
    control = control_of(loader, iterator) if loader is not None else None
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
    if type(iterator) not in (
        data._SingleProcessDataLoaderIter,
        data._MultiProcessingDataLoaderIter,
    ):
        return f"{type(iterator).__name__} keeps a state of its own"
    if not getattr(loader, "in_order", True):
        return "in_order=False: the batches have no order that could be kept"
    if getattr(iterator, "_shared_seed", None) is not None or any(
        kind.__name__ == "MapDataPipe" for kind in type(loader.dataset).__mro__
    ):
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
        f"Python starts workers by {method} here, and the script has no `if __name__ =="
        " '__main__'`: each worker would run the script again"
    )


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
    return any(
        isinstance(statement, ast.If) and "__name__" in ast.dump(statement.test)
        for statement in body
    )


# --- the loaders that are under control -----------------------------------------------------------


def under_control(loader: Any, iterator: Any) -> LoaderSwitch:
    """The control of `loader`; made when a change begins."""
    control = control_of(loader, iterator)
    if control is None:
        control = _controls[id(loader)] = LoaderSwitch(
            module(), loader, iterator, functools.partial(_end, id(loader))
        )
        weakref.finalize(loader, _dropped, id(loader), weakref.ref(control)).atexit = False
        _put()
    return control


def _put() -> None:
    """Let new epochs of changed loaders begin with the servers in force. Torch's function is back
    in its place when no change is left."""
    global _plain_get
    if _plain_get is not None:
        return
    _plain_get = plain = module().DataLoader._get_iterator

    @functools.wraps(plain)
    def _get_iterator(self: Any) -> Any:
        control = _controls.get(id(self))
        return plain(self) if control is None else control.new_iterator(self, plain)

    module().DataLoader._get_iterator = _get_iterator


def _end(key: int) -> None:
    """Nothing is left of the changes of a loader."""
    global _plain_get
    _controls.pop(key, None)
    if not _controls and _plain_get is not None:
        if getattr(module().DataLoader._get_iterator, "__wrapped__", None) is _plain_get:
            module().DataLoader._get_iterator = _plain_get
        _plain_get = None


def _dropped(key: int, ref: weakref.ref[LoaderSwitch]) -> None:
    """The program has dropped a loader. The epoch that is under way goes on; the loader that the
    program makes next has the program's own settings."""
    control = ref()
    if control is None or _controls.get(key) is not control:
        return
    if control.in_force != control.program or control.wanted is not None:
        lost.append(NEW_LOADER)
    if control.present is None:
        control.close()
    _end(key)


def leave() -> bool:
    """The agent leaves the program: the program's own iterators serve again, from their next batch
    on. Returns whether anything must stay in its place."""
    for key, control in list(_controls.items()):
        control.gone = True
        if control.present is None:
            control.close()
        _end(key)
    _broken.clear()
    return False


def _forked() -> None:
    """In a forked child: its DataLoaders load with the program's own settings, and the workers of
    the parent stay as they are."""
    for key, control in list(_controls.items()):
        control.resume_in_child()
        _end(key)


in_forked_children(_forked)


class LoaderChange(Change):
    """What the three knobs of a loader have in common. Workers load ahead, from copies of the
    dataset: where the loop can reach what the samples come from, a change needs the permission of
    the user."""

    effect = MAY_DIFFER

    def effect_here(self, watch: Watch) -> str:
        loader, _ = training_loader(watch)
        return SAME_SAMPLES if loader is not None and is_out_of_reach(loader) else MAY_DIFFER

    def read(self, watch: Watch) -> Value | None:
        loader, iterator = training_loader(watch)
        if loader is None:
            return None
        control = control_of(loader, iterator)
        return self.value(settings_of(loader) if control is None else control.in_force)

    def why_fixed(self, watch: Watch) -> str:
        loader, iterator = training_loader(watch)
        if loader is None and watch.last_loader is not None:
            return ONE_BATCH
        control = control_of(loader, iterator)
        loads_here = iterator is not None and (
            control is None or control.in_force == control.program
        )
        shared = shared_by(iterator._dataset, iterator._collate_fn) if loads_here else ""
        return cannot_share(shared) if shared else why_not(loader, iterator)

    def set(self, watch: Watch, value: Value) -> None:
        self._ask(watch, value, held=False)

    def prepare(self, watch: Watch, value: Value) -> None:
        self._ask(watch, value, held=True)

    def _ask(self, watch: Watch, value: Value, held: bool) -> None:
        loader, iterator = training_loader(watch)
        if loader is None:
            raise ChangeRefused(LoaderChange.why_fixed(self, watch))
        control = control_of(loader, iterator)
        wanted = self.changed(
            (control.wanted or control.in_force) if control is not None else settings_of(loader),
            value,
        )
        own = control.program if control is not None else settings_of(loader)
        if control is None and wanted == own:
            return
        if wanted != own:
            self._may(watch, loader, iterator, wanted, own)
        under_control(loader, iterator).ask(wanted, iterator, held)

    def _may(
        self, watch: Watch, loader: Any, iterator: Any, wanted: LoaderSettings, own: LoaderSettings
    ) -> None:
        """Raises ChangeRefused where the change is not possible, or not allowed."""
        if reason := LoaderChange.why_fixed(self, watch):
            raise ChangeRefused(reason)
        if wanted.num_workers and (reason := why_no_workers(loader)):
            raise ChangeRefused(reason)
        if own.num_workers and not wanted.num_workers:
            raise ChangeRefused(WORKERS_NEEDED)
        if any(
            other is not control_of(loader, iterator) and other.present is not None
            for other in _controls.values()
        ):
            raise ChangeRefused(SEVERAL)
        if wanted.num_workers and not watch.allows_loader and not is_out_of_reach(loader):
            raise ChangeRefused(f"{self.knob}: {NEEDS_PERMISSION}")

    def prepared(self, watch: Watch, value: Value) -> bool:
        control = control_of(*training_loader(watch))
        if control is not None:
            if not control.is_ready():
                return False
            settings = control.wanted or control.in_force
            if self.changed(settings, value) == settings:
                return True
        elif self.read(watch) == value:
            return True
        self.prepare(watch, value)
        return False

    def pending(self, watch: Watch) -> bool:
        control = control_of(*training_loader(watch))
        return control is not None and control.under_way()

    def value(self, settings: LoaderSettings) -> Value | None:
        raise NotImplementedError

    def changed(self, settings: LoaderSettings, value: Value) -> LoaderSettings:
        raise NotImplementedError


class NumWorkers(LoaderChange):
    """Worker processes. A worker has one torch thread, so a transform may round in another way."""

    knob = "num_workers"

    def why_fixed(self, watch: Watch) -> str:
        loader, _ = training_loader(watch)
        return super().why_fixed(watch) or why_no_workers(loader)

    def value(self, settings: LoaderSettings) -> Value:
        return settings.num_workers

    def changed(self, settings: LoaderSettings, value: Value) -> LoaderSettings:
        return settings.with_(num_workers=int(value))


class PrefetchFactor(LoaderChange):
    knob = "prefetch_factor"

    def value(self, settings: LoaderSettings) -> Value | None:
        return settings.prefetch_factor or None

    def changed(self, settings: LoaderSettings, value: Value) -> LoaderSettings:
        """Without workers there is nothing to change; the value in force stays the default."""
        return settings.with_(prefetch_factor=int(value)) if settings.num_workers else settings


class PinMemory(LoaderChange):
    """Page-locked memory. Without workers the same process loads the same samples; with workers,
    others begin."""

    knob = "pin_memory"

    def effect_here(self, watch: Watch) -> str:
        control = control_of(*training_loader(watch))
        loader, _ = training_loader(watch)
        workers = (
            control.in_force.num_workers
            if control is not None
            else getattr(loader, "num_workers", 0)
        )
        return super().effect_here(watch) if workers else SAME_BITS

    def value(self, settings: LoaderSettings) -> Value:
        return settings.pin_memory

    def why_fixed(self, watch: Watch) -> str:
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_available():
            return "no GPU: page-locked memory has no effect"
        return super().why_fixed(watch)

    def changed(self, settings: LoaderSettings, value: Value) -> LoaderSettings:
        return settings.with_(pin_memory=bool(value))
