"""Where batches come from: DataLoader iterators, and functions of the program that return batches where there is no DataLoader."""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from inspect import CO_GENERATOR
from types import CodeType, FrameType, FunctionType
from typing import Any

from ..clock import now
from . import passes, tracing
from .calls import spanned
from .changes.loader import is_served
from .changes.servers import belongs_to
from .evidence.loading import Place, loading
from .evidence.steps import iterations
from .guard import entry, hot_entry, put, switch, wrappers_without_level
from .recorder import DATA, LOADER, LOADERS, MAY_HOLD_FORWARD, OWN, UNMARKED, get_ident
from .watch import is_program, recorder, watch

TRACE_AT = 2
"""Steps of a program with one optimizer after which the source of batches is looked for."""
TRACE_STEPS, TRACE_STEPS_OF_SEVERAL = 2, 4
"""Several optimizers may step on one batch, and each of them ends a step at first."""
MOST_ITEMS, DEPTH = 64, 3
"""Size and depth of the containers in which tensors are looked for."""
PLACE = 5550123
"""A constant in generated code, which an object replaces."""
MONITORING_TOOL = 4
"""A number for sys.monitoring that no known tool uses (0 to 2 and 5 have a purpose)."""


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
        noted = self.__dict__
        serves = noted.get("_gpuconsole_serves")
        if recorder.light and serves is None and begin_usual_batch(noted.get("_gpuconsole_place")):
            try:
                return plain(self)
            finally:
                try:  # here and not in a function of its own: see `hot_entry`
                    recorder.leave()
                except Exception as problem:
                    switch.part_off("data.end_usual", problem)
        begun = begin_batch(self) if recorder.thread else None
        try:
            return plain(self) if serves is None else serves()
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

    made.__doc__, made.__wrapped__ = loader_init.__doc__, loader_init  # type: ignore[attr-defined]
    put(base, "__init__", __init__)
    put(base, "__next__", __next__)
    put(base, "_gpuconsole_plain_next", plain)
    put(module.DataLoader, "__init__", made)
    put(module.DataLoader, "__iter__", __iter__)


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


def forget_iterators() -> None:
    """The agent leaves the program: no iterator holds anything of the agent's, unless another loader of ours serves the rest of the epoch."""
    for iterator in watch.alive(watch.iterators):
        if not is_served(iterator):
            for name in [name for name in vars(iterator) if name.startswith("_gpuconsole_")]:
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
        switch.part_off("data.begin_usual", problem)
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
        switch.part_off("data.begin", problem)
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
        switch.part_off("data.end", problem)


@entry("data.begin_epoch")
def begin_epoch(loader: Any) -> float | None:
    """The start of an epoch starts the loader's processes: this time counts as a wait for data."""
    if recorder.thread != get_ident() or recorder.stack[-1] >= LOADER or getattr(loader, "_gpuconsole_server", False):
        return None
    recorder.enter(loading.place_of(loader).code)
    return recorder.times[-1]


@entry("data.end_epoch_start")
def end_epoch_start(loader: Any, begun: float) -> None:
    if recorder.thread:
        loading.epoch_opened(loader, now() - begun)
        recorder.leave()


# --- functions that return batches --------------------------------------------------------------------------


