"""What belongs to the agent and what belongs to the program: exceptions, and attributes that
raise."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpuconsole.agent.hooks import guard
from gpuconsole.agent.hooks.guard import Switch, ask, from_outside


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
@pytest.mark.parametrize(
    "handler",
    [
        plain,
        with_text,
        of_any,
        once,
        functools.partial(within, "late"),
        Handles(),
        Handles().handle,
    ],
)
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
def test_an_entry_point_raises_again_what_comes_from_outside_and_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    switch, anew = Switch(), list[str]()
    monkeypatch.setattr(guard, "switch", switch)
    switch.begin_anew.append(lambda: anew.append("begun"))
    signal.signal(signal.SIGUSR1, with_text)
    with pytest.raises(Preempted, match="over"):
        guard.entry("test.work")(agents_work)()
    assert not switch.failed and anew == ["begun"]
    guard.entry("test.fails")(lambda: [][1])()
    assert switch.failed and anew == ["begun"]
    # another call of the agent's code may still be under way as the agent switches itself off: what
    # comes from outside then arrives too
    assert switch.off("test.late", caught(agents_work))
    assert not switch.off("test.late", ValueError("of the agent"))


@pytest.mark.usefixtures("timer")
def test_an_exception_that_comes_while_the_agent_switches_itself_off_arrives_once_it_is_off() -> (
    None
):
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


def test_ctrl_c_within_an_entry_point_lets_the_account_begin_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    switch, anew = Switch(), list[str]()
    monkeypatch.setattr(guard, "switch", switch)
    switch.begin_anew.append(lambda: anew.append("begun"))

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guard.entry("test.work")(interrupted)()
    assert anew == ["begun"] and not switch.failed
