"""Textual's driver for POSIX terminals, with an output that sends changed cells instead of whole updates."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from textual import events
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message

from gpuconsole.tui import keyboard, skeleton
from gpuconsole.tui.driver.screen import Cost, Screen
from gpuconsole.tui.driver.terminal import Terminal, screen_file, terminal
from gpuconsole.tui.driver.writer import Writer

if TYPE_CHECKING:
    from textual.app import App


class CellDriver(LinuxDriver):
    """LinuxDriver handles keys, mouse and modes. Its output goes through a `Writer`."""

    def __init__(self, app: App[Any], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        self._file = screen_file()  # LinuxDriver takes stderr, which may be a file
        fileno = self._terminal()
        able: Terminal = getattr(app, "able", None) or terminal()
        screen = Screen(*_size_of(fileno), able, entered=skeleton.painted())
        self.cost: Cost = screen.cost
        self._out = Writer(fileno, screen, "ascii" if able.ascii_only else "utf-8")

    @property  # type: ignore[override]
    def _writer_thread(self) -> Writer:
        """The writer in place of LinuxDriver's WriterThread: LinuxDriver starts it, writes to it and stops it."""
        return self._out

    @_writer_thread.setter
    def _writer_thread(self, value: object) -> None:
        pass

    def _terminal(self) -> int:
        assert self._file is not None
        return self._file.fileno()

    def redraw(self) -> None:
        """Send the whole screen again: another program has written to the terminal."""
        self._out.redraw()

    # --- modes ----------------------------------------------------------------------------------------------

    def start_application_mode(self) -> None:
        for key in keyboard.parse(skeleton.typed()):  # before Textual reads newer keys
            self.process_message(key)
        super().start_application_mode()  # type: ignore[no-untyped-call]
        if (found := skeleton.hand_over()) is not None:
            self.attrs_before = found  # the attributes from before the first picture

    def _sigtstp_application(self, *_: object) -> None:
        # A signal handler may interrupt the app anywhere, also in `write`.
        self._loop.call_soon_threadsafe(super()._sigtstp_application)

    def _sigcont_application(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._continue)

    def _continue(self) -> None:
        """Continue in the foreground. After SIGSTOP, which skips the suspension, the terminal's modes may be on or changed by the shell."""
        if not self._auto_restart:
            return
        if self._out.running:
            self.suspend_application_mode()
        self.resume_application_mode()

    # --- size -----------------------------------------------------------------------------------------------

    def _get_terminal_size(self) -> tuple[int, int]:
        """The size of the terminal that is drawn on. LinuxDriver calls this at the start and in the handler of SIGWINCH."""
        size = _size_of(self._terminal())
        self._loop.call_soon_threadsafe(self._out.resize, *size)
        self._loop.call_soon_threadsafe(self._out.redraw)  # a terminal that was attached again may have the same size
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
