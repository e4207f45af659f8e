"""Signals that arrive while workers start: the program's handlers run after it, and what the system
does with the signal stays."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from collections.abc import Iterator

import pytest

from gpuconsole.agent.hooks.changes.batch_sources import signals_wait


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_handlers_run_after_the_block_and_each_of_them_also_where_one_raises() -> None:
    ran: list[str] = []

    def first(number: int, frame: object) -> None:
        ran.append("first")
        raise KeyError("of the program")

    signal.signal(signal.SIGUSR1, first)
    signal.signal(signal.SIGUSR2, lambda *_: ran.append("second"))

    def start_workers() -> None:
        with signals_wait():
            os.kill(os.getpid(), signal.SIGUSR1)
            os.kill(os.getpid(), signal.SIGUSR2)
            assert not ran

    with pytest.raises(KeyError, match="of the program"):
        start_workers()
    assert ran == ["first", "second"] and signal.getsignal(signal.SIGUSR1) is first


def test_a_wakeup_descriptor_gets_one_byte_for_each_signal() -> None:
    reading, writing = socket.socketpair()
    reading.setblocking(False)
    writing.setblocking(False)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    before = signal.set_wakeup_fd(writing.fileno())
    try:
        with signals_wait():
            os.kill(os.getpid(), signal.SIGUSR1)
        assert reading.recv(16) == bytes([signal.SIGUSR1])
        with pytest.raises(BlockingIOError):
            reading.recv(16)
    finally:
        signal.set_wakeup_fd(before)
        reading.close()
        writing.close()


@pytest.mark.parametrize("interrupts", [False, True])
def test_siginterrupt_stays(interrupts: bool) -> None:
    """A read that a signal does not interrupt ends with data only."""
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.siginterrupt(signal.SIGUSR1, interrupts)
    before = action_of(signal.SIGUSR1)
    assert bool(before[2] & 0x10000000) is not interrupts, "SA_RESTART"
    with signals_wait():
        assert action_of(signal.SIGUSR1) == before
    assert action_of(signal.SIGUSR1) == before


class Action(ctypes.Structure):
    """As in the C library of Linux."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_uint64),
        ("more", ctypes.c_uint64 * 15),
        ("flags", ctypes.c_int),
    )


def action_of(number: int) -> tuple[int, int, int]:
    """The function, the mask and the flags that the system has for a signal."""
    action, room = Action(), ctypes.create_string_buffer(512)
    assert ctypes.CDLL(None).sigaction(number, None, room) == 0
    ctypes.memmove(ctypes.byref(action), room, ctypes.sizeof(action))
    return action.handler, action.mask, action.flags