class SourceSearch:
    """For two steps: which function of the program returned the tensors that the model is then given. Costs some ms of these steps.

    What runs within a pass is none: what a generator returns is a batch of its discriminator.
    """

    def __init__(self) -> None:
        self.sources: list[CodeType] = []
        self._returned: list[tuple[CodeType, list[weakref.ref[Any]]]] = []
        """Not the tensors themselves: parts of a model return activations, which would stay in memory until the search is over."""
        self._until = recorder.index + (TRACE_STEPS_OF_SEVERAL if iterations.on else TRACE_STEPS)
        passes.state.tracing_batches = self.passed
        switch.undo.append(self.stop)
        sys.setprofile(self.event)

    @entry("source.search")
    def event(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "return" and arg is not None and recorder.stack[-1] in MAY_HOLD_FORWARD and is_program(frame.f_code.co_filename):
            tensors = tensors_in(arg)
            if tensors:
                self._returned.append((frame.f_code, [weakref.ref(tensor) for tensor in tensors]))

    @entry("source.passed")
    def passed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = {id(tensor) for tensor in tensors_in((args, kwargs))}
        for code, tensors in reversed(self._returned):  # the outermost function that passed them on
            if any(id(tensor()) in given for tensor in tensors):
                if code not in self.sources and code.co_name not in ("<module>", "<lambda>"):
                    self.sources.append(code)
                break

    def over(self) -> bool:
        """Whether the search has ended. Call it after each step."""
        if recorder.index < self._until:
            return False
        self.stop()
        for code in self.sources:
            watch_function(code)
        return True

    def stop(self) -> None:
        if sys.getprofile() == self.event:
            sys.setprofile(None)
        passes.state.tracing_batches = None
        self._returned = []


def search_at() -> int:
    """The step after which the source of batches is looked for. Each of several optimizers ends a step at first, and only one of them may need a batch."""
    return max(TRACE_AT, len(watch.alive(watch.optimizers)) + 1)


def may_search() -> bool:
    """Whether a search is needed and would disturb nobody: no batch of the last steps came from a DataLoader, and no other profiler is on.

    These steps hold a whole iteration (see `search_at`).
    """
    from_loader = any(code >= LOADER for step in recorder.done for code in step[2])
    return not from_loader and sys.getprofile() is None


def tensors_in(value: Any, depth: int = DEPTH) -> list[Any]:
    if hasattr(value, "data_ptr"):
        return [value]
    if depth and isinstance(value, (tuple, list)) and len(value) < MOST_ITEMS:
        return [tensor for item in value for tensor in tensors_in(item, depth - 1)]
    if depth and isinstance(value, dict) and len(value) < MOST_ITEMS:
        return [tensor for item in value.values() for tensor in tensors_in(item, depth - 1)]
    return []


def watch_writer(code: CodeType, function: FunctionType | None, segment: int) -> None:
    """Make calls of a function that saves or logs a segment from now on, by other code in the function itself."""
    for referrer in [function] if function is not None else gc.get_referrers(code):
        if isinstance(referrer, FunctionType) and referrer.__code__ is code:
            _replace_code(referrer, segment)


def give_back_monitoring() -> None:
    """The agent leaves the program: a later agent registers functions of its own."""
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is not None and monitoring.get_tool(MONITORING_TOOL) == "gpuconsole":
        for event in (monitoring.events.PY_START, monitoring.events.PY_RESUME, monitoring.events.PY_RETURN, monitoring.events.PY_YIELD):
            monitoring.register_callback(MONITORING_TOOL, event, None)
        monitoring.free_tool_id(MONITORING_TOOL)


def watch_function(code: CodeType) -> None:
    """Make calls of the function a DATA segment from now on: by sys.monitoring; before Python 3.12 by other code in the function itself."""
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is None:
        for function in gc.get_referrers(code):
            if isinstance(function, FunctionType) and function.__code__ is code:
                _replace_code(function, DATA)
        return
    events = monitoring.events
    if monitoring.get_tool(MONITORING_TOOL) is None:
        monitoring.use_tool_id(MONITORING_TOOL, "gpuconsole")
        for event in (events.PY_START, events.PY_RESUME):
            monitoring.register_callback(MONITORING_TOOL, event, lambda code, offset: begin_source())
        for event in (events.PY_RETURN, events.PY_YIELD):
            monitoring.register_callback(MONITORING_TOOL, event, lambda code, offset, value: end_source())
    if monitoring.get_tool(MONITORING_TOOL) == "gpuconsole":
        wanted = events.PY_START | events.PY_RESUME | events.PY_RETURN | events.PY_YIELD
        monitoring.set_local_events(MONITORING_TOOL, code, wanted)
        switch.undo.append(lambda: monitoring.set_local_events(MONITORING_TOOL, code, 0))


def _replace_code(function: FunctionType, segment: int) -> None:
    """Give `function` code that calls the former code within a segment. A wrapper object would not be seen where the program holds the function
    in a local variable. `inspect.signature` follows `__wrapped__`."""
    code = function.__code__
    former = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    former.__kwdefaults__ = function.__kwdefaults__
    vars(former).update(vars(function))
    generates = code.co_flags & CO_GENERATOR
    inner = _spanned_generator(former) if generates else _spanned_source(former) if segment == DATA else spanned(segment, former)
    names = code.co_freevars
    lines = ["def make():", *(f"    {name} = None" for name in names), "    def call(*args, **kwargs):"]
    lines += [f"        if 0: {name}" for name in names] + [
        f"        inner = {PLACE}",
        "        return inner(*args, **kwargs)",
        "    return call",
    ]
    made: dict[str, Any] = {}
    exec("\n".join(lines), made)
    call = made["make"]().__code__
    constants = tuple(inner if constant == PLACE else constant for constant in call.co_consts)
    function.__code__ = call.replace(
        co_consts=constants, co_name=code.co_name, co_filename=code.co_filename, co_firstlineno=code.co_firstlineno
    )
    function.__wrapped__ = former  # type: ignore[attr-defined]
    switch.undo.append(functools.partial(_give_code_back, weakref.ref(function), code))


def _give_code_back(function: weakref.ref[FunctionType], code: CodeType) -> None:
    """`function` runs `code` again, where the program still has the function."""
    present = function()
    if present is not None:
        present.__code__ = code
        former = vars(present).pop("__wrapped__", None)
        if hasattr(former, "__wrapped__"):  # it was a wrapper before
            present.__wrapped__ = former.__wrapped__  # type: ignore[attr-defined]


@wrappers_without_level
def _spanned_source(former: Any) -> Any:
    """The function `former`, with each call as a segment."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if tracing.is_compiling() or not begin_source():
            return former(*args, **kwargs)
        try:
            return former(*args, **kwargs)
        finally:
            end_source()

    return wrapper


@wrappers_without_level
def _spanned_generator(former: Any) -> Any:
    """The generator function `former`, with each resumption as a segment."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        generator, sent = former(*args, **kwargs), None
        try:
            while True:
                begin_source()
                try:
                    value = generator.send(sent)
                except StopIteration as end:
                    return end.value
                finally:
                    end_source()
                sent = yield value
        finally:
            generator.close()

    return wrapper


@entry("source.begin")
def begin_source() -> bool:
    """Begin the segment of a function that makes a batch. Returns whether there is one to end."""
    if recorder.thread != get_ident() or DATA in recorder.stack or recorder.stack[-1] == OWN:
        return False
    if iterations.on:
        iterations.batch_begins(sys._getframe(1))
    recorder.enter(DATA)
    return True


@entry("source.end")
def end_source() -> None:
    if recorder.thread == get_ident() and recorder.stack[-1] == DATA:
        recorder.leave()


def _leave_source() -> None:
    recorder.drop((DATA,))
    passes.state.tracing_batches = None
    if isinstance(getattr(sys.getprofile(), "__self__", None), SourceSearch):
        sys.setprofile(None)


switch.undo_part["data"] = lambda: recorder.drop(range(LOADER, LOADER + LOADERS))
switch.undo_part["source"] = _leave_source

HOOKS = {"torch.utils.data.dataloader": on_dataloader}
