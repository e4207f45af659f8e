"""Functions of the program that make batches or write files behave as without the agent, and only the time of their own code is theirs."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import inspect
import warnings
import weakref
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import pytest

from gpuconsole.agent.hooks import functions
from gpuconsole.agent.hooks.calls import writers
from gpuconsole.agent.hooks.guard import switch
from gpuconsole.agent.hooks.recorder import DATA, GAP, LOG, SAVE
from gpuconsole.agent.hooks.watch import recorder

pytestmark = pytest.mark.skipif(functions.MONITORING is None, reason="before Python 3.12 no function of the program is watched")


@pytest.fixture(autouse=True)
def training() -> Iterator[None]:
    """This thread trains."""
    undo, switch.undo[:] = list(switch.undo), []
    recorder.begin([])
    yield
    agent_goes_off()
    switch.undo[:] = undo
    recorder.reset()
    writers.reset()


def agent_goes_off() -> None:
    while switch.undo:
        switch.undo.pop()()


def watched(function: Callable[..., Any], segment: int = SAVE) -> Callable[..., Any]:
    """A function of its own with the code of `function`, whose calls are segments."""
    assert isinstance(function, FunctionType)
    twin = FunctionType(function.__code__.replace(), function.__globals__, None, function.__defaults__, function.__closure__)
    annotations = (
        "__annotate__" if hasattr(function, "__annotate__") else "__annotations__"
    )  # from Python 3.14 on, the first makes the second
    for name in ("__kwdefaults__", annotations, "__qualname__", "__doc__"):
        setattr(twin, name, getattr(function, name))
    functions.watch_function(twin.__code__, segment)
    return twin


class Thing:
    """What a reference may keep alive."""


# --- what a program does with a generator, and what it sees ---------------------------------------------------


def echoes(log: list[Any], first: Any = 0, *more: Any, by: int = 1, **named: Any) -> Any:
    """Yields what it receives, goes on after a KeyError, and notes how it ends."""
    received = first
    try:
        while received is not None:
            try:
                received = yield received
            except KeyError as problem:
                log.append(("handled", problem.args))
                received = "again"
        return "returned", more, by, named
    except GeneratorExit:
        log.append("closed")
        raise
    finally:
        log.append("saved")


def yields_on(log: list[Any]) -> Any:
    while len(log) < 2:
        try:
            yield len(log)
        except BaseException as problem:
            log.append(type(problem).__name__)


def returns_at_the_end(log: list[Any]) -> Any:
    try:
        yield 1
    except GeneratorExit as problem:
        log.append(problem.args)
        return "the end"


def raises(log: list[Any]) -> Any:
    try:
        yield 1
    except KeyError as problem:
        raise ValueError("another one") from problem
    raise StopIteration("no return")


def send(function: Any, log: list[Any]) -> Any:
    generator = function(log)
    return [next(generator), generator.send(4), generator.send("text"), generator.throw(KeyError("lost")), list(generator)]


def delegate(function: Any, log: list[Any]) -> Any:
    def outer() -> Any:
        log.append((yield from function(log, 5, 6, 7, by=8, named=9)))

    generator = outer()
    return [next(generator), generator.send(1), generator.throw(KeyError(2)), generator.send(3), next(generator, "ended")]


def close(function: Any, log: list[Any]) -> Any:
    generator = function(log)
    unused = function(log)
    return [unused.close(), next(generator), generator.close(), list(generator)]


def throw_exit(function: Any, log: list[Any]) -> Any:
    generator = function(log)
    return [next(generator), generator.throw(GeneratorExit("from the program"))]


def throw_in(problem: type[BaseException]) -> Any:
    def throw(function: Any, log: list[Any]) -> Any:
        generator = function(log)
        next(generator)
        return generator.throw(problem("thrown"))

    return throw


def exhaust(function: Any, log: list[Any]) -> Any:
    return list(function(log))


def collect(function: Any, log: list[Any]) -> Any:
    generator = function(log)
    next(generator)
    del generator
    return list(log)


def handle_in_a_context(function: Any, log: list[Any]) -> Any:
    with contextlib.contextmanager(function)(log) as entered:
        raise KeyError("in the block")
    return entered  # type: ignore[unreachable]


def leave_a_context(function: Any, log: list[Any]) -> Any:
    with contextlib.contextmanager(function)(log):
        return "left early"


def raise_in_a_context(function: Any, log: list[Any]) -> Any:
    with contextlib.contextmanager(function)(log):
        raise OSError("the disk is full")


def call_wrongly(function: Any, log: list[Any]) -> Any:
    return function(log, 1, by=2, log=3)


def describe(function: Any, log: list[Any]) -> Any:
    generator = function(log)
    states = [inspect.getgeneratorstate(generator), next(generator), inspect.getgeneratorstate(generator)]
    return [*states, inspect.isgenerator(generator), generator.__name__, generator.__qualname__, generator.gi_running]


USES: list[tuple[Any, Any]] = [
    (echoes, send),
    (echoes, delegate),
    (echoes, close),
    (echoes, collect),
    (echoes, throw_exit),
    (echoes, throw_in(StopIteration)),
    (echoes, throw_in(KeyboardInterrupt)),
    (echoes, leave_a_context),
    (echoes, raise_in_a_context),
    (echoes, call_wrongly),
    (echoes, describe),
    (yields_on, close),
    (yields_on, throw_exit),
    (yields_on, throw_in(StopIteration)),
    (returns_at_the_end, close),
    (returns_at_the_end, throw_exit),
    (returns_at_the_end, leave_a_context),
    (raises, exhaust),
    (raises, throw_in(KeyError)),
    (raises, handle_in_a_context),
]


def outcome(use: Callable[..., Any], function: Any) -> Any:
    """What `use` returns or raises, and what `function` has noted."""
    log: list[Any] = []
    try:
        result: Any = ("returned", use(function, log))
    except BaseException as problem:
        chain = [problem, problem.__cause__, problem.__context__]
        result = ("raised", [(type(one), getattr(one, "args", None), getattr(one, "value", None)) for one in chain])
    return result, log


@pytest.mark.parametrize("segment", [SAVE, DATA])
@pytest.mark.parametrize(("function", "use"), USES, ids=[f"{function.__name__}-{use.__qualname__}" for function, use in USES])
def test_a_generator_does_what_it_does_without_the_agent(function: Any, use: Any, segment: int) -> None:
    assert outcome(use, watched(function, segment)) == outcome(use, function)


def test_a_context_that_handles_an_exception_then_saves() -> None:
    def saving(log: list[Any]) -> Iterator[str]:
        try:
            yield "entered"
        except KeyError:
            log.append(recorder.stack[-1])

    log: list[Any] = []
    with contextlib.contextmanager(watched(saving))(log):
        raise KeyError("handled")
    assert log == [SAVE] and recorder.stack == [GAP]


# --- the marks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("segment", [SAVE, LOG, DATA])
def test_only_the_own_code_of_a_generator_is_a_segment(segment: int) -> None:
    inside, outside = [], []

    def generator() -> Any:
        for _ in range(2):
            try:
                inside.append(recorder.stack[-1])
                yield
            except KeyError:
                inside.append(recorder.stack[-1])
        raise OSError

    running = watched(generator, segment)()
    for resume in (running.__next__, functools.partial(running.throw, KeyError()), running.__next__):
        with contextlib.suppress(OSError):
            resume()
        outside.append(recorder.stack[-1])
    assert (inside, outside) == ([segment] * 3, [GAP] * 3)
    assert [code for code in recorder.codes if code != GAP] == [segment] * 3


@pytest.mark.parametrize("segment", [SAVE, DATA])
def test_a_segment_ends_with_its_call_also_where_calls_are_nested_or_raise(segment: int) -> None:
    def fails(depth: int) -> Any:
        if depth:
            with contextlib.suppress(OSError):
                function(depth - 1)
            assert recorder.stack == [GAP, segment]
            return depth
        raise OSError("the disk is full")

    function = watched(fails, segment)
    with pytest.raises(OSError, match="full"):
        function(0)
    assert recorder.stack == [GAP]
    assert function(2) == 2
    assert recorder.stack == [GAP] and recorder.codes == [GAP, segment] * 2


def test_a_function_that_saves_is_found_once() -> None:
    def saves() -> int:
        return len(inspect.stack(0))

    function = watched(saves)
    depth = function()
    writers._loop.add(test_a_function_that_saves_is_found_once.__code__)
    function()
    for code, segment in writers.take().items():  # as the agent does between two steps
        functions.watch_function(code, segment)
    assert function() == depth


# --- the nature of a function -----------------------------------------------------------------------------------


async def saves_later(log: list[Any]) -> str:
    await asyncio.sleep(0)
    log.append("saved")
    return "returned"


async def yields_later(log: list[Any]) -> Any:
    try:
        yield 1
    except KeyError:
        yield 2
    finally:
        log.append("saved")


def saves(first: Any, /, second: int = 2, *more: int, by: int, name: str = "x", **named: Any) -> Any:
    """Saves a file."""
    return first, second, more, by, name, named


class Trainer:
    def __secret(self, __step: int) -> Any:
        return super().__repr__()[:9], __step

    save = __secret


IS = [inspect.isfunction, inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction, inspect.isawaitable]


def decorated(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def nature(function: Any) -> list[Any]:
    code = function.__code__
    described = [inspect.signature(function), inspect.getfullargspec(function), inspect.getsource(function), list(vars(function))]
    named = [
        function.__name__,
        function.__qualname__,
        function.__doc__,
        code.co_name,
        code.co_filename,
        code.co_firstlineno,
        code.co_freevars,
    ]
    return [*(ask(function) for ask in IS), *described, *named]


@pytest.mark.parametrize("function", [saves, saves_later, yields_later, echoes, Trainer.save])
def test_inspect_answers_as_without_the_agent(function: Any) -> None:
    twin = watched(function)
    assert nature(twin) == nature(function)
    assert nature(decorated(twin)) == nature(decorated(function))


def test_coroutines_and_asynchronous_generators_do_what_they_do_without_the_agent() -> None:
    async def use(function: Any, other: Any, log: list[Any]) -> Any:
        generator = other(log)
        results = [await function(log), await anext(generator), await generator.athrow(KeyError())]
        await generator.aclose()
        return results, log

    plain = asyncio.run(use(saves_later, yields_later, []))
    assert asyncio.run(use(watched(saves_later), watched(yields_later), [])) == plain == (["returned", 1, 2], ["saved", "saved"])


def test_arguments_defaults_and_what_a_function_refers_to_stay() -> None:
    twin = watched(saves)
    assert twin(1, 2, 3, by=4, first=5) == saves(1, 2, 3, by=4, first=5)
    twin.__defaults__ = (7,)  # type: ignore[attr-defined]
    assert twin(1, by=2) == (1, 7, (), 2, "x", {})
    with pytest.raises(TypeError, match=r"^saves\(\) missing 1 required keyword-only argument: 'by'$"):
        twin(1)
    assert watched(Trainer.save)(Trainer(), 3) == (repr(Trainer())[:9], 3)


def test_a_warning_of_a_watched_function_names_its_own_line() -> None:
    def warns() -> None:
        warnings.warn("old format", stacklevel=1)

    with pytest.warns(UserWarning, match="old format") as caught:
        watched(warns)()
    assert (caught[0].filename, caught[0].lineno) == (__file__, warns.__code__.co_firstlineno + 1)


def test_new_code_that_the_program_gives_a_function_stays() -> None:
    """As IPython's autoreload does."""

    def saves() -> str:
        return "as loaded"

    def saves_anew() -> str:
        return "as edited"

    function = watched(saves)
    function.__code__ = saves_anew.__code__  # type: ignore[attr-defined]
    agent_goes_off()
    assert function() == "as edited"


