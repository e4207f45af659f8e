"""The thread that writes to the terminal. The thread waits for a slow terminal; the app does not."""

from __future__ import annotations

import os
import select
import threading
import time

from gpuconsole.tui.driver.screen import Screen

CHUNK = 1024
"""Characters per write. A newer state, or the end, waits for at most this much."""
OPENING_S = 0.25
"""How long a cleared screen is held back before it is sent as it is."""
LAST_WORDS_S = 0.5
"""How long the end may wait for the terminal."""


class Writer:
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
        self._thread = threading.Thread(target=self._run, args=(self._stop,), name="terminal-output", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread is not None

    def write(self, data: str) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None  # raise once: the bytes that restore the terminal follow
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
        except Exception as error:  # the next `write` raises it: the app must not continue behind a frozen screen
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
