"""stdin and stdout as the two ends of the protocol.

Threads read and write, so that a client that writes or reads nothing never blocks the session, and the process can end at any time. After `claim`,
file descriptor 0 is empty and 1 is stderr: no print and no child can write into the protocol.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from typing import NamedTuple

LONGEST_LINE = 1 << 20
"""Bytes. A longer line is dropped: no message of a client is that long."""
WAITING = 64
"""Lines that wait to be written, and pieces that wait to be read."""
FLUSH_S = 1.0


class Descriptors(NamedTuple):
    incoming: int
    outgoing: int


def claim() -> Descriptors:
    """Take stdin and stdout for the protocol."""
    ends = Descriptors(os.dup(0), os.dup(1))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return ends


class Lines:
    """The lines that a client sends, as an asynchronous iterator."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue(WAITING)
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while piece := os.read(self._descriptor, 1 << 16):
                asyncio.run_coroutine_threadsafe(self._pieces.put(piece), self._loop).result()
        except OSError:
            pass  # the other end has gone
        except BaseException:  # the loop has ended
            return
        try:
            asyncio.run_coroutine_threadsafe(self._pieces.put(b""), self._loop).result()
        except BaseException:
            return

    async def __aiter__(self):  # type: ignore[no-untyped-def]
        rest, dropping = b"", False
        while piece := await self._pieces.get():
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if not dropping and line.strip():
                    yield line.decode("utf-8", errors="replace")
                dropping = False
            if len(rest) > LONGEST_LINE:
                rest, dropping = b"", True


class Writer:
    """The lines for a client. `write` waits while many lines wait; a client that has gone loses them."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._room = asyncio.Semaphore(WAITING)
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    async def write(self, text: str) -> None:
        await self._room.acquire()
        self._lines.put(text)

    async def flush(self) -> None:
        """Nothing waits here: the thread writes at once."""

    def close(self) -> None:
        """Write what waits, for FLUSH_S at most."""
        self._lines.put(None)
        self._thread.join(FLUSH_S)

    def _write(self) -> None:
        gone = False
        while (text := self._lines.get()) is not None:
            data = text.encode()
            while data and not gone:
                try:
                    data = data[os.write(self._descriptor, data) :]
                except OSError:
                    gone = True
            try:
                self._loop.call_soon_threadsafe(self._room.release)
            except RuntimeError:  # the loop has ended
                return
