"""Textual's driver for POSIX terminals, with an output that sends changed cells instead of whole
updates.

A thread writes to the terminal: it takes the next bytes when the terminal has taken the last ones.
A slow line gets fewer frames, and never an outdated frame.
"""

from __future__ import annotations

import os
import select
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from textual import events
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message

from gpuconsole.tui import keyboard, skeleton
from gpuconsole.tui.driver.screen import Cost, Screen
from gpuconsole.tui.terminal import Terminal, screen_file, terminal

if TYPE_CHECKING:
    from textual.app import App

CHUNK = 1024
"""Characters per write. A newer state, or the end, waits for at most this much."""
OPENING_S = 1.0
"""How long a cleared screen is held back before it is sent as it is. With 0.25 s a loaded machine
once showed a blank screen."""
LAST_WORDS_S = 0.5
"""How long the end may wait for the terminal."""


class TerminalWriter:
    """Replaces Textual's writer thread. `write` never blocks, and only the newest state waits.

    `stop` waits up to LAST_WORDS_S for the last bytes; `start` may follow.
    """

    def __init__(self, fileno: int, screen: Screen, encoding: str = "utf-8") -> None:
        self._fileno = fileno
        self._screen = screen
        self._encoding = encoding
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._gone = False
        self._failure: Exception | None = None

    def start(self) -> None:
        self._gone = False
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(self._stop,), name="terminal-output", daemon=True
        )
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread is not None

    def write(self, data: str) -> None:
        if self._failure is not None:
            # raise once: the bytes that restore the terminal follow
            failure, self._failure = self._failure, None
            raise RuntimeError("the screen cannot be sent") from failure
        with self._wake:
            self._screen.feed(data)
            self._wake.notify()

    def resize(self, width: int, height: int) -> None:
        with self._wake:
            self._screen.resize(width, height)
            self._wake.notify()

    def redraw(self) -> None:
        with self._wake:
            self._screen.redraw()
            self._wake.notify()

    def stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is None:
            return
        with self._wake:
            self._stop.set()
            self._wake.notify()
        thread.join(LAST_WORDS_S)
        if not thread.is_alive():
            self._send(self._screen.last_words().encode(self._encoding, "replace"))

    def _run(self, stop: threading.Event) -> None:
        try:
            while (data := self._next(stop)) is not None:
                self._send(data)
        except Exception as error:
            # the next `write` raises it: the app must not continue behind a frozen screen
            self._failure = error

    def _next(self, stop: threading.Event) -> bytes | None:
        """Wait for bytes to send. None after the end, or when another thread has taken over."""
        with self._wake:
            held_until = None
            while not self._screen.pending:
                if stop.is_set():
                    return None
                if not self._screen.opening:
                    held_until = None
                    self._wake.wait()
                    continue
                held_until = held_until or time.monotonic() + OPENING_S
                if (patience := held_until - time.monotonic()) > 0:
                    self._wake.wait(patience)
                else:
                    self._screen.open()
            if stop is not self._stop:
                return None
            data = self._screen.take(CHUNK).encode(self._encoding, "replace")
            self._screen.cost.bytes += len(data)
            return data

    def _send(self, data: bytes) -> None:
        start = time.monotonic()
        self._write_all(data)
        self._screen.cost.writing_s += time.monotonic() - start

    def _write_all(self, data: bytes) -> None:
        while data and not self._gone:
            try:
                data = data[os.write(self._fileno, data) :]
            except BlockingIOError:  # another process made the terminal non-blocking
                select.select([], [self._fileno], [], 0.1)
            except OSError:  # the terminal is gone: the app receives SIGHUP
                self._gone = True


