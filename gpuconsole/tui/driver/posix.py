"""Textual's driver for POSIX terminals with another way out: cells instead of whole updates."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from textual import events
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message

from gpuconsole.tui import keyboard, skeleton
from gpuconsole.tui.driver.screen import Cost, Screen
from gpuconsole.tui.driver.terminal import Terminal, terminal
from gpuconsole.tui.driver.writer import Writer

if TYPE_CHECKING:
    from textual.app import App


class CellDriver(LinuxDriver):
    """Keys, mouse and modes are LinuxDriver's; what it writes goes through a `Writer`."""

    def __init__(self, app: App[Any], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        fileno = self._terminal()
        able: Terminal = getattr(app, "able", None) or terminal()
        screen = Screen(*_size_of(fileno), able, entered=skeleton.painted())
        self.cost: Cost = screen.cost
        self._out = Writer(fileno, screen, "ascii" if able.ascii_only else "utf-8")

    @property  # type: ignore[override]
    def _writer_thread(self) -> Writer:
        """LinuxDriver makes a WriterThread, starts it, writes to it and stops it: all of that reaches our writer."""
        return self._out

    @_writer_thread.setter
    def _writer_thread(self, value: object) -> None:
        pass

    def _terminal(self) -> int:
        assert self._file is not None
        return self._file.fileno()

    def redraw(self) -> None:
        """Send the whole screen again: something else has written to the terminal."""
        self._out.redraw()

    # --- modes ----------------------------------------------------------------------------------------------

    def start_application_mode(self) -> None:
        for key in keyboard.parse(skeleton.typed()):  # before Textual's parser reads the newer ones
            self.process_message(key)
        super().start_application_mode()  # type: ignore[no-untyped-call]
        if (found := skeleton.hand_over()) is not None:
            self.attrs_before = found  # not those that the skeleton has set

    def _sigtstp_application(self, *_: object) -> None:
        # In a signal handler the app may be anywhere, in `write` too.
        self._loop.call_soon_threadsafe(super()._sigtstp_application)

    def _sigcont_application(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._continue)

    def _continue(self) -> None:
        """Back in the foreground. Where nobody suspended us (SIGSTOP), the modes are still on, or the shell has changed them."""
        if not self._auto_restart:
            return
        if self._out.running:
            self.suspend_application_mode()
        self.resume_application_mode()

    # --- size -----------------------------------------------------------------------------------------------

    def _get_terminal_size(self) -> tuple[int, int]:
        """Asked at the start and in the handler of SIGWINCH. The terminal that counts is the one that is drawn on."""
        size = _size_of(self._terminal())
        self._loop.call_soon_threadsafe(self._out.resize, *size)
        self._loop.call_soon_threadsafe(self._out.redraw)  # a terminal that is attached anew may have the same size
        return size

    def process_message(self, message: Message) -> None:
        if isinstance(message, events.Resize):  # the terminal reports its size itself
            self._loop.call_soon_threadsafe(self._out.resize, *message.size)
        super().process_message(message)


def _size_of(fileno: int) -> tuple[int, int]:
    try:
        columns, rows = os.get_terminal_size(fileno)
    except OSError:
        columns, rows = 0, 0
    return columns or 80, rows or 24
