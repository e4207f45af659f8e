"""A program in a pseudo-terminal whose output is timed and counted, never shown; and the resources
that it and its children use."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import psutil
import pyte

COLUMNS, ROWS = 120, 40
READ_BYTES = 1 << 16
# pyte knows none of these; they draw nothing
_NOT_DRAWN = (
    b"\x1b[?2026$p",
    b"\x1b[?2048$p",
    b"\x1b[>1u",
    b"\x1b[>25u",
    b"\x1b[<u",
    b"\x1b[22;0t",
    b"\x1b[23;0t",
    b"\x1b[22;0;0t",
    b"\x1b[23;0;0t",
)

_QUESTIONS = {b"\x1b[6n": b"\x1b[1;1R", b"\x1b[c": b"\x1b[?62;22c"}
"""What programs ask a terminal before they begin, and wait for: where the cursor is, and what kind
of terminal it is."""


class Program:
    """`command` at 120x40, with a keyboard that `press` types on. A context manager: the program is
    killed at the end.

    `take` is the terminal's line: it reads from a file descriptor that has data, or returns b"" if
    it has to wait.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        cwd: Path,
        take: Callable[[int], bytes] | None = None,
    ) -> None:
        self.chunks: list[tuple[float, bytes]] = []
        self.bytes = 0
        self.ended = False
        self._take = take or (lambda file: os.read(file, READ_BYTES))
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))

        def own_terminal() -> None:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.begun = time.monotonic()
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=cwd,
            env=dict(environment),
            preexec_fn=own_terminal,
        )
        os.close(slave)

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in family(self.process.pid):
            with contextlib.suppress(psutil.NoSuchProcess):  # its parent has ended it
                process.kill()
        self.process.wait()
        os.close(self._master)

    def press(self, keys: bytes) -> float:
        """Type `keys`; returns the time."""
        now = time.monotonic()
        os.write(self._master, keys)
        return now

    def read(self, timeout_s: float) -> bool:
        """Read the available data, waiting up to `timeout_s`. False: there was none."""
        if self.ended or not select.select([self._master], [], [], timeout_s)[0]:
            return False
        try:
            chunk = self._take(self._master)
        except OSError:  # the program has closed the terminal
            self.ended = True
            return False
        if chunk:
            self.chunks.append((time.monotonic(), chunk))
            self.bytes += len(chunk)
            for question, answer in _QUESTIONS.items():
                if question in chunk:
                    os.write(self._master, answer)
        return True

    def read_for(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self.ended and (left := deadline - time.monotonic()) > 0:
            self.read(left)

    def read_until(self, there: Callable[[], bool], timeout_s: float) -> bool:
        """Read until `there()`; False if that takes too long. Checked after each chunk and every 50
        ms."""
        deadline = time.monotonic() + timeout_s
        while not there():
            if self.ended or time.monotonic() > deadline:
                return False
            self.read(0.05)
        return True

    def read_until_shown(self, pattern: str, timeout_s: float) -> bool:
        """Read until `pattern` is on the screen. Found at once if it arrives in one piece, else
        within a second."""
        deadline, looked, since = time.monotonic() + timeout_s, time.monotonic(), 0
        while not self.ended and time.monotonic() < deadline:
            self.read(0.05)
            fresh = b"".join(chunk for _, chunk in self.chunks[since:]).decode(errors="replace")
            since = max(since, len(self.chunks) - 2)
            if re.search(pattern, fresh):
                return True
            if time.monotonic() - looked > 1.0:
                if re.search(pattern, self.picture()):
                    return True
                looked = time.monotonic()
        return re.search(pattern, self.picture()) is not None

    def first_shown(self, pattern: str) -> float | None:
        """Seconds from the start until `pattern` was on the screen."""
        replay = Replay()
        for at, chunk in self.chunks:
            replay.feed(chunk)
            if re.search(pattern, replay.text):
                return at - self.begun
        return None

    def wait_end(self, timeout_s: float) -> float | None:
        """Read until the program has ended; returns the seconds, None if it did not end."""
        begun = time.monotonic()
        while self.process.poll() is None:
            if time.monotonic() - begun > timeout_s:
                return None
            self.read(0.01) if not self.ended else time.sleep(0.01)
        return time.monotonic() - begun

    def picture(self) -> str:
        """The present screen."""
        replay = Replay()
        for _, chunk in self.chunks:
            replay.feed(chunk)
        return replay.text


class Replay:
    """A terminal emulator for the output of a program."""

    def __init__(self) -> None:
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self._screen)

    def feed(self, chunk: bytes) -> None:
        for sequence in _NOT_DRAWN:
            chunk = chunk.replace(sequence, b"")
        self._stream.feed(chunk)

    def row(self, number: int) -> str:
        """One row of the screen; -1 is the last."""
        cells = self._screen.buffer[number % ROWS]
        return "".join(cells[column].data for column in range(COLUMNS)).rstrip()

    @property
    def text(self) -> str:
        return "\n".join(self._screen.display)


def family(pid: int) -> list[psutil.Process]:
    """The process and all its living descendants."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_s(processes: Sequence[psutil.Process]) -> float:
    """CPU time of `processes`, including children that have ended."""
    total = 0.0
    for process in processes:
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return total


def rss_bytes(processes: Sequence[psutil.Process]) -> int:
    total = 0
    for process in processes:
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


def pss_bytes(processes: Sequence[psutil.Process]) -> int:
    """The memory of `processes`, in which memory that several processes share counts once."""
    total = 0
    for process in processes:
        try:
            total += process.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
    return total
