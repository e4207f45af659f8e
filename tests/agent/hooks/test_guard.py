"""What belongs to the agent and what belongs to the program: exceptions, and what a wrapper shows of itself."""

from __future__ import annotations

import ctypes
import functools
import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpuconsole.agent.hooks import guard
from gpuconsole.agent.hooks.guard import Switch, alike, ask, from_outside


class Preempted(Exception):
    """Raised by a program."""


def plain(signum: int, frame: Any) -> None:
    del frame
    raise Preempted


def with_text(signum: int, frame: Any) -> None:
    raise Preempted("time is over")


def of_any(*given: Any) -> None:
    raise Preempted("time is over")


def once(signum: int, frame: Any) -> None:
    signal.signal(signum, signal.SIG_DFL)
    raise Preempted(signum)


def within(extra: str, *given: Any) -> None:
    def deeper() -> None:
        raise TimeoutError(extra)

    deeper()


class Handles:
    def __call__(self, signum: int, frame: Any) -> None:
        raise Preempted("time is over")

    handle = __call__


@pytest.fixture
def timer() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


def caught(function: Callable[[], Any]) -> Exception:
    """What `function` raises, as an entry point catches it."""
    try:
        function()
    except Exception as problem:
        return problem
    raise AssertionError("nothing was raised")


def agents_work() -> None:
    os.kill(os.getpid(), signal.SIGUSR1)
    for _ in range(1000):
        pass


@pytest.mark.usefixtures("timer")
@pytest.mark.parametrize("handler", [plain, with_text, of_any, once, functools.partial(within, "late"), Handles(), Handles().handle])
def test_an_exception_of_a_signal_handler_comes_from_outside(handler: Any) -> None:
    signal.signal(signal.SIGUSR1, handler)
    assert from_outside(caught(agents_work))


def test_an_exception_from_another_thread_comes_from_outside() -> None:
    here = ctypes.c_ulong(threading.get_ident())

    def work() -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(here, ctypes.py_object(Preempted))
        for _ in range(1000):
            pass

    assert from_outside(caught(work))


def fails_in_a_trace() -> None:
    def trace(frame: Any, event: str, argument: Any) -> None:
        raise RuntimeError("broken by the test")

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        agents_work.__code__.co_name.upper()
        functools.partial(lambda: None)()
    finally:
        sys.settrace(before)


OWN_FAILURES: list[Callable[[], Any]] = [
    lambda: [][1],
    lambda: {}["shape"],
    lambda: int("x"),
    lambda: next(iter(())),
    lambda: len(3),  # type: ignore[arg-type]
    lambda: plain(3, None),  # a call, not a signal
    fails_in_a_trace,
]


@pytest.mark.parametrize("fails", OWN_FAILURES)
def test_a_failure_of_the_agent_does_not_come_from_outside(fails: Callable[[], Any]) -> None:
    assert not from_outside(caught(fails))


@pytest.mark.usefixtures("timer")
def test_an_entry_point_raises_again_what_comes_from_outside_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    switch, anew = Switch(), list[str]()
    monkeypatch.setattr(guard, "switch", switch)
    switch.begin_anew.append(lambda: anew.append("begun"))
    signal.signal(signal.SIGUSR1, with_text)
    with pytest.raises(Preempted, match="over"):
        guard.entry("test.work")(agents_work)()
    assert not switch.failed and anew == ["begun"]
    guard.entry("test.fails")(lambda: [][1])()
    assert switch.failed and anew == ["begun"]
    # another call of the agent's code may still be under way as the agent switches itself off: what comes from outside then arrives too
    assert switch.off("test.late", caught(agents_work))
    assert not switch.off("test.late", ValueError("of the agent"))


@pytest.mark.usefixtures("timer")
def test_an_exception_that_comes_while_the_agent_switches_itself_off_arrives_once_it_is_off() -> None:
    switch, undone = Switch(), list[str]()
    signal.signal(signal.SIGUSR1, with_text)
    switch.undo += [agents_work, lambda: undone.append("the next one")]
    with pytest.raises(Preempted, match="over"):
        switch.off("test", ValueError("of the agent"))
    assert switch.failed and undone == ["the next one"]


def test_an_attribute_of_an_object_that_raises_is_not_there() -> None:
    class Items(dict[str, int]):
        __getattr__ = dict.__getitem__

    assert ask(Items(), "shape") is None and ask(Items(shape=3), "shape") == 3


def original(self: Any, first: int, /, second: str = "x", *more: int, third: float = 2.0, **rest: Any) -> list[Any]:
    """Does something."""
    local = [self, first, second, more, third]
    return [*local, rest]


def test_a_wrapper_shows_the_parameters_of_what_it_wraps() -> None:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    shown = alike(wrapper, original)
    assert inspect.getfullargspec(shown) == inspect.getfullargspec(original)
    assert inspect.signature(shown, follow_wrapped=False) == inspect.signature(original)
    for name in ("__defaults__", "__kwdefaults__", "__annotations__", "__name__", "__qualname__", "__module__", "__doc__"):
        assert getattr(shown, name) == getattr(original, name)
    for name in ("co_varnames", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_name", "co_freevars"):
        assert getattr(shown.__code__, name) == getattr(original.__code__, name)
    assert shown(1, 2, "y", 3, third=4.0, second_one=5) == original(1, 2, "y", 3, third=4.0, second_one=5)
    with pytest.raises(TypeError, match=r"^original\(\) missing 1 required positional argument: 'first'$"):
        shown(1)


def test_a_wrapper_with_the_parameters_of_what_it_wraps_is_called_itself() -> None:
    """A function around it would cost each step of the program its call."""

    def wrapper(*args: Any, **kwargs: Any) -> int:
        return 1 + original(*args, **kwargs)

    def original(*args: Any, **kwargs: Any) -> int:
        return len(args) + len(kwargs)

    shown = alike(wrapper, original)
    assert shown is wrapper and shown(1, 2, a=3) == 4
    assert (shown.__name__, shown.__code__.co_name, inspect.getfullargspec(shown)) == (
        "original",
        "original",
        inspect.getfullargspec(original),
    )
    assert getattr(shown.__code__, "co_qualname", "") == getattr(original.__code__, "co_qualname", ""), "profilers show this name"