class CellDriver(LinuxDriver):
    """LinuxDriver handles keys, mouse and modes. Its output goes through a `TerminalWriter`."""

    def __init__(
        self,
        app: App[Any],
        *,
        debug: bool = False,
        mouse: bool = True,
        size: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        self._file = screen_file()  # LinuxDriver takes stderr, which may be a file
        fileno = self._terminal()
        able: Terminal = getattr(app, "able", None) or terminal()
        screen = Screen(*_size_of(fileno), able, entered=skeleton.painted())
        self.cost: Cost = screen.cost
        self._out = TerminalWriter(fileno, screen, "ascii" if able.ascii_only else "utf-8")

    @property  # type: ignore[override]
    def _writer_thread(self) -> TerminalWriter:
        """The writer in place of LinuxDriver's WriterThread: LinuxDriver starts it, writes to it
        and stops it."""
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

    # --- modes ------------------------------------------------------------------------------------

    def start_application_mode(self) -> None:
        for key in keyboard.parse(skeleton.typed()):  # before Textual reads newer keys
            self.process_message(key)
        super().start_application_mode()  # type: ignore[no-untyped-call]
        if (attributes := skeleton.hand_over()) is not None:
            self.attrs_before = attributes  # those from before the first picture

    def _sigtstp_application(self, *_: object) -> None:
        # A signal handler may interrupt the app anywhere, also in `write`.
        self._loop.call_soon_threadsafe(super()._sigtstp_application)

    def _sigcont_application(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._continue)

    def _continue(self) -> None:
        """Continue in the foreground. After SIGSTOP, which skips the suspension, the terminal's
        modes may be on or changed by the shell."""
        if not self._auto_restart:
            return
        if self._out.running:
            self.suspend_application_mode()
        self.resume_application_mode()

    # --- size -------------------------------------------------------------------------------------

    def _get_terminal_size(self) -> tuple[int, int]:
        """The size of the terminal that is drawn on. LinuxDriver calls this at the start and in the
        handler of SIGWINCH."""
        size = _size_of(self._terminal())
        self._loop.call_soon_threadsafe(self._out.resize, *size)
        # a terminal that was attached again may have the same size
        self._loop.call_soon_threadsafe(self._out.redraw)
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


# --- the names of Textual that the screen needs ---------------------------------------------------


class TextualName(NamedTuple):
    """A name of Textual outside its documented interface that `gpuconsole.tui` calls, reads or
    overrides.

    `owner`: its module, and its class after a colon. `signature`: the parameters without
    annotations; empty: an attribute of instances. `used_by`: methods of `owner` that have to use
    the name, because it is overridden here.
    """

    owner: str
    name: str
    signature: str = ""
    used_by: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.owner}{'.' if ':' in self.owner else ':'}{self.name}{self.signature}"


_LINUX, _DRIVER = "textual.drivers.linux_driver:LinuxDriver", "textual.driver:Driver"
TEXTUAL_NAMES = (
    # the driver
    TextualName(_LINUX, "__init__", "(self, app, *, debug=False, mouse=True, size=None)"),
    TextualName(_LINUX, "_file"),
    TextualName(_LINUX, "_writer_thread", used_by=("start_application_mode", "write", "close")),
    TextualName(
        _LINUX, "attrs_before", used_by=("start_application_mode", "stop_application_mode")
    ),
    TextualName(_LINUX, "start_application_mode", "(self)"),
    TextualName(_LINUX, "process_message", "(self, message)", ("run_input_thread",)),
    TextualName(_LINUX, "_get_terminal_size", "(self)", ("start_application_mode",)),
    TextualName(_LINUX, "_sigtstp_application", "(self, *_)", ("__init__",)),
    TextualName(_LINUX, "_sigcont_application", "(self, *_)", ("__init__",)),
    TextualName(_DRIVER, "_loop"),
    TextualName(_DRIVER, "_auto_restart"),
    TextualName(_DRIVER, "suspend_application_mode", "(self)"),
    TextualName(_DRIVER, "resume_application_mode", "(self)"),
    TextualName("textual.app:App", "_driver"),
    # keys that were typed before Textual reads them, and the names of keys in the user's settings
    TextualName("textual._xterm_parser:XTermParser", "__init__", "(self, debug=False)"),
    TextualName("textual._xterm_parser:XTermParser", "feed", "(self, data)"),
    TextualName("textual.keys", "_character_to_key", "(character)"),
    # the cache that keeps the lines of closed screens
    TextualName(
        "textual._styles_cache:StylesCache", "get_inner_outer", "(cls, base_background, background)"
    ),
)
"""All of them. A test compares the table with the installed Textual, and with the code of
`gpuconsole.tui`."""