def test_the_own_code_is_back_once_the_agent_is_off() -> None:
    def saves() -> int:
        return recorder.stack[-1]

    function = watched(saves)
    assert function() == SAVE
    agent_goes_off()
    assert function() == GAP and function.__code__ == saves.__code__


# --- what stays alive -----------------------------------------------------------------------------------------


def test_a_watched_function_keeps_nothing_alive() -> None:
    """The function refers to itself, and to what its caller has."""

    def make(model: Thing) -> Callable[..., Any]:
        def save(depth: int) -> Any:
            return model if not depth else save(depth - 1)

        functions.watch_function(save.__code__, SAVE)
        return save

    model = Thing()
    save, ref = make(model), weakref.ref(model)
    assert save(3) is model
    del save, model
    gc.collect()
    assert ref() is None


def test_a_suspended_generator_keeps_neither_what_it_has_yielded_nor_what_it_has_received() -> None:
    def generator(first: Thing) -> Any:
        del first
        while True:
            yield Thing()

    running = watched(generator, DATA)(Thing())
    refs = [weakref.ref(next(running)), weakref.ref(running.send(Thing()))]
    sent = Thing()
    refs.append(weakref.ref(sent))
    running.send(sent)
    del sent
    assert [ref() for ref in refs] == [None] * 3


def test_an_exception_that_a_generator_receives_makes_no_cycle() -> None:
    def generator(thing: Thing) -> Any:
        yield thing

    def use(function: Any) -> weakref.ref[Thing]:
        thing = Thing()
        running = function(thing)
        next(running)
        with contextlib.suppress(KeyError):
            running.throw(KeyError())
        return weakref.ref(thing)

    gc.disable()
    try:
        assert (use(generator)(), use(watched(generator))()) == (None, None)
    finally:
        gc.enable()
